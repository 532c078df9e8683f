"""Arguments that could be donated, and copies that are too small to matter."""

from dataclasses import replace

import pytest

from tests.shared.programs import program_of
from xlapipe.plans import InputOutputAlias, Plan
from xlapipe.plans.copies import Copy
from xlapipe.plans.donatable import Donatable, argument_name, donatable
from xlapipe.plans.donation import Donation, DonationOutcome, small_copies
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program


def argument(path: str, number: int | None, rows: int = 8, donated: bool = False) -> ArgumentLeaf:
    return ArgumentLeaf(path, (rows,), "float32", 4 * rows, donated, number)


def output(index: int, rows: int = 8) -> OutputLeaf:
    return OutputLeaf(f"out[{index}]", (rows,), "float32", 4 * rows, index)


def program(
    arguments: list[ArgumentLeaf],
    outputs: list[OutputLeaf],
    *aliases: tuple[int, tuple[int, ...]],
) -> Program:
    plan = Plan(
        (), header_aliases=tuple(InputOutputAlias(number, index) for number, index in aliases)
    )
    return program_of(plan, arguments=tuple(arguments), outputs=tuple(outputs))


def test_an_argument_with_outputs_of_its_types_could_be_donated() -> None:
    step = program(
        [argument("cache['k']", 0), argument("cache['v']", 1, rows=4), argument("x", 2, rows=3)],
        [output(0), output(1, rows=4)],
    )
    assert donatable(step) == (Donatable("cache", 2, 32 + 16),)
    # One output serves one leaf.
    twins = program([argument("a", 0), argument("b", 1)], [output(0)])
    assert donatable(twins) == (Donatable("a", 1, 32),)
    # The largest is first.
    sizes = program([argument("a", 0, 4), argument("b", 1)], [output(0), output(1, 4)])
    assert [row.name for row in donatable(sizes)] == ["b", "a"]


@pytest.mark.parametrize(
    ("leaf", "made"),
    [
        (argument("x", 0, donated=True), output(0)),
        (argument("x", None), output(0)),
        (argument("x", 0), replace(output(0), constant=True)),
        (argument("x", 0), replace(output(0), dtype="int32")),
        (argument("x", 0), replace(output(0), memory_kind="pinned_host")),
        (argument("x", 0), replace(output(0), spec=("data",))),
    ],
)
def test_what_could_not_be_donated(leaf: ArgumentLeaf, made: OutputLeaf) -> None:
    assert donatable(program([argument("x", 0)], [output(0)])) != ()
    assert donatable(program([leaf], [made])) == ()


def test_an_output_that_is_written_over_another_argument_is_taken() -> None:
    leaves = [argument("x", 0), argument("y", 1, donated=True)]
    # The index of an only output is empty, of one of several its number.
    assert donatable(program(leaves, [output(0)], (1, ()))) == ()
    assert donatable(program(leaves, [output(0)], (1, (0,)))) == (Donatable("x", 1, 32),)
    both = [output(0), output(1)]
    assert donatable(program(leaves, both, (1, (0,)))) == (Donatable("x", 1, 32),)
    assert donatable(program(leaves, both, (1, (0,)), (2, (1,)))) == ()


def test_half_of_the_bytes_of_an_argument_must_fit() -> None:
    half = [argument("w.a", 0), argument("w.b", 1)]
    assert donatable(program([*half[:1], replace(half[1], shape=(2, 4))], [output(0)])) == (
        Donatable("w", 1, 32),
    )
    less = replace(half[1], shape=(9,), size_bytes=36)
    assert donatable(program([half[0], less], [output(0)])) == ()


@pytest.mark.parametrize(
    ("path", "name"),
    [("x", "x"), ("cache[0]['k.v']", "cache"), ("s.m[0]", "s"), (".x", ".x"), ("x.", "x")],
)
def test_the_parameter_in_a_path(path: str, name: str) -> None:
    assert argument_name(path) == name


def copied(path: str, size_bytes: int, copied_bytes: int) -> Donation:
    copy = Copy(
        path,
        copied_bytes,
        path,
        allocation=0,
        op_name=None,
        source=None,
        sources=(),
        updates=False,
        reorders=False,
        read_color=0,
        written_color=0,
    )
    return Donation(path, (1,), "int8", size_bytes, DonationOutcome.COPIED, copies=(copy,))


def test_small_copies_total_at_most_a_thousandth() -> None:
    rows = (copied("a", 3, 3), copied("b", 7, 7), copied("c", 1990, 1990))
    large = Donation("w", (1,), "int8", 8000, DonationOutcome.ALIASED)
    assert [row.path for row in small_copies((large, *rows))] == ["a", "b"]
    # One byte of the leaves less, and the limit is below both.
    smaller = replace(large, size_bytes=7999)
    assert [row.path for row in small_copies((smaller, *rows))] == ["a"]
