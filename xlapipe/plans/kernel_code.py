"""What a Pallas kernel does in one launch, by its own code, or by what its author states."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from msgspec import Meta

from xlapipe.files.typed_data import Natural

# Below all that a launch can do; numbers of a damaged file may have no float.
_Count: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 62)]
_Number: TypeAlias = Annotated[float, Meta(ge=0, lt=1 << 62)]


@dataclass(frozen=True, slots=True)
class KernelCode:
    """What one launch of a Pallas kernel does, counted in its traced code.

    XLA has no more than the compiled form of it. Loads and stores with a mask count whole.

    Attributes:
      operand_bytes, result_bytes: sizes of the arrays, which distinguish kernels of one name.
      loaded_bytes, stored_bytes: bytes of each operand and each result, by all programs of the grid
        together. What several of them load counts several times, what one loads again does not.
      updated_bytes: the part of `stored_bytes` that is added to what is there, of neighbours.
      scattered_updates: elements that are added at indices which an array holds, each alone.
      programs: programs of the grid.
      warps, stages: warps and stages of a program, as passed to Triton.
      operations: results of operations on elements, by XLA's opcode; `other` of cheap ones. Each
        thread computes one at least.
      flops: flops of products, by type of the operands; two per multiply-add.
      steps: trips of innermost loops that load, one after another, of a program on average.
      ordered_steps: those of the steps that also store, which wait for each other.
      longest_steps: steps of the followed program that has most of them.
      sequence, reductions: operations on arrays, and of them reductions, of a program on average.
      live_words: the most 32-bit words of arrays that a program has at once.
      undecided: loops and branches whose course depends on data; one trip counts, and the branch
        that does most.

    Raises:
      ValueError: other arrays have bytes than those of the sizes.
    """

    kernel: str
    operand_bytes: tuple[Natural, ...]
    result_bytes: tuple[Natural, ...]
    loaded_bytes: tuple[Natural, ...]
    stored_bytes: tuple[Natural, ...]
    updated_bytes: tuple[Natural, ...]
    scattered_updates: Natural
    programs: _Count
    warps: _Count
    stages: _Count
    operations: Mapping[str, Natural]
    flops: Mapping[str, Natural]
    steps: _Number
    ordered_steps: _Number
    longest_steps: _Number
    sequence: _Number
    reductions: _Number
    live_words: Natural
    undecided: Natural = 0

    def __post_init__(self) -> None:
        arrays = len(self.operand_bytes) + len(self.result_bytes)
        moved = (self.loaded_bytes, self.stored_bytes, self.updated_bytes)
        if any(len(sizes) != arrays for sizes in moved):
            raise ValueError(f"{self.kernel} has {arrays} arrays, and bytes of other ones")

    def is_of(self, kernel: str | None, operand_bytes: tuple[int, ...], result_bytes: int) -> bool:
        """Whether a custom call of that name and those sizes is this kernel."""
        same = (self.kernel, self.operand_bytes) == (kernel, operand_bytes)
        return same and sum(self.result_bytes) == result_bytes


_MOST = 1 << 62  # what is not below it, such as 2^63 - 1, says that nothing is known


@dataclass(frozen=True, slots=True)
class StatedCost:
    """What the author states of a Pallas kernel, whose code XLA does not have.

    Of a kernel for TPUs without a statement, it is counted in the code; then it has products.

    Attributes:
      result_bytes: size of its results, if kernels of the name differ; None for all of the name.
      accessed_bytes: bytes that one launch reads and writes in device memory.
      flops: operations of one launch; None if they are not stated.
      products: element type, rows, terms and columns of products, and their number in one launch.
      vector_operations, functions: on elements, of one launch; functions are `exp` and the like.
    """

    kernel: str
    result_bytes: int | None
    accessed_bytes: int
    flops: int | None = None
    products: tuple[tuple[str, Natural, Natural, Natural, Natural], ...] = ()
    vector_operations: Natural = 0
    functions: Natural = 0

    @property
    def is_possible(self) -> bool:
        """Whether a launch can do that much: a negative number, or 2^63 - 1, is no estimate."""
        figures = (self.accessed_bytes, self.flops or 0)
        return min(figures) >= 0 and 0 < max(figures) < _MOST
