"""Instructions that an opcode cannot have are refused; those that XLA writes are not."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT
from xlapipe.dump.dump import read_file
from xlapipe.dump.readers.hlo_proto import HloProto
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.proto_reader import read_proto
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.errors import PlanMismatchError
from xlapipe.plans import Plan
from xlapipe.plans.verify import verify
from xlapipe.plans.verify_instructions import instruction_mismatches

TEXTS = Path(__file__).with_name("texts")
MODULE = (TEXTS / "module_of_an_instruction.txt").read_text(encoding="utf-8")
SOUND = (TEXTS / "sound_instructions.txt").read_text(encoding="utf-8").splitlines()
BROKEN = (TEXTS / "broken_instructions.txt").read_text(encoding="utf-8").splitlines()


def mismatch(instruction: str) -> tuple[str, str] | None:
    text = MODULE.format(instruction=instruction).replace(
        "ROOT %last = f32[] copy(%zero)",
        # A root, so that a get-tuple-element is read as it is.
        "%last = f32[] copy(%zero)\n  ROOT %used = s32[] custom-call(%tested), "
        'custom_call_target="any"',
    )
    return next(instruction_mismatches(parse_hlo(SourceText("small.txt", text)).module), None)


@pytest.mark.parametrize("instruction", SOUND)
def test_what_xla_writes(instruction: str) -> None:
    assert mismatch(instruction) is None


@pytest.mark.parametrize("instruction", BROKEN)
def test_what_no_opcode_can_have(instruction: str) -> None:
    assert mismatch(instruction) is not None


def test_an_unknown_form_is_a_note_where_few_dumps_were_read() -> None:
    text = MODULE.format(instruction="f32[8,8]{1,0} reverse(%a), dimensions={0}")
    plan = Plan((), module=parse_hlo(SourceText("small.txt", text)).module)
    with pytest.raises(PlanMismatchError, match="that a reverse can have"):
        verify(plan, where="dump")
    (note,) = verify(replace(plan, platform="tpu"), where="dump").notes
    assert "reverse(f32[4,8]{1,0})" in note


def test_a_cycle_of_calls() -> None:
    text = MODULE.format(instruction=SOUND[0]).replace("negate(%z)", "call(%z), to_apply=%negated")
    found = next(instruction_mismatches(parse_hlo(SourceText("small.txt", text)).module), None)
    assert found == ("computations that do not call themselves", "that negated does")


def test_the_proto_is_refused_where_it_is_read() -> None:
    (folder,) = (ROOT / "hlo_dumps/qwen3-step").glob("h200-triton-*")
    proto = HloProto.FromString(read_file(folder, "after_optimizations.hlo.pb"))
    _ = read_proto(proto.SerializeToString(), where="dump")
    instruction = next(
        instruction
        for computation in proto.hlo_module.computations
        for instruction in computation.instructions
        if instruction.opcode == "multiply"
    )
    instruction.opcode = "reduce"
    with pytest.raises(PlanMismatchError, match=r"^dump: expected operands.* that a reduce can"):
        read_proto(proto.SerializeToString(), where="dump")


def test_an_operation_on_sparse_cores_gets_its_operands_by_an_update() -> None:
    """As libtpu 0.0.50.1 writes an all-gather for TPU7x."""
    part, whole = "f32[64]{0:T(128)}", "f32[256]{0:T(128)}"
    text = f"""HloModule m, is_scheduled=true

%async (p: f32[64]) -> f32[256] {{
  %p = {part} parameter(0)
  ROOT %g = {whole} all-gather(%p), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
}}, execution_thread="sparsecore"

ENTRY %main (x: f32[64]) -> f32[256] {{
  %x = {part} parameter(0)
  %start = ((), (), (s32[1]{{0:T(128)S(2)}})) async-start(), calls=%async
  %update = (({part}), {whole}) async-update(%start, %x)
  ROOT %done = {whole} async-done(%update)
}}
"""
    assert (
        next(instruction_mismatches(parse_hlo(SourceText("small.txt", text)).module), None) is None
    )
