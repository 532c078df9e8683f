"""Workspaces that a library states on the device, and that a lock carries to other machines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared.hlo_objects import instruction
from tests.shared.sample_records import LOCK
from xlapipe.dump.autotune_lock import read_lock
from xlapipe.dump.normal_form.plan import NormalForm
from xlapipe.errors import TargetError
from xlapipe.plans import Instruction
from xlapipe.plans.workspaces import call_key, workspaces_of

KEY = "__cudnn$fmhaSoftmax bf16[2,8,512,64] f32[2,8,512]"
WITH_WORKSPACE = replace(LOCK, workspaces={KEY: 256})


def lowered_digest(text: str) -> str:
    return NormalForm("", "", text.encode()).lowered


def call(size: int, *, name: str = "attention") -> Instruction:
    shape = f"(bf16[2,8,512,64]{{3,1,2,0}}, f32[2,8,512]{{2,1,0}}, u8[{size}]{{0}})"
    return instruction(name, "custom-call", shape, custom_call_target="__cudnn$fmhaSoftmax")


def test_a_call_is_known_by_its_target_and_results() -> None:
    assert workspaces_of([call(256), call(256, name="other")]) == {KEY: 256}
    results = [("bf16", [2, 8, 512, 64]), ("f32", (2, 8, 512))]
    assert call_key("__cudnn$fmhaSoftmax", results) == KEY


def test_calls_that_differ_under_one_key_are_left_out() -> None:
    assert workspaces_of([call(256), call(512, name="other")]) == {}


def test_a_lock_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "autotune_lock.json"
    path.write_bytes(WITH_WORKSPACE.to_bytes())
    assert read_lock(path) == WITH_WORKSPACE
    data = json.loads(path.read_bytes())
    del data["workspaces"]  # of an older lock
    path.write_text(json.dumps(data))
    assert read_lock(path).workspaces == {}
    path.write_text(json.dumps({**data, "workspaces": {KEY: "256"}}))
    with pytest.raises(TargetError, match="workspaces"):
        read_lock(path)


def test_workspace_is_not_a_part_of_the_program() -> None:
    text = (
        "HloModule m\n\nENTRY %main (x: f32[8]) -> f32[8] {\n"
        "  %x = f32[8]{0} parameter(0)\n"
        "  %call = (f32[8]{0}, u8[0]{0}) custom-call(%x), "
        'custom_call_target="__cudnn$fmhaSoftmax"\n'
        "  ROOT %out = f32[8]{0} get-tuple-element(%call), index=0\n}\n"
    )
    digest = lowered_digest(text)
    assert lowered_digest(text.replace("u8[0]", "u8[256]")) == digest
    assert lowered_digest(text.replace("u8[0]", "u16[0]")) != digest
    other = text.replace("__cudnn$fmhaSoftmax", "another")
    assert lowered_digest(other.replace("u8[0]", "u8[256]")) != lowered_digest(other)
