"""Which fusions are copies, and which memory they read, on small programs."""

from pathlib import Path

import pytest

from tests.shared.programs import program_of
from tests.shared.small_hlo import plan_of_text
from xlapipe.expect import NoCopyAbove
from xlapipe.plans.copies import Copy, find_copies
from xlapipe.plans.origins import Origins
from xlapipe.plans.program import ArgumentLeaf

ROWS = "f32[8,128]{1,0}"
BYTES = 8 * 128 * 4


def fused(*lines: str, parameters: str = "") -> str:
    """A fusion `f` of the parameter `a` and of an index, in other memory than theirs.

    Its body has the parameters `x` and `i`, and the given instructions.
    """
    body = "\n".join(f"  {line}" for line in lines)
    return f"""HloModule m, is_scheduled=true

%body (x: f32[8,128], i: s32[]) -> f32[8,128] {{
  %x = {ROWS} parameter(0)
  %i = s32[] parameter(1)
{body}
}}

ENTRY %main (a: f32[8,128], n: s32[]) -> f32[8,128] {{
  %a = {ROWS} parameter(0)
  %n = s32[] parameter(1)
  ROOT %f = {ROWS} fusion(%a, %n), kind=kLoop, calls=%body
}}
"""


def copies(text: str, memory: dict[str, int] | None = None) -> tuple[Copy, ...]:
    return find_copies(plan_of_text(text, {"a": 0, "f": 1} if memory is None else memory))


REVERSED = f"ROOT %r = {ROWS} reverse(%x), dimensions={{0}}"


@pytest.mark.parametrize(
    "index",
    [
        "%k = s32[] add(%i, %i)",
        "%k = s64[] convert(%i)",
        "%k = s32[] multiply(%i, %i)",
        "%k = s32[] subtract(%i, %i)",
        "%k = u32[] and(%i, %i)",
        "%k = u64[] or(%i, %i)",
        "%k = s8[] add(%i, %i)",
        "%k = s16[] add(%i, %i)",
        "%k = u8[] add(%i, %i)",
        "%k = u16[] add(%i, %i)",
        "%k = pred[] and(%i, %i)",
        "%k = s32[] clamp(%i, %i, %i)",
        "%k = pred[] compare(%i, %i), direction=LT",
        "%k = s32[] select(%i, %i, %i)",
        "%k = s32[] constant(7)",
        "%k = s32[8]{0} iota(), iota_dimension=0",
        "%k = s32[8]{0} broadcast(%i), dimensions={}",
    ],
)
def test_a_fusion_that_moves_data_to_computed_places_is_a_copy(index: str) -> None:
    (copy,) = copies(fused(index, REVERSED))
    assert (copy.value, copy.copied_bytes, copy.allocation, copy.read_from) == ("f", BYTES, 1, (0,))


@pytest.mark.parametrize(
    "line",
    [
        f"%y = {ROWS} add(%x, %x)",
        "%y = bf16[8,128]{1,0} convert(%x)",
        f"%y = {ROWS} negate(%x)",
        "%y = s32[] divide(%i, %i)",
    ],
)
def test_a_fusion_that_computes_from_the_data_is_not_a_copy(line: str) -> None:
    assert copies(fused(line, REVERSED.replace("%x", "%y"))) == ()


@pytest.mark.parametrize("opcode", ["broadcast", "select"])
def test_a_fusion_that_repeats_or_chooses_data_moves_none(opcode: str) -> None:
    operands = "%x), dimensions={0,1}" if opcode == "broadcast" else "%i, %x, %x)"
    assert copies(fused(f"ROOT %r = {ROWS} {opcode}({operands}")) == ()


def test_a_copy_reads_the_memory_of_the_element_that_it_names() -> None:
    """All elements of the tuple have one shape; the text names which one is read."""
    text = f"""HloModule m, is_scheduled=true

%body (x: f32[8,128], y: f32[8,128]) -> f32[8,128] {{
  %x = f32[8,1,128]{{2,1,0}} parameter(0)
  %y = {ROWS} parameter(1)
  ROOT %r = {ROWS} reverse(%y), dimensions={{0}}
}}

ENTRY %main (a: f32[8,128], b: f32[8,128]) -> f32[8,128] {{
  %b = {ROWS} parameter(1)
  %a = {ROWS} parameter(0)
  %c = {ROWS} parameter(2)
  %viewed = f32[128,8]{{1,0}} bitcast(%c)
  %again = {ROWS} bitcast(%viewed)
  %t = ({ROWS}, {ROWS}, {ROWS}) tuple(%a, %b, %again)
  %o = ({ROWS}, {ROWS}, {ROWS}) opt-barrier(%t)
  %f = {ROWS} fusion(%o#0, %o#1), kind=kLoop, calls=%body
  ROOT %g = {ROWS} copy(%o#2)
}}
"""
    moved = {
        copy.value: [(source.value, source.parameter_number) for source in copy.sources]
        for copy in copies(text, {"a": 0, "b": 1, "c": 2, "f": 3, "g": 4})
    }
    assert moved == {"f": [("b", 1)], "g": [("c", 2)]}


def test_a_copy_of_what_an_asynchronous_kernel_computes_reads_the_kernels_memory() -> None:
    text = f"""HloModule m, is_scheduled=true

%wrapped (y: f32[8,128]) -> f32[8,128] {{
  %y = {ROWS} parameter(0)
  ROOT %inner = {ROWS} negate(%y)
}}

ENTRY %main (a: f32[8,128]) -> f32[8,128] {{
  %a = {ROWS} parameter(0)
  %s = (({ROWS}), {ROWS}) async-start(%a), calls=%wrapped
  %d = {ROWS} async-done(%s)
  ROOT %f = {ROWS} copy(%d)
}}
"""
    (copy,) = copies(text, {"a": 0, "inner": 1, "f": 2})
    assert copy.read_from == (1,)


def test_an_update_of_a_value_without_memory_is_in_place() -> None:
    """In a loop's body, a buffer assignment lists the carry's memory with the loop."""
    text = f"""HloModule m, is_scheduled=true

ENTRY %main (a: f32[8,128]) -> f32[8,128] {{
  %a = {ROWS} parameter(0)
  %u = f32[1,128]{{1,0}} parameter(1)
  %i = s32[] parameter(2)
  ROOT %f = {ROWS} dynamic-update-slice(%a, %u, %i, %i)
}}
"""
    assert copies(text, {"f": 1}) == ()
    (copy,) = copies(text, {"a": 0, "f": 1})
    assert copy.copied_bytes == BYTES


@pytest.mark.parametrize(("memory", "is_copy"), [(0, False), (1, True)])
def test_a_copy_to_the_memory_of_its_operand_through_names_is_none(
    memory: int, is_copy: bool
) -> None:
    text = f"""HloModule m, is_scheduled=true

ENTRY %main (a: f32[8,128]) -> f32[8,128] {{
  %a = {ROWS} parameter(0)
  %b = {ROWS} opt-barrier(%a)
  ROOT %f = {ROWS} copy(%b)
}}
"""
    assert bool(copies(text, {"a": 0, "f": memory})) is is_copy


A, B = (ArgumentLeaf(name, (8, 128), "float32", BYTES, False, n) for n, name in enumerate("ab"))
TEXTS = Path(__file__).with_name("texts")
SMALL = (TEXTS / "small_copies_hlo.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "of", "advice"),
    [
        ("%c = f32[128,8]{1,0} fusion(%b), kind=kInput, calls=%body", " of b", "pass b in that"),
        ("%c = f32[8,128]{0,1} copy(%b)", " of b", "pass b in that order"),
        ("%c = f32[8,128]{0,1} copy(%n)", "", "compute it in that order, or write what"),
        (f"%c = {ROWS} copy(%b)", " of b", "donate the argument b, update it in place"),
        (f"%c = {ROWS} copy(%n)", "", "donate the buffer, update it in place"),
        ("%c = f32[8,256]{1,0} concatenate(%a, %b), dimensions={1}", " of a, b", "use the parts"),
        (
            "%c = f32[8,64]{1,0} slice(%b), slice={[0:8], [0:64]}",
            " of b",
            "read the part in an operation",
        ),
    ],
)
def test_advice_against_a_copy_fits_its_kind_and_names_the_argument(
    line: str, of: str, advice: str
) -> None:
    memory = {"a": 0, "b": 1, "n": 2, "c": 3, "d": 4, "e": 5}
    program = program_of(plan_of_text(SMALL.replace("OF_B", line), memory), arguments=(A, B))
    (violation,) = NoCopyAbove(BYTES // 4).check(program).violations
    assert violation.found.endswith(f" B copied by c{of}")
    assert advice in violation.advice


def test_advice_against_another_order_of_an_output() -> None:
    text = SMALL.replace("OF_B", "%c = f32[128,8]{1,0} fusion(%b), kind=kInput, calls=%body")
    text = text.replace("tuple(%d, %e)", "tuple(%d, %c)")
    program = program_of(plan_of_text(text, {"b": 1, "c": 3, "d": 4}), arguments=(A, B))
    (violation,) = NoCopyAbove(0).check(program).violations
    assert "the output is b in another order of dimensions" in violation.advice


def test_an_argument_that_is_returned_as_it_came_is_not_returned_instead() -> None:
    text = SMALL.replace("OF_B", f"%c = {ROWS} copy(%b)").replace("tuple(%d, %e)", "tuple(%d, %c)")
    program = program_of(plan_of_text(text, {"b": 1, "c": 3}), arguments=(A, B))
    (violation,) = NoCopyAbove(0).check(program).violations
    assert violation.advice.startswith("do not return the argument b")


@pytest.mark.parametrize("last_first", [False, True])
def test_a_chain_of_updates_is_followed_once(
    last_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 50 updates in place of an argument is copied."""
    count = 50
    order = list(reversed(range(count)) if last_first else range(count))
    lines = [f"%u{n} = {ROWS} dynamic-update-slice(%u{n - 1}, %r, %i, %i)" for n in range(count)]
    lines += [f"%y{n} = {ROWS} copy(%u{n})" for n in order]
    body = "\n".join(f"  {line}" for line in lines).replace("%u-1", "%a")
    text = f"""HloModule m, is_scheduled=true

ENTRY %main (a: f32[8,128]) -> f32[8,128] {{
  %a = {ROWS} parameter(0)
  %r = f32[1,128]{{1,0}} parameter(1)
  %i = s32[] parameter(2)
{body}
  ROOT %f = {ROWS} negate(%u{count - 1})
}}
"""
    memory = {"a": 0, "f": 1} | {f"u{n}": 0 for n in range(count)}
    memory |= {f"y{n}": 2 + n for n in range(count)}
    followed = []
    nearer = Origins._nearer
    monkeypatch.setattr(
        Origins, "_nearer", lambda self, value: followed.append(value) or nearer(self, value)
    )
    chain = copies(text, memory)
    assert [copy.sources[0].parameter_number for copy in chain] == [0] * count
    assert len(followed) <= 2 * count
