"""Which instructions of two small programs `xlapipe diff` takes for the same."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.shared.small_hlo import Place, plan_of_text
from xlapipe.differences import Difference, compare
from xlapipe.differences.changes import InstructionChange
from xlapipe.differences.matching import match
from xlapipe.plans import AllocationKind
from xlapipe.plans.program import Program

X = "f32[8]{0}"


def program(entry: str, *computations: str, memory: Mapping[str, Place] | None = None) -> Program:
    """A program whose parameters are p, q, … in this order; `memory` places other values."""
    text = "\n".join(
        ("HloModule m, is_scheduled=true\n", *computations, "ENTRY %main (p: f32[8]) -> f32[8] {")
    )
    parameters = [
        line.split()[0].strip("%") for line in entry.splitlines() if " parameter(" in line
    ]
    places: dict[str, Place] = {name: number for number, name in enumerate(parameters)}
    lines = [f"  {line.strip()}" for line in entry.splitlines() if line.strip()]
    plan = plan_of_text("\n".join((text, *lines, "}\n")), {**places, **(memory or {})})
    allocations = tuple(
        replace(allocation, kinds=(AllocationKind.PARAMETER,), parameter_number=allocation.index)
        if allocation.index < len(parameters)
        else replace(allocation, kinds=(AllocationKind.MAYBE_LIVE_OUT,))
        for allocation in plan.allocations
    )
    return Program(replace(plan, allocations=allocations))


def texts(difference: Difference) -> list[str]:
    return [sentence.text for sentence in difference.sentences()]


def pairs(a: Program, b: Program) -> set[tuple[str | None, str | None]]:
    """Names in A and B of every instruction that differs."""
    return {
        (change.a, change.b)
        for change in compare(a, b).changes
        if isinstance(change, InstructionChange)
    }


def op(name: str, line: int = 1) -> str:
    return f'metadata={{op_name="jit(step)/{name}" source_file="step.py" source_line={line}}}'


TWO = f"""
%p = {X} parameter(0)
%q = {X} parameter(1)
"""
DIFFERENCE = f"{TWO}ROOT %d = {X} subtract(%p, %q), {op('sub')}"


def test_exchanged_arguments_are_other_values() -> None:
    exchanged = program(DIFFERENCE.replace("%p, %q", "%q, %p"))
    assert texts(compare(program(DIFFERENCE), exchanged)) == [
        "subtract at step.py:1 reads different values"
    ]


def test_exchanged_operands_in_the_body_of_a_fusion_are_another_body() -> None:
    body = f"""%f (a: f32[8], b: f32[8]) -> f32[8] {{
  %a = {X} parameter(0)
  %b = {X} parameter(1)
  ROOT %s = {X} subtract(%a, %b)
}}
"""
    entry = f"{TWO}ROOT %d = {X} fusion(%p, %q), kind=kLoop, calls=%f, {op('sub')}"
    exchanged = program(entry, body.replace("subtract(%a, %b)", "subtract(%b, %a)"))
    assert texts(compare(program(entry, body), exchanged)) == [
        "fusion sub at step.py:1 does the same operations in a different form"
    ]


def test_an_argument_in_front_of_the_others_changes_no_instruction() -> None:
    more = f"%o = {X} parameter(0)\n" + DIFFERENCE.replace("parameter(1)", "parameter(2)").replace(
        "%p = f32[8]{0} parameter(0)", "%p = f32[8]{0} parameter(1)"
    )
    named = {"%o = ": "weights", "%p = ": "x", "%q = ": "y"}

    def with_names(entry: str) -> Program:
        for start, name in named.items():
            entry = entry.replace(start, start, 1)
            entry = "\n".join(
                f'{line}, metadata={{op_name="{name}"}}' if line.startswith(start) else line
                for line in entry.splitlines()
            )
        return program(entry)

    assert texts(compare(with_names(DIFFERENCE), with_names(more))) == [
        "argument weights f32[8]: only in B",
        "argument weights: 32 B, only in B",
    ]


CONDITION = f"""%condition (c: (f32[8], f32[8])) -> pred[] {{
  %c = ({X}, {X}) parameter(0)
  ROOT %go = pred[] constant(true)
}}
"""


def body(result: str) -> str:
    return f"""%body (t: (f32[8], f32[8])) -> (f32[8], f32[8]) {{
  %t = ({X}, {X}) parameter(0)
  %one = {X} get-tuple-element(%t), index=0
  %two = {X} get-tuple-element(%t), index=1
  %new = {X} {result}, {op("while/body/step", 5)}
  ROOT %next = ({X}, {X}) tuple(%new, %two)
}}
"""


def loop(start: str, result: str = "subtract(%one, %two)") -> Program:
    entry = f"""{TWO}
%a = {X} negate(%p), {op("neg", 2)}
%b = {X} tanh(%q), {op("tanh", 3)}
%start = ({X}, {X}) tuple({start})
%w = ({X}, {X}) while(%start), condition=%condition, body=%body, {op("while", 4)}
ROOT %r = {X} get-tuple-element(%w), index=0"""
    return program(entry, CONDITION, body(result))


def test_a_loop_that_starts_with_another_value_reads_different_values() -> None:
    assert texts(compare(loop("%a, %b"), loop("%a, %p"))) == [
        "while at step.py:4 reads different values"
    ]


def test_a_loop_whose_body_reads_another_element_differs_in_its_body() -> None:
    other = loop("%a, %b", "subtract(%two, %one)")
    assert texts(compare(loop("%a, %b"), other)) == [
        "subtract at step.py:5 (while/body) reads different values"
    ]
    assert texts(compare(loop("%a, %b"), loop("%a, %b", "add(%one, %two)"))) == [
        "add at step.py:5 (while/body) opcode subtract → add"
    ]


def fusion(name: str, ops: str, own: str, shape: str = "f32[8]") -> tuple[str, str]:
    """A fusion of `p` whose body has one instruction per letter of `ops`, and the body."""
    lines = [f"  %{name}_p = {X} parameter(0)"]
    for number, letter in enumerate(ops):
        root = "ROOT " if number == len(ops) - 1 else ""
        lines.append(f"  {root}%{name}_{number} = {shape} negate(%{name}_p), {op(letter, 1)}")
    body = "\n".join((f"%body_{name} (y: f32[8]) -> {shape} {{", *lines, "}", ""))
    call = f"{shape} fusion(%p), kind=kLoop, calls=%body_{name}, {op(own, 1)}"
    return f"%{name} = {call}", body


@pytest.mark.parametrize(
    ("ops", "paired"),
    [
        ("abc", True),
        # Two of four op_names in common, and two of six.
        ("abd", True),
        ("abdef", False),
    ],
)
def test_fusions_with_other_boundaries_are_paired_by_what_they_have_in_common(
    ops: str, paired: bool
) -> None:
    one, body_one = fusion("one", "abc", "c")
    two, body_two = fusion("two", ops, ops[-1], "f32[8,1]")
    a = program(f"%p = {X} parameter(0)\nROOT {one}", body_one)
    b = program(f"%p = {X} parameter(0)\nROOT {two}", body_two)
    assert pairs(a, b) == ({("one", "two")} if paired else {("one", None), (None, "two")})


def test_of_equal_op_names_the_instruction_with_the_same_users_is_the_pair() -> None:
    """Keys and values of an attention layer are sliced from one product in the same scope."""
    entry = f"""{TWO}
    %k = {X} negate(%p), {op("split")}
    %v = {X} negate(%p), {op("split")}
    %s = {X} tanh(%k), {op("scores", 2)}
    ROOT %o = {X} add(%s, %v), {op("out", 3)}"""
    swapped = entry.replace("tanh(%k)", "tanh(%v)").replace("add(%s, %v)", "add(%s, %k)")
    assert texts(compare(program(entry), program(swapped))) == [
        "schedule: 1 of 4 instructions run in a different order"
    ]


def test_without_metadata_the_reader_of_paired_operands_is_the_pair() -> None:
    entry = f"""{TWO}
    %a = {X} negate(%p)
    %b = {X} tanh(%a)
    %c = {X} negate(%q)
    ROOT %d = {X} tanh(%c)"""
    longer = entry.replace("%c = f32[8]{0} negate(%q)", f"%n = {X} sine(%q)\n%c = {X} negate(%n)")
    assert pairs(program(entry), program(longer)) == {("c", None), (None, "c"), (None, "n")}
    # The order of the schedule decides among equal ones.
    other = entry.replace("%b = f32[8]{0} tanh(%a)", f"%b = {X} tanh(%a), {op('new')}")
    assert pairs(program(entry), program(other)) == set()


def products(*shapes: str) -> Program:
    """Matrix products of one line and op_name, `MxK,KxN`, which read values without a pair."""
    lines = [f"%p = {X} parameter(0)"]
    for number, shape in enumerate(shapes):
        left, right = (operand.replace("x", ",") for operand in shape.split(" "))
        result = f"{left.split(',')[0]},{right.split(',')[1]}"
        lines += [
            f"%l{shape[0]}{number} = f32[{left}] broadcast(%p), dimensions={{}}",
            f"%r{shape[0]}{number} = f32[{right}] broadcast(%p), dimensions={{}}",
            f"%dot{shape[0]} = f32[{result}] dot(%l{shape[0]}{number}, %r{shape[0]}{number}), "
            f"lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {op('dot_general')}",
        ]
    return program("\n".join([*lines, f"ROOT %end = {X} negate(%p)"]))


def test_products_of_one_line_are_paired_by_their_dimensions() -> None:
    """Both sides have other operands, and run the products in another order."""
    a, b = products("2x4 4x8", "8x2 2x4"), products("8x2 2x4", "2x4 4x8")
    matching = match(a, b)
    assert {a: b for a, b in matching.instructions.items() if a.startswith("dot")} == {
        "dot2": "dot2",
        "dot8": "dot8",
    }


def test_outputs_are_named_by_their_index_whatever_the_numbers_of_allocations() -> None:
    """The tenth of twelve results of one type comes after the second."""
    count = 12
    shape = f"({', '.join([X] * count)})"
    body = "\n".join(
        (
            f"%body (y: f32[8]) -> {shape} {{",
            f"  %y = {X} parameter(0)",
            *(f"  %r{number} = {X} negate(%y)" for number in range(count)),
            f"  ROOT %all = {shape} tuple({', '.join(f'%r{n}' for n in range(count))})",
            "}",
            "",
        )
    )
    entry = "\n".join(
        (
            f"%p = {X} parameter(0)",
            f"%f = {shape} fusion(%p), kind=kLoop, calls=%body, {op('layer/')}",
            *(f"%g{n} = {X} get-tuple-element(%f), index={n}" for n in range(count)),
            f"ROOT %t = {shape} tuple({', '.join(f'%g{n}' for n in range(count))})",
        )
    )
    memory: dict[str, Place] = {f"f{{{n}}}": (n * 7) % count + 1 for n in range(count)}
    original = program(entry, body, memory=memory)
    index = memory["f{10}"]
    larger = tuple(
        replace(allocation, size_bytes=allocation.size_bytes + 8 * (allocation.index == index))
        for allocation in original.plan.allocations
    )
    grown = replace(original, plan=replace(original.plan, allocations=larger))
    assert texts(compare(original, grown)) == ["output output 10: 32 B → 40 B"]
    swapped = program(entry.replace("tuple(%g0, %g1,", "tuple(%g1, %g0,"), body, memory=memory)
    fused = "fusion at step.py:1 (layer)"
    assert texts(compare(original, swapped))[:2] == [
        f"output output 0 is another result of {fused}",
        f"output output 1 is another result of {fused}",
    ]
