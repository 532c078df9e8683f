"""The rules of the normal form: each removes a difference between machines, and no real change."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared.hlo_objects import instruction, logical_buffer
from tests.shared.sample_records import MANIFEST
from xlapipe.dump.dump import Dump
from xlapipe.dump.normal_form.hlo import normal_hlo
from xlapipe.dump.normal_form.plan import NormalForm, differences, normal_form
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    Computation,
    HloModule,
    Plan,
    Thunk,
)

HLO = Path(__file__).with_name("texts").joinpath("normal_form_hlo.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        ("tables", "/home/a/step.py", "/elsewhere/step.py"),
        ("tables", "line=16 end_line=16", "line=17 end_line=17"),
        ("metadata", " stack_frame_id=1}", " stack_frame_id=9}"),
        ("metadata", 'metadata={scheduling_name="param_0.5"}', 'metadata={scheduling_name="p"}'),
        ("fingerprint", "d45f", "77aa"),
        ("inner names", "param_1.198", "param_1.196"),
        ("inner names", "add.7", "add.12"),
        ("computations", "fused_add", "fused_add.clone.1"),
        ("computations", "fused_subtract", "a_fused_subtract"),
        (
            "bitcasts",
            "  %bitcast.4 = f32[2,4]{1,0} bitcast(%c.1)\n"
            "  %loop_add = f32[8]{0} fusion(%dot, %c.1), kind=kLoop, calls=%fused_add\n",
            "  %loop_add = f32[8]{0} fusion(%dot, %c.1), kind=kLoop, calls=%fused_add\n"
            "  %bitcast.4 = f32[2,4]{1,0} bitcast(%c.1)\n",
        ),
        (
            "parameters",
            "  %x.1 = f32[8]{0} parameter(0)\n"
            '  %dot = f32[8]{0} fusion(%x.1), kind=kCustom, backend_config={"sizes":["16"]}\n'
            "  %c.1 = f32[8]{0} parameter(1)\n",
            "  %c.1 = f32[8]{0} parameter(1)\n"
            "  %x.1 = f32[8]{0} parameter(0)\n"
            '  %dot = f32[8]{0} fusion(%x.1), kind=kCustom, backend_config={"sizes":["16"]}\n',
        ),
    ],
)
def test_a_rule_removes_a_difference(rule: str, before: str, after: str) -> None:
    assert before in HLO, rule
    assert normal_hlo(HLO.replace(before, after)) == normal_hlo(HLO), rule


@pytest.mark.parametrize(
    ("what", "before", "after"),
    [
        ("an operand inside", "add(%param_0.5, %param_1.198)", "add(%param_0.5, %param_0.5)"),
        ("the order of operands", "add(%param_0.5, %param_1.198)", "add(%param_1.198, %param_0.5)"),
        ("an opcode", " add(", " subtract("),
        ("a shape", "%slice.1 = f32[4]{0}", "%slice.1 = f32[2]{0}"),
        ("bounds", "slice={[0:4]}", "slice={[4:8]}"),
        ("a tile", '"sizes":["16"]', '"sizes":["32"]'),
        ("an operand of the entry", "fusion(%dot, %c.1)", "fusion(%x.1, %c.1)"),
        ("an operand of a bitcast", "bitcast(%c.1)", "bitcast(%x.1)"),
        ("a bitcast's shape", "f32[2,4]{1,0} bitcast", "f32[4,2]{1,0} bitcast"),
        ("which computation is called", "kLoop, calls=%fused_add", "kLoop, calls=%fused_subtract"),
        ("an alias", "{0}: (1, {}, may-alias)", "{0}: (0, {}, may-alias)"),
        ("a fusion's kind", "kind=kLoop", "kind=kInput"),
        ("which parameter", "%c.1 = f32[8]{0} parameter(1)", "%c.1 = f32[8]{0} parameter(2)"),
        ("a name of the entry", "%loop_add", "%loop_subtract"),
    ],
)
def test_a_real_change_shows(what: str, before: str, after: str) -> None:
    assert before in HLO, what
    assert normal_hlo(HLO.replace(before, after)) != normal_hlo(HLO), what


def scalar(index: int, name: str, shape: str = "f32[]", size: int = 4) -> BufferAllocation:
    value = logical_buffer(name, 0, size, shape)
    return BufferAllocation(index, size, (AllocationKind.THREAD_LOCAL,), values=(value,))


TEMP = BufferAllocation(
    0,
    96,
    (AllocationKind.PREALLOCATED_TEMP,),
    values=(logical_buffer("a", 0, 32, "f32[8]{0}"), logical_buffer("b", 64, 32, "f32[8]{0}")),
)
FUSION = instruction("b", "fusion", "f32[8]{0}", ("a",), fusion_kind="kLoop")
MODULE = HloModule("m", {"main": Computation("main", (FUSION,), "b")}, "main")
PLAN = Plan(
    (TEMP, scalar(1, "lhs.1"), scalar(2, "rhs.1", "s32[]")),
    module=MODULE,
    thunks=(Thunk("kCustomKernel", 0, "a grid: [1]"), Thunk("kCustomKernel", 0, "b grid: [1]")),
)


def form(plan: Plan, hlo: str = HLO, before: str = HLO) -> NormalForm:
    files = {"after_optimizations.txt": hlo, "before_optimizations.txt": before}
    encoded = {name: text.encode() for name, text in files.items()}
    return normal_form(Dump(plan, facts=MANIFEST, path=Path("dump")), encoded)


def test_order_and_names_of_thread_locals_do_not_matter() -> None:
    swapped = (TEMP, scalar(1, "x.9", "s32[]"), scalar(2, "y.3"))
    assert differences(form(PLAN), form(replace(PLAN, allocations=swapped)), name="step") == []


@pytest.mark.parametrize(
    "allocations",
    [
        (replace(TEMP, size_bytes=97), *PLAN.allocations[1:]),
        (
            replace(TEMP, values=(TEMP.values[0], replace(TEMP.values[1], offset_bytes=32))),
            *PLAN.allocations[1:],
        ),
        (replace(TEMP, kinds=(AllocationKind.MAYBE_LIVE_OUT,)), *PLAN.allocations[1:]),
        (*PLAN.allocations, scalar(3, "z.1")),
        (TEMP, scalar(1, "lhs.1", "f64[]", 8), PLAN.allocations[2]),
    ],
    ids=["size", "offset", "kind", "one more thread-local", "a larger thread-local"],
)
def test_a_real_change_of_allocations_shows(allocations: tuple[BufferAllocation, ...]) -> None:
    lines = differences(form(PLAN), form(replace(PLAN, allocations=allocations)), name="step")
    assert "same HLO, different plan" in lines[0]


def test_the_order_of_thunks_matters() -> None:
    thunks = tuple(reversed(PLAN.thunks or ()))
    lines = differences(form(PLAN), form(replace(PLAN, thunks=thunks)), name="step")
    assert "[thunks]" in lines[0]


def test_the_first_stage_that_differs_is_named() -> None:
    other = HLO.replace('"sizes":["16"]', '"sizes":["32"]')
    assert "XLA's optimisation" in differences(form(PLAN), form(PLAN, other), name="step")[0]
    assert "lowering" in differences(form(PLAN), form(PLAN, other, other), name="step")[0]


def test_the_order_of_computations_does_not_matter() -> None:
    start, middle, end = HLO.index("%fused_add ("), HLO.index("%fused_sub"), HLO.index("ENTRY")
    swapped = HLO[:start] + HLO[middle:end] + HLO[start:middle] + HLO[end:]
    assert normal_hlo(swapped) == normal_hlo(HLO)


def test_the_order_of_the_schedule_matters() -> None:
    lines = HLO.splitlines()
    first = next(number for number, line in enumerate(lines) if "%dot =" in line)
    other = next(number for number, line in enumerate(lines) if "%loop_add =" in line)
    lines[first], lines[other] = lines[other], lines[first]
    assert normal_hlo("\n".join(lines)) != normal_hlo(HLO)
