"""The programs of torch's dumps beside the same programs in JAX, as XLA compiled them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from xlapipe.differences.compilers import CompilerComparison, compare_compilers
from xlapipe.differences.compilers.tensor_leaves import Match
from xlapipe.inductor.open_path import open_path
from xlapipe.inductor.reader import read_inductor

Compare = Callable[[str], CompilerComparison]


@pytest.fixture
def compare(inductor: Path, goldens: Path) -> Compare:
    def of(name: str) -> CompilerComparison:
        (xla,) = (goldens / f"torch-{name}").glob("h200-cublas-*")
        return compare_compilers(read_inductor(inductor / name), open_path(xla))

    return of


def test_mlp(compare: Compare) -> None:
    comparison = compare("mlp")
    assert comparison.same_interface
    assert comparison.arguments.same_order
    assert comparison.outputs.same_order
    inductor, xla = comparison.inductor, comparison.xla
    assert inductor.argument_bytes == xla.argument_bytes == 7_340_032
    assert inductor.own_peak_bytes == 7_340_032
    # Three weight gradients and y, workspace and activations.
    assert xla.own_peak_bytes == 13_109_280
    assert (inductor.launches, xla.launches) == (14, 14)
    assert (inductor.products, xla.products) == ({"cublas": 8}, {"cublaslt": 8})
    # The backward pass is part of the side, so that nothing is kept beyond it.
    assert comparison.kept_by_xla is None
    assert inductor.reused_bytes == 0


def test_block(compare: Compare) -> None:
    comparison = compare("block")
    assert comparison.same_interface
    assert comparison.arguments.same_order
    assert comparison.outputs.same_order
    assert comparison.arguments.matched == comparison.outputs.matched == 24
    assert comparison.inductor.own_peak_bytes == 39_936_032
    assert comparison.inductor.unknown_calls == 4  # attention, forward and backward


def test_resnet(compare: Compare) -> None:
    comparison = compare("resnet18")
    # torch counts batches in int64, which JAX has in x64 mode only; all else is the same.
    assert not comparison.same_interface
    for leaves, count in ((comparison.arguments, 124), (comparison.outputs, 123)):
        assert len(leaves.pairs) == count
        assert [pair.match for pair in leaves.differing] == [Match.OTHER_DTYPE] * 20
        for pair in leaves.differing:
            assert pair.inductor is not None
            assert pair.inductor.type_text == "int64[]"
            assert pair.xla is not None
            assert pair.xla.type_text == "int32[]"
    assert comparison.arguments.same_order
    reused = [pair for pair in comparison.arguments.pairs if pair.inductor and pair.inductor.reused]
    assert len(reused) == 60
    assert all(pair.xla is not None and pair.xla.reused for pair in reused)
