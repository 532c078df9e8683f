"""Inductor's side of a comparison with XLA, on plans of a few values, and the matching of both."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.differences.test_diff_changes import A
from tests.inductor.test_xla_side import side as xla_side_of
from xlapipe.differences.compilers.comparison import CompilerComparison, _compare
from xlapipe.differences.compilers.compiler_side import (
    CollectiveTotals,
    CompilerSide,
)
from xlapipe.differences.compilers.inductor_side import inductor_sides
from xlapipe.differences.compilers.tensor_leaves import Match, TensorLeaf, match_leaves
from xlapipe.inductor.inductor_plan import (
    GraphKind,
    InductorArgument,
    InductorCollective,
    InductorOutput,
    InductorPlan,
    InductorTotals,
)
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.reader import InductorDump
from xlapipe.plans.buffers import InputOutputAlias

TOTALS = InductorTotals(
    own_peak_bytes=100,
    argument_bytes=32,
    peak_with_arguments_bytes=132,
    output_bytes=16,
    unknown_allocations=0,
    given_argument_bytes=0,
    saved_bytes=None,
    end_bytes=60,
    live_out_bytes=16,
    aliased_bytes=0,
    constant_bytes=0,
)
ROW = Layout("float32", (8,), (1,))


def argument(number: int, name: str, given_away: bool = False) -> InductorArgument:
    return InductorArgument(number, name, ROW, 32, given_away, False, None)


def collective(output_bytes: int | None) -> InductorCollective:
    return InductorCollective(
        "op1", "all-reduce", (), (), 32, output_bytes, 2, 0, None, (), True, None
    )


FORWARD = InductorPlan(
    where="forward.py",
    graph="0_forward",
    kind=GraphKind.FORWARD,
    exact=True,
    totals=replace(TOTALS, saved_bytes=44),
    arguments=(argument(0, "primals_1"), argument(1, "primals_2", given_away=True)),
    outputs=(
        InductorOutput(0, "buf1", ROW, 32, None),
        InductorOutput(1, "buf0", ROW, 32, None, saved=True),
        InductorOutput(2, "primals_1", ROW, 32, None, argument=0),
    ),
    collectives=(collective(32),),
)
BACKWARD = InductorPlan(
    where="backward.py",
    graph="0_backward",
    kind=GraphKind.BACKWARD,
    exact=True,
    totals=replace(TOTALS, own_peak_bytes=50, end_bytes=-20),
    arguments=(argument(0, "primals_2"), argument(1, "buf0"), argument(2, "tangents_1")),
    outputs=(InductorOutput(0, "buf7", ROW, 64, None),),
    collectives=(collective(64),),
)


def sides(*plans: InductorPlan) -> Sequence[CompilerSide]:
    return inductor_sides(cast(InductorDump, SimpleNamespace(path=Path("dump"), plans=plans)))


def test_one_graph_has_the_name_of_the_dump() -> None:
    (alone,) = sides(FORWARD)
    assert alone.name == "dump"
    assert [side.name for side in sides(FORWARD, BACKWARD)] == [
        "dump: 0_forward",
        "dump: 0_backward",
        "dump: 2 graphs, one after the other",
    ]


def test_the_graphs_of_a_step_add_up() -> None:
    forward, backward, both = sides(FORWARD, BACKWARD)
    # What is saved is no argument of the step, and its tangent comes from outside.
    assert [leaf.name for leaf in both.arguments] == ["primals_1", "primals_2", "tangents_1"]
    assert both.argument_bytes == 3 * 32
    assert [leaf.name for leaf in both.outputs] == ["buf1", "buf7"]
    assert both.output_bytes == 32 + 64
    # The forward graph leaves 60 bytes, on which the backward graph holds 50.
    assert both.own_peak_bytes == both.in_use_bytes == 110
    assert (forward.kept_bytes, both.kept_bytes, backward.kept_bytes) == (44, 44, None)
    assert (forward.with_backward, both.with_backward) == (False, True)
    assert both.reused_bytes == 32
    assert both.exchanges == (CollectiveTotals("all-reduce", 2, 96),)
    assert forward.exchanges == (CollectiveTotals("all-reduce", 1, 32),)


def test_one_unknown_size_makes_a_sum_unknown() -> None:
    unknown = replace(FORWARD, collectives=(collective(32), collective(None)))
    assert sides(unknown)[0].exchanges == (CollectiveTotals("all-reduce", 2, None),)


def test_an_argument_is_reused_if_it_is_given_away_or_changed_in_place() -> None:
    changed = replace(FORWARD, aliases=(InputOutputAlias(0, None),))
    (alone,) = sides(changed)
    assert [leaf.reused for leaf in alone.arguments] == [True, True]
    # A step of JAX returns what is changed in place.
    assert alone.outputs == (
        TensorLeaf("buf1", "float32", (8,), 32),
        TensorLeaf("primals_1", "float32", (8,), 32, reused=True),
    )
    (alone,) = sides(replace(FORWARD, aliases=(InputOutputAlias(0, (0,)),)))
    assert alone.outputs == (TensorLeaf("buf1", "float32", (8,), 32, reused=True),)


def leaf(name: str, *shape: int, dtype: str | None = "float32") -> TensorLeaf:
    return TensorLeaf(name, dtype, shape, 32)


def compared(
    inductor: Sequence[TensorLeaf] = (), xla: Sequence[TensorLeaf] = (), **fields: Any
) -> CompilerComparison:
    """One side of each compiler, with these outputs."""
    ours = replace(sides(FORWARD)[0], arguments=(), outputs=tuple(inductor), **fields)
    theirs = replace(xla_side_of(A), arguments=(), outputs=tuple(xla), products={})
    return _compare(ours, theirs)


def test_outputs_that_only_xla_returns_are_what_it_keeps_for_the_backward_pass() -> None:
    out, kept = leaf("out", 8), leaf("residual", 4, 4)
    comparison = compared([out], [out, kept])
    assert comparison.kept_by_xla == 32
    assert comparison.same_interface
    # An output that XLA lacks is another interface.
    assert not compared([out, kept], [out]).same_interface
    # A graph that keeps nothing, or has its backward pass, returns all that it computes.
    for fields in ({"kept_bytes": None}, {"kept_bytes": 0}, {"with_backward": True}):
        comparison = compared([out], [out, kept], **fields)
        assert comparison.kept_by_xla is None
        assert not comparison.same_interface
        assert compared([out], [out], **fields).same_interface


@pytest.mark.parametrize(
    ("inductor", "xla", "match"),
    [
        (leaf("a", 4, 8), leaf("x", 4, 8), "same"),
        (leaf("a", 4, 8), leaf("x", 8, 4), "transposed"),
        (leaf("a", 4, 8), leaf("x", 4, 8, dtype="bfloat16"), "other dtype"),
        (TensorLeaf("a", None, None, 32), leaf("x", 8), "same bytes"),
        # An argument whose bytes are not known either is like none.
        (TensorLeaf("a", None, None, None), leaf("x", 8), "only Inductor"),
        (TensorLeaf("a", None, None, None), TensorLeaf("x", None, None, None), "only Inductor"),
        # Equal bytes of another shape are not the same argument.
        (leaf("a", 8), leaf("x", 2, 4), "only Inductor"),
    ],
)
def test_how_two_leaves_match(inductor: TensorLeaf, xla: TensorLeaf, match: str) -> None:
    """The words are part of `diff --json`."""
    matched = match_leaves([inductor], [xla])
    assert matched.pairs[0].match == match
    assert matched.same == (match == "same")
    assert matched.matched == (match == "same")
    assert all(pair.match != Match.SAME for pair in matched.differing)
    assert len(matched.differing) == len(matched.pairs) - matched.matched
