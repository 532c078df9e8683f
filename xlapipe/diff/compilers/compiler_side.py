"""What one compiler decided about a program, in the terms that both compilers have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from xlapipe.diff.compilers.tensor_leaves import TensorLeaf
from xlapipe.inductor.layouts import sum_if_known


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Something that is in memory at a peak."""

    label: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products and convolutions of one kind.

    Attributes:
      multiplications: M × N × K of a matrix product; None for a convolution, or if a shape is not
        known.
      result: shape of the result, e.g. `256×1024`, its dimensions sorted.
    """

    multiplications: int | None
    result: str
    backend: str


@dataclass(frozen=True, slots=True)
class Waste:
    """Work or memory that the program does not need.

    Attributes:
      size_bytes: None if not known.
    """

    what: str
    count: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind; bytes of one device."""

    kind: str
    count: int
    output_bytes: int | None


def exchanges_of(collectives: Iterable[tuple[str, int | None]]) -> tuple[Exchange, ...]:
    """The collectives of each kind, from the kind and the bytes of each."""
    sizes: dict[str, list[int | None]] = {}
    for kind, output_bytes in collectives:
        sizes.setdefault(kind, []).append(output_bytes)
    return tuple(
        Exchange(kind, len(of_kind), sum_if_known(of_kind))
        for kind, of_kind in sorted(sizes.items())
    )


@dataclass(frozen=True)
class CompilerSide:
    """One program as one compiler made it.

    Attributes:
      name: the path, and for Inductor the graph.
      basis: how exact the figures are.
      own_peak_bytes: what a call takes at its worst beyond its arguments: what XLA reserves for it,
        what Inductor's wrapper holds.
      in_use_bytes: the part that holds live values at the worst moment; None if not known.
      argument_bytes, output_bytes: None if not known.
      kept_bytes: outputs for the backward pass only; None if unknown.
      reused_bytes: arguments whose memory outputs take, or that the call frees.
      unknown_calls: calls that allocate an unknown number of bytes.
      kernels: what is launched, by kind; None if unknown.
      with_backward: whether the backward pass, which reads what is kept, is part of the side.
    """

    name: str
    basis: str
    arguments: tuple[TensorLeaf, ...]
    outputs: tuple[TensorLeaf, ...]
    own_peak_bytes: int | None
    in_use_bytes: int | None
    argument_bytes: int | None
    output_bytes: int | None
    kept_bytes: int | None
    reused_bytes: int
    unknown_calls: int
    kernels: Mapping[str, int] | None
    held: tuple[HeldBytes, ...] = ()
    products: tuple[Product, ...] = ()
    waste: tuple[Waste, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    notes: tuple[str, ...] = field(default=())
    with_backward: bool = False

    @property
    def launches(self) -> int | None:
        """Number of kernels; None if unknown."""
        return sum(self.kernels.values()) if self.kernels is not None else None
