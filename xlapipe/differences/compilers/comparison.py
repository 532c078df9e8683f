"""Two compilers' plans for one program, matched."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.differences.compilers.compiler_side import CompilerSide, ProductKind
from xlapipe.differences.compilers.inductor_side import inductor_sides
from xlapipe.differences.compilers.tensor_leaves import MatchedLeaves, match_leaves
from xlapipe.differences.compilers.xla_side import xla_side
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.inductor.reader import InductorDump


@dataclass(frozen=True)
class ProductRow:
    """Matrix products or convolutions of one size on both sides.

    Attributes:
      multiplications: M × N × K; None if not known, or for a convolution.
      results: shapes of the results.
      inductor, xla: number of products by backend.
    """

    multiplications: int | None
    results: tuple[str, ...]
    inductor: tuple[tuple[str, int], ...]
    xla: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class CompilerComparison:
    """One page: what two compilers decided.

    Attributes:
      kept_by_xla: bytes of XLA's outputs that Inductor's graph does not return, if that graph keeps
        values for a backward pass that is not part of it; None otherwise.
    """

    inductor: CompilerSide
    xla: CompilerSide
    arguments: MatchedLeaves
    outputs: MatchedLeaves
    kept_by_xla: int | None
    products: tuple[ProductRow, ...]

    @property
    def same_interface(self) -> bool:
        """Whether all arguments and outputs match; the computation may differ all the same."""
        same_outputs = self.outputs.same
        if self.kept_by_xla is not None:
            same_outputs = all(pair.inductor is None for pair in self.outputs.differing)
        return self.arguments.same and same_outputs


def compare_compilers(inductor: InductorDump, xla: XlaFiles) -> CompilerComparison:
    """Compares the graph of Inductor's that is most like XLA's program, or all of them together."""
    other = xla_side(xla)
    compared = [_compare(side, other) for side in inductor_sides(inductor)]
    return max(compared, key=_likeness)


def _compare(inductor: CompilerSide, xla: CompilerSide) -> CompilerComparison:
    arguments = match_leaves(inductor.arguments, xla.arguments)
    outputs = match_leaves(inductor.outputs, xla.outputs)
    kept: int | None = None
    if inductor.kept_bytes and not inductor.with_backward:
        left = [pair.xla for pair in outputs.differing if pair.inductor is None]
        kept = sum(leaf.size_bytes or 0 for leaf in left if leaf is not None)
    rows = _product_rows(inductor.products, xla.products)
    return CompilerComparison(inductor, xla, arguments, outputs, kept, tuple(rows))


def _likeness(comparison: CompilerComparison) -> tuple[int, int]:
    """More pairs that are the same, then fewer leaves that are not."""
    arguments, outputs = comparison.arguments, comparison.outputs
    same = arguments.matched + outputs.matched
    return same - len(arguments.differing) - len(outputs.differing), same


def _product_rows(inductor: Sequence[ProductKind], xla: Sequence[ProductKind]) -> list[ProductRow]:
    """Products of one size in one row, the largest first."""
    rows = []
    for key in dict.fromkeys(_key(product) for product in (*inductor, *xla)):
        sides = [[item for item in side if _key(item) == key] for side in (inductor, xla)]
        alike = [*sides[0], *sides[1]]
        results = tuple(dict.fromkeys(product.result for product in alike))
        rows.append(ProductRow(alike[0].multiplications, results, *map(_counted, sides)))
    return sorted(rows, key=lambda row: -(row.multiplications or 0))


def _key(product: ProductKind) -> tuple[int | None, str]:
    """Products of M × N × K multiplications are alike; others by their result."""
    known = product.multiplications
    return (known, "") if known is not None else (None, product.result)


def _counted(products: Sequence[ProductKind]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(product.backend for product in products).items()))
