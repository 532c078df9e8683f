"""Trip counts of TPU loops, from the constants of their counters."""

import pytest

from xlapipe.dump.readers.hlo_proto import LiteralProto
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.instruction_attributes import integer_of_proto, integer_of_text
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.plans.hlo import HloModule
from xlapipe.plans.loops import executions, find_loops
from xlapipe.plans.shapes import shape_of

S32 = "s32[]{:T(128)}"
CARRY = f"({S32}, f32[8,128]{{1,0:T(8,128)}}, {S32})"
COUNTED = "compare(%state#0, %limit), direction=LT"
FROM_ZERO = f"{S32} constant(0)"
# The third element of the carry.
HANDED_ON = "%state.1#2"


def looping(
    *,
    start: str = FROM_ZERO,
    step: int = 1,
    limit: int = 7,
    compare: str = COUNTED,
    added: str = "add(%counter, %one)",
    third: str = HANDED_ON,
) -> HloModule:
    """A loop as libtpu writes that of a `scan`: element 0 of its carry counts the trips."""
    text = f"""HloModule jit_step

%condition (state: (s32[], f32[8,128], s32[])) -> pred[] {{
  %limit = {S32} constant({limit})
  %state = {CARRY} parameter(0)
  ROOT %lt = pred[]{{:T(512)}} {compare}
}}

%body (state.1: (s32[], f32[8,128], s32[])) -> (s32[], f32[8,128], s32[]) {{
  %one = {S32} constant({step})
  %state.1 = {CARRY} parameter(0)
  %counter = s32[]{{:T(128)S(6)}} copy(%state.1#0)
  %add = {S32} {added}
  ROOT %tuple.1 = {CARRY} tuple(%add, %state.1#1, {third})
}}

ENTRY %main (x: f32[8,128], n: s32[]) -> (s32[], f32[8,128], s32[]) {{
  %x = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %n = {S32} parameter(1)
  %nine = {S32} constant(9)
  %start = {start}
  %copy = {S32} copy(%start)
  %tuple = {CARRY} tuple(%copy, %x, %nine)
  ROOT %while = {CARRY} while(%tuple), condition=%condition, body=%body
}}
"""
    return parse_hlo(SourceText("m.txt", text)).module


@pytest.mark.parametrize(
    ("module", "trips"),
    [
        (looping(), 7),
        (looping(start=f"{S32} constant(3)"), 4),
        (looping(start=f"{S32} constant(-3)"), 10),
        (looping(start=f"{S32} constant(7)"), 0),
        (looping(start=f"{S32} constant(8)"), 0),
        (looping(step=3), 3),
        (looping(compare="compare(%state#0, %limit), direction=LE"), 8),
        (looping(compare="compare(%limit, %state#0), direction=GT"), 7),
        (looping(compare="compare(%limit, %state#0), direction=GE"), 8),
        (
            looping(
                start=f"{S32} constant(9)",
                step=-1,
                compare="compare(%limit, %state#0), direction=LT",
            ),
            2,
        ),
        (
            looping(
                start=f"{S32} constant(9)",
                step=-1,
                compare="compare(%limit, %state#0), direction=LE",
            ),
            3,
        ),
        (looping(start=f"{S32} constant(9)", step=-1, compare=COUNTED.replace("LT", "GT")), 2),
        (looping(start=f"{S32} constant(9)", step=-1, compare=COUNTED.replace("LT", "GE")), 3),
        (looping(added="add(%one, %counter)"), 7),
        # The limit is an element of the carry that no trip changes.
        (looping(compare="compare(%state#0, %state#2), direction=LT"), 9),
    ],
)
def test_a_counter_with_constant_bounds_gives_the_trips(module: HloModule, trips: int) -> None:
    (loop,) = find_loops(module)
    assert loop.trips == trips
    assert executions(module) == {"main": 1, "body": trips, "condition": trips + 1}


@pytest.mark.parametrize(
    "module",
    [
        looping(start=f"{S32} bitcast(%n)"),
        looping(compare="compare(%state#0, %limit), direction=NE"),
        looping(compare="and(%state#0, %limit)"),
        looping(compare="compare(%state#0, %state#0), direction=LT"),
        looping(compare="compare(%state#0, %state#2), direction=LT", third="%add"),
        looping(step=0),
        looping(step=-1),
        looping(added="multiply(%counter, %one)"),
        looping(added="add(%counter, %counter)"),
        # Another element of the carry is added to.
        looping(added="add(%state.1#2, %one)"),
    ],
    ids=lambda _: "",
)
def test_any_other_loop_has_an_unknown_trip_count(module: HloModule) -> None:
    (loop,) = find_loops(module)
    assert loop.trips is None
    assert executions(module)["body"] is None


@pytest.mark.parametrize("number", [0, -3, 2**31 - 1])
def test_both_readers_read_a_scalar_constant(number: int) -> None:
    literal = LiteralProto(s32s=[number]).SerializeToString()
    assert integer_of_proto(shape_of("s32[]"), literal) == number
    assert integer_of_text(shape_of("s32[]"), str(number)) == number


@pytest.mark.parametrize(
    ("shape", "literal", "value"),
    [
        ("f32[]", LiteralProto(), "1"),
        ("s32[2]{0}", LiteralProto(s32s=[1, 2]), "{1, 2}"),
        ("pred[]", LiteralProto(), "true"),
    ],
)
def test_other_constants_have_no_integer(shape: str, literal: LiteralProto, value: str) -> None:
    assert integer_of_proto(shape_of(shape), literal.SerializeToString()) is None
    assert integer_of_text(shape_of(shape), value) is None


def test_a_damaged_literal_has_no_integer() -> None:
    assert integer_of_proto(shape_of("s32[]"), b"\x22\xff") is None
