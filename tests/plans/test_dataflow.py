"""Where values come from and where they go, on small HLO modules."""

import pytest

from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.plans.dataflow import Dataflow, Path, Value, dataflow_of

X = "f32[8]{0}"

NEGATES = f"""%negates (y: f32[8]) -> f32[8] {{
  %y = {X} parameter(0)
  ROOT %ny = {X} negate(%y)
}}
"""
RETURNS = f"""%returns (z: f32[8]) -> f32[8] {{
  ROOT %z = {X} parameter(0)
}}
"""
# The first element is handed on, the second is computed in each trip.
BODY = f"""%body (c: (f32[8], f32[8])) -> (f32[8], f32[8]) {{
  %c = ({X}, {X}) parameter(0)
  %kept = {X} get-tuple-element(%c), index=0
  %old = {X} get-tuple-element(%c), index=1
  %new = {X} add(%kept, %old)
  ROOT %next = ({X}, {X}) tuple(%kept, %new)
}}

%condition (d: (f32[8], f32[8])) -> pred[] {{
  %d = ({X}, {X}) parameter(0)
  ROOT %go = pred[] constant(true)
}}
"""


def dataflow(entry: str, *computations: str) -> Dataflow:
    text = "\n".join(
        ("HloModule m, is_scheduled=true\n", *computations, "ENTRY %main (a: f32[8]) -> f32[8] {")
    )
    return dataflow_of(parse_hlo(SourceText("m.txt", f"{text}{entry}}}\n")).module)


def value(flow: Dataflow, name: str, path: Path = ()) -> Value:
    for computation, instruction in flow.module.instructions():
        if instruction.name == name:
            return Value(computation, instruction, path)
    raise AssertionError(name)


def readers(flow: Dataflow, name: str, path: Path = (), also: frozenset[str] = frozenset()):
    return sorted(reader.instruction.name for reader in flow.readers(value(flow, name, path), also))


def definition(flow: Dataflow, name: str, path: Path = (), also: frozenset[str] = frozenset()):
    return flow.definition(value(flow, name, path), also).name


def defined(flow: Dataflow, reader: str) -> str:
    """The definition of the first operand of an instruction."""
    operand = flow.operand(value(flow, reader), 0)
    assert operand is not None
    return flow.definition(operand).name


TUPLES = dataflow(f"""
  %a = {X} parameter(0)
  %b = {X} parameter(1)
  %t = ({X}, {X}, {X}) tuple(%a, %b, %a)
  %o = ({X}, {X}, {X}) opt-barrier(%t)
  %one = {X} get-tuple-element(%o), index=1
  %zero = {X} get-tuple-element(%o), index=0
  %c = {X} copy(%zero)
  %d = {X} negate(%c)
  %e = {X} exponential(%one)
  ROOT %all = ({X}, {X}, {X}) custom-call(%t, %d), custom_call_target="f"
""")


def test_a_tuple_and_a_barrier_are_not_readers_of_their_elements() -> None:
    assert readers(TUPLES, "a") == ["all", "c"]
    assert readers(TUPLES, "b") == ["all", "e"]
    assert readers(TUPLES, "t", (1,)) == ["all", "e"]


def test_operations_that_are_asked_for_are_skipped() -> None:
    also = frozenset({"copy"})
    assert "d" in readers(TUPLES, "a", (), also)
    assert "c" not in readers(TUPLES, "a", (), also)
    assert definition(TUPLES, "c") == "c"
    assert definition(TUPLES, "c", (), also) == "a"


def test_an_element_is_defined_by_the_operand_of_its_tuple() -> None:
    assert defined(TUPLES, "e") == "b"
    assert definition(TUPLES, "o", (2,)) == "a"
    assert definition(TUPLES, "o") == "t"
    # A tuple of three has no fourth element; the module is damaged.
    assert definition(TUPLES, "t", (3,)) == "t{3}"


BRANCHES = dataflow(
    f"""
  %i = s32[] parameter(0)
  %a = {X} parameter(1)
  %b = {X} parameter(2)
  %chosen = {X} conditional(%i, %a, %b), branch_computations={{%negates, %returns}}
  ROOT %e = {X} exponential(%chosen)
""",
    NEGATES,
    RETURNS,
)


def test_a_branch_reads_the_operand_at_its_own_position() -> None:
    assert readers(BRANCHES, "a") == ["ny"]
    # The other branch returns what it is given.
    assert readers(BRANCHES, "b") == ["e"]
    assert readers(BRANCHES, "i") == ["chosen"]
    assert readers(BRANCHES, "ny") == ["e"]
    assert definition(BRANCHES, "y") == "a"
    assert definition(BRANCHES, "z") == "b"


LOOP = dataflow(
    f"""
  %a = {X} parameter(0)
  %b = {X} parameter(1)
  %start = ({X}, {X}) tuple(%a, %b)
  %w = ({X}, {X}) while(%start), condition=%condition, body=%body
  %first = {X} get-tuple-element(%w), index=0
  %second = {X} get-tuple-element(%w), index=1
  %x = {X} exponential(%first)
  ROOT %s = {X} negate(%second)
""",
    BODY,
)


def test_a_carry_that_the_body_hands_on_is_read_after_the_loop() -> None:
    assert readers(LOOP, "a") == ["new", "x"]
    assert readers(LOOP, "b") == ["new"]
    assert readers(LOOP, "new") == ["s"]
    # What the condition returns is not the loop's result.
    assert readers(LOOP, "go") == []


def test_what_a_loop_starts_with_is_in_the_memory_of_its_carry() -> None:
    assert definition(LOOP, "c", (0,)) == "c{0}"
    *_, last = LOOP.steps_to_definition(value(LOOP, "c", (0,)), into_loops=True)
    assert last.name == "a"
    assert defined(LOOP, "s") == "w{1}"


CALLS = dataflow(
    f"""
  %a = {X} parameter(0)
  %p = {X} call(%a), to_apply=%returns
  %s = (({X}), {X}) async-start(%p), calls=%negates
  %d = {X} async-done(%s)
  %f = {X} fusion(%d), kind=kLoop, calls=%fused
  ROOT %e = {X} exponential(%f)
""",
    NEGATES,
    RETURNS,
    f"""%fused (g: f32[8]) -> f32[8] {{
  %g = {X} parameter(0)
  %m = {X} multiply(%g, %g)
  ROOT %v = {X} bitcast(%m)
}}
""",
)


def test_calls_and_asynchronous_computations_are_entered_and_fusions_are_readers() -> None:
    assert readers(CALLS, "a") == ["ny"]
    assert readers(CALLS, "ny") == ["f"]
    assert readers(CALLS, "f") == ["e"]
    assert definition(CALLS, "d") == "ny"
    assert definition(CALLS, "y") == "a"
    # The first element of an async-start is its operands.
    assert definition(CALLS, "s", (0,)) == "s{0}"
    assert definition(CALLS, "p") == "a"


@pytest.mark.parametrize(
    ("start", "done", "element"),
    [
        ("(f32[8], f32[8], u32[]) copy-start(%a)", "copy-done", 0),
        ("(f32[8], f32[8]) collective-permute-start(%a)", "collective-permute-done", 1),
        ("(f32[8], f32[8]) all-gather-start(%a)", "all-gather-done", 1),
        ("f32[8] all-reduce-start(%a)", "all-reduce-done", None),
    ],
)
def test_a_done_is_the_result_among_the_elements_of_its_start(
    start: str, done: str, element: int | None
) -> None:
    flow = dataflow(f"""
  %a = {X} parameter(0)
  %s = {start}
  %d = {X} {done}(%s)
  ROOT %e = {X} exponential(%d)
""")
    name = "s" if element is None else f"s{{{element}}}"
    assert definition(flow, "d") == name
    assert readers(flow, "s", () if element is None else (element,)) == ["e"]


def test_the_operand_of_a_copy_start_is_found_like_that_of_a_copy() -> None:
    flow = dataflow(f"""
  %a = {X} parameter(0)
  %s = ({X}, {X}, u32[]) copy-start(%a)
  ROOT %d = {X} copy-done(%s)
""")
    assert definition(flow, "d", (), frozenset({"copy-start"})) == "a"


def test_origins_are_the_operations_that_compute_a_value_across_fusions() -> None:
    flow = dataflow(
        f"""
  %a = {X} parameter(0)
  %m = {X} multiply(%a, %a)
  %t = {X} transpose(%m), dimensions={{0}}
  %b = bf16[8]{{0}} convert(%t)
  %f = bf16[4]{{0}} fusion(%a, %b), kind=kLoop, calls=%fused
  ROOT %r = bf16[] custom-call(%f), custom_call_target="f"
""",
        """%fused (g: f32[8], h: bf16[8]) -> bf16[4] {
  %g = f32[8]{0} parameter(0)
  %h = bf16[8]{0} parameter(1)
  %p = bf16[16]{0} pad(%h, %h), padding=0_8
  %c = bf16[16]{0} copy(%p)
  ROOT %s = bf16[4]{0} slice(%c), slice={[0:4]}
}
""",
    )
    computation, instruction, _ = value(flow, "r")
    origins = flow.origins(Value(computation, instruction))
    assert [origin.instruction.name for origin in origins] == ["m"]


NESTED = dataflow(
    f"""
  %a = {X} parameter(0)
  %b = {X} parameter(1)
  %c = {X} parameter(2)
  %pair = ({X}, {X}) tuple(%b, %c)
  %all = ({X}, ({X}, {X})) tuple(%a, %pair)
  %kept = ({X}, ({X}, {X})) opt-barrier(%all)
  %s = ((({X}, ({X}, {X}))), ({X}, {X})) async-start(%kept), calls=%two
  %d = ({X}, {X}) async-done(%s)
  %first = {X} get-tuple-element(%d), index=0
  %second = {X} get-tuple-element(%d), index=1
  %e = {X} exponential(%first)
  ROOT %f = {X} tanh(%second)
""",
    f"""%two (p: (f32[8], (f32[8], f32[8]))) -> (f32[8], f32[8]) {{
  %p = ({X}, ({X}, {X})) parameter(0)
  %inner = ({X}, {X}) get-tuple-element(%p), index=1
  %x = {X} get-tuple-element(%inner), index=0
  %y = {X} get-tuple-element(%inner), index=1
  %nx = {X} negate(%x)
  %ny = {X} abs(%y)
  ROOT %both = ({X}, {X}) tuple(%nx, %ny)
}}
""",
)


def test_elements_of_tuples_in_tuples() -> None:
    assert definition(NESTED, "kept", (1, 0)) == "b"
    assert definition(NESTED, "kept", (1, 1)) == "c"
    assert (readers(NESTED, "b"), readers(NESTED, "c")) == (["nx"], ["ny"])
    assert defined(NESTED, "ny") == "c"
    assert (defined(NESTED, "e"), defined(NESTED, "f")) == ("nx", "ny")
    assert (readers(NESTED, "nx"), readers(NESTED, "ny")) == (["e"], ["f"])
    assert value(NESTED, "kept", (1, 0)).name == "kept{1,0}"


def test_an_operand_that_an_instruction_does_not_have_is_none() -> None:
    assert NESTED.operand(value(NESTED, "e"), 1) is None


def test_origins_are_of_the_operand_that_the_fusion_reads() -> None:
    flow = dataflow(
        f"""
  %a = {X} parameter(0)
  %m = {X} multiply(%a, %a)
  %n = {X} negate(%a)
  ROOT %f = {X} fusion(%m, %n), kind=kLoop, calls=%first
""",
        f"""%first (g: f32[8], h: f32[8]) -> f32[8] {{
  %g = {X} parameter(0)
  %h = {X} parameter(1)
  ROOT %c = {X} copy(%g)
}}
""",
    )
    computation, instruction, _ = value(flow, "f")
    origins = flow.origins(Value(computation, instruction))
    assert [origin.instruction.name for origin in origins] == ["m"]
