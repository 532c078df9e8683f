"""How many bytes of a donated leaf a step writes, and how many of them change."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared.programs import program_of
from tests.shared.small_hlo import plan_of_text
from xlapipe.expect import Aliased, Donated
from xlapipe.plans import InputOutputAlias
from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.plans.donation import Donation, donations
from xlapipe.plans.leaf_writes import LeafWrites, leaf_writes
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program

# A cache of 64 rows of 64 elements, of which a step writes one.
CACHE, WIDE, ROW = "bf16[64,64]{1,0}", "f32[64,64]{1,0}", "bf16[1,64]{1,0}"
SIZE, ROW_BYTES = 64 * 64 * 2, 64 * 2

TEXTS = Path(__file__).with_name("texts")
FUSED = (TEXTS / "cache_in_a_fusion_hlo.txt").read_text(encoding="utf-8")
UPDATE = f"{WIDE} dynamic-update-slice(%wide, %wr, %i, %z)"
MASK = "%m = pred[64,64]{1,0} compare(%x, %y), direction=LT"

CAST = (f"%u = {UPDATE}", f"ROOT %o = {CACHE} convert(%u)")
SCALED = (
    f"%s = {WIDE} multiply(%wide, %half)",
    f"%u = {WIDE} dynamic-update-slice(%s, %wr, %i, %z)",
    f"%d = {WIDE} multiply(%u, %double)",
    f"ROOT %o = {CACHE} convert(%d)",
)
ROLLED = (
    "%s = bf16[63,64]{1,0} slice(%x), slice={[1:64], [0:64]}",
    f"ROOT %o = {CACHE} concatenate(%s, %r), dimensions={{0}}",
)
MASKED = (MASK, f"ROOT %o = {CACHE} select(%m, %y, %x)")
ONE_HOT = (
    "%rows = s32[64]{0} iota(), iota_dimension=0",
    "%at = s32[64]{0} broadcast(%i), dimensions={}",
    "%hit = pred[64]{0} compare(%rows, %at), direction=EQ",
    "%m = pred[64,64]{1,0} broadcast(%hit), dimensions={0}",
    f"ROOT %o = {CACHE} select(%m, %y, %x)",
)
IN_PLACE = (f"ROOT %o = {CACHE} dynamic-update-slice(%x, %r, %i, %z)",)
TRAINED = (f"ROOT %o = {CACHE} subtract(%x, %y)",)
# A stencil computes every element, and then sets those of the border.
STENCIL = (
    f"%s = {CACHE} add(%x, %y)",
    f"ROOT %o = {CACHE} dynamic-update-slice(%s, %r, %i, %z)",
)
# What is inserted is a row of the cache, but another one after it is doubled.
DOUBLED = (
    f"%s = {ROW} dynamic-slice(%x, %i, %z), dynamic_slice_sizes={{1,64}}",
    "%w = f32[1,64]{1,0} convert(%s)",
    "%t = f32[1,64]{1,0} broadcast(%two), dimensions={}",
    "%v = f32[1,64]{1,0} multiply(%w, %t)",
    f"%d = {ROW} convert(%v)",
    f"ROOT %o = {CACHE} dynamic-update-slice(%x, %d, %i, %z)",
)
# All elements decay, so that those that are not replaced change too.
DECAYED = (
    f"%s = {WIDE} multiply(%wide, %half)",
    f"%u = {WIDE} dynamic-update-slice(%s, %wr, %i, %z)",
    f"ROOT %o = {CACHE} convert(%u)",
)


def updated(text: str, memory: dict[str, int]) -> Program:
    plan = replace(plan_of_text(text, memory), header_aliases=(InputOutputAlias(0, ()),))
    return program_of(
        plan,
        arguments=(ArgumentLeaf("cache", (64, 64), "bfloat16", SIZE, True, 0),),
        outputs=(OutputLeaf("out", (64, 64), "bfloat16", SIZE, 0),),
    )


def fused(lines: tuple[str, ...]) -> Program:
    text = FUSED.replace("BODY", "\n".join(f"  {line}" for line in lines))
    return updated(text, {"a": 0, "f": 0})


def writes_of(program: Program) -> LeafWrites:
    writes = leaf_writes(program.plan, program.plan.aliases[0])
    assert writes is not None
    return writes


def only(program: Program) -> Donation:
    (row,) = donations(program)
    return row


@pytest.mark.parametrize(
    ("lines", "written", "changed", "rewritten"),
    [
        pytest.param(IN_PLACE, ROW_BYTES, ROW_BYTES, False, id="in-place"),
        pytest.param(CAST, SIZE, ROW_BYTES, True, id="cast"),
        pytest.param(SCALED, SIZE, ROW_BYTES, True, id="quantised"),
        pytest.param(ROLLED, SIZE, ROW_BYTES, True, id="rolled"),
        pytest.param(ONE_HOT, SIZE, ROW_BYTES, True, id="one-hot"),
        pytest.param(MASKED, SIZE, SIZE, False, id="masked"),
        pytest.param(TRAINED, SIZE, None, False, id="trained"),
        pytest.param(STENCIL, SIZE, None, False, id="stencil"),
        pytest.param(DOUBLED, ROW_BYTES, ROW_BYTES, False, id="doubled"),
        pytest.param(DECAYED, SIZE, None, False, id="decayed"),
    ],
)
def test_bytes_that_are_written_and_bytes_that_change(
    lines: tuple[str, ...], written: int, changed: int | None, rewritten: bool
) -> None:
    program = fused(lines)
    writes = writes_of(program)
    assert (writes.written_bytes, writes.changed_bytes) == (written, changed)
    row = only(program)
    assert row.holds and row.is_rewritten is rewritten
    assert Donated("cache").check(program).holds is not rewritten
    assert Aliased("cache").check(program).holds


def test_a_rewritten_cache_is_said_with_both_figures_and_the_line() -> None:
    (violation,) = Donated("cache").check(fused(CAST)).violations
    assert "8,192 B written, 128 B change" in violation.found
    assert str(violation.source) == "step.py:7"
    assert violation.advice.endswith("or allow it with Aliased(…)")


def test_a_mask_of_data_is_said_without_a_failure() -> None:
    row = only(fused(MASKED))
    assert row.writes is not None and row.writes.is_whole
    assert row.reason.startswith("8,192 B written")


LOOP = (TEXTS / "cache_in_a_loop_hlo.txt").read_text(encoding="utf-8")


def test_what_a_loop_writes_counts_once_per_trip() -> None:
    writes = writes_of(updated(LOOP, {"a": 0, "w{1}": 0, "new": 0}))
    assert (writes.written_bytes, writes.changed_bytes) == (10 * SIZE, 10 * ROW_BYTES)
    assert writes.is_rewritten


def test_values_of_a_loop_have_one_memory_also_in_its_condition() -> None:
    module = plan_of_text(LOOP).module
    assert module is not None and module.entry_computation is not None
    entry = module.entry_computation
    values = dataflow_of(module).same_memory(Value(entry, entry.by_name["f"], ()))
    assert {"c{1}", "d{1}"} <= {value.name for value in values}
