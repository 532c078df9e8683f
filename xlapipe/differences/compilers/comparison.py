"""Two compilers' plans for one program, matched."""

from dataclasses import dataclass

from xlapipe.differences.compilers.compiler_side import CompilerSide
from xlapipe.differences.compilers.inductor_side import inductor_sides
from xlapipe.differences.compilers.tensor_leaves import MatchedLeaves, match_leaves
from xlapipe.differences.compilers.xla_side import xla_side
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.inductor.reader import InductorDump


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
    return CompilerComparison(inductor, xla, arguments, outputs, kept)


def _likeness(comparison: CompilerComparison) -> tuple[int, int]:
    """More pairs that are the same, then fewer leaves that are not."""
    arguments, outputs = comparison.arguments, comparison.outputs
    same = arguments.matched + outputs.matched
    return same - len(arguments.differing) - len(outputs.differing), same
