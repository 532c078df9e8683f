"""XLA's side of a comparison with Inductor, on a small program."""

from dataclasses import replace
from pathlib import Path

from tests.differences.test_diff_changes import OUT, ROW, UNALIASED, A, changed, with_plan
from tests.shared.programs import with_facts
from xlapipe.differences.compilers.compiler_side import (
    CollectiveTotals,
    CompilerSide,
)
from xlapipe.differences.compilers.tensor_leaves import TensorLeaf
from xlapipe.differences.compilers.xla_side import xla_side
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.plans import InputOutputAlias, Thunk
from xlapipe.plans.program import Program


def side(program: Program) -> CompilerSide:
    """XLA's side of a dump that xlapipe did not write."""
    return xla_side(XlaFiles(program.plan, program.facts, path=Path("step")))


def test_leaves_are_those_on_one_device() -> None:
    """Parameter w is split over two devices."""
    leaves = (A.arguments[0], replace(A.arguments[1], shape=(16, 8), size_bytes=512))
    split = side(with_facts(A, arguments=leaves))
    assert split.arguments == (
        TensorLeaf("x", "float32", (8,), 32, reused=True),
        TensorLeaf("w", "float32", (8, 8), 512, reused=False),
    )
    assert split.outputs == (
        TensorLeaf("out[0]", "float32", (8,), 32, reused=True),
        TensorLeaf("out[1]", "float32", (8,), 32, reused=False),
    )


def test_leaves_without_names_are_parameters_and_outputs() -> None:
    unnamed = side(with_facts(A, arguments=(), outputs=()))
    assert unnamed.arguments == (
        TensorLeaf("parameter 0", "float32", (8,), 32, reused=True),
        TensorLeaf("parameter 1", "float32", (8, 8), 256, reused=False),
    )
    assert [leaf.name for leaf in unnamed.outputs] == ["output 0", "output 1"]
    empty = tuple(replace(allocation, values=()) for allocation in A.plan.allocations)
    unknown = side(with_facts(with_plan(allocations=empty), arguments=()))
    assert unknown.arguments[1] == TensorLeaf("parameter 1", None, None, 256, reused=False)


def test_bytes_beside_the_arguments() -> None:
    own = side(A)
    # The output that is written over x is one of the arguments' bytes.
    assert (own.own_peak_bytes, own.argument_bytes) == (320 + 32, 256 + 32)
    assert (own.output_bytes, own.reused_bytes) == (32, 32)
    assert own.unknown_calls == 0
    assert own.exchanges == (CollectiveTotals("all-reduce", 1, 32),)
    apart = side(UNALIASED)
    assert (apart.own_peak_bytes, apart.output_bytes, apart.reused_bytes) == (320 + 64, 64, 0)
    assert not any(leaf.reused for leaf in (*apart.arguments, *apart.outputs))


def test_collectives_of_a_kind_are_one_row() -> None:
    more = f"  %more = {ROW} all-reduce(%turned), replica_groups={{{{0,1}}}}, to_apply=%add\n"
    twice = side(changed((OUT, f"{more}  %out = {ROW} add(%more, %x)")))
    assert twice.exchanges == (CollectiveTotals("all-reduce", 2, 64),)


def test_thunks_that_hold_others_launch_nothing() -> None:
    kinds = (
        "kGemm",
        "kKernel",
        "kKernel",
        "kCommandBuffer",
        "kConditional",
        "kSequential",
        "kWhile",
    )
    thunks = tuple(Thunk(kind, 0) for kind in kinds)
    assert side(with_plan(thunks=thunks)).launches == 3
    assert side(A).launches is None


def test_parameters_are_in_order_of_their_numbers() -> None:
    backwards = with_plan(allocations=tuple(reversed(A.plan.allocations)))
    unnamed = side(with_facts(backwards, arguments=()))
    assert [leaf.name for leaf in unnamed.arguments] == ["parameter 0", "parameter 1"]


def test_a_single_output_that_is_written_over_an_argument_is_reused() -> None:
    single = changed(
        (
            f"ROOT %results = ({ROW}, {ROW}) tuple(%out, %tile)",
            f"ROOT %result = {ROW} bitcast(%out)",
        ),
        ("-> (f32[8], f32[8])", "-> f32[8]"),
    )
    aliased = with_plan(single, header_aliases=(InputOutputAlias(0, ()),))
    assert side(aliased).outputs == (TensorLeaf("out[0]", "float32", (8,), 32, reused=True),)
    assert not side(with_plan(single, header_aliases=())).outputs[0].reused
