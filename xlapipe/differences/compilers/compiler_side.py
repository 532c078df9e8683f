"""What one compiler decided about a program, in the terms that both compilers have."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt, prod

from xlapipe.differences.compilers.tensor_leaves import Shape, TensorLeaf
from xlapipe.inductor.layouts import dtype_name, sum_if_known
from xlapipe.plans.gemms import Gemm

_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[^\[\]]*)\]")
# HLO's names where they are not those of FX graphs.
_HLO_NAMES = {"pred": "bool", "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64"}


@dataclass(frozen=True, slots=True)
class ProductKind:
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
class CollectiveTotals:
    """Collectives of one kind; bytes of one device."""

    kind: str
    count: int
    output_bytes: int | None


def exchanges_of(collectives: Iterable[tuple[str, int | None]]) -> tuple[CollectiveTotals, ...]:
    """The collectives of each kind, from the kind and the bytes of each."""
    sizes: dict[str, list[int | None]] = {}
    for kind, output_bytes in collectives:
        sizes.setdefault(kind, []).append(output_bytes)
    return tuple(
        CollectiveTotals(kind, len(of_kind), sum_if_known(of_kind))
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
      launches: number of kernels; None if unknown.
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
    launches: int | None
    products: tuple[ProductKind, ...] = ()
    exchanges: tuple[CollectiveTotals, ...] = ()
    notes: tuple[str, ...] = ()
    with_backward: bool = False


def read_array(text: str) -> tuple[str, Shape] | None:
    """torch's dtype and the shape of the first array in a text; None without an array.

    >>> read_array("bf16[256,1024]{1,0}"), read_array("pred[]")
    (('bfloat16', (256, 1024)), ('bool', ()))
    """
    match = _ARRAY.search(text)
    if match is None:
        return None
    name = _HLO_NAMES.get(match["dtype"]) or dtype_name(match["dtype"])
    dims = [dim.strip() for dim in match["dims"].split(",") if dim.strip()]
    return name, tuple(int(dim) if dim.isdecimal() else dim for dim in dims)


def read_product(gemm: Gemm) -> ProductKind:
    """A gemm in terms that do not depend on which operand is transposed, or comes first."""
    arrays = [array for shape in gemm.shapes if (array := read_array(shape.text)) is not None]
    shapes = [shape for _, shape in arrays]
    result = shapes[-1] if shapes else ()
    backend = f"{gemm.backend}"
    if gemm.fast_accumulation:
        backend += ", fast accumulation"
    text = "×".join(sorted(map(str, result), key=lambda dim: (len(dim), dim))) or "?"
    return ProductKind(_multiplications(shapes), text, backend)


def _multiplications(shapes: list[Shape]) -> int | None:
    """M × N × K of [M, K] and [K, N]: the root of the product of three sizes.

    With one operand known, the other's size follows if only one of its dimensions is the result's.
    """
    matrices = [tuple(map(int, shape)) for shape in shapes if _is_matrix(shape)]
    if any(len(shape) > 2 for shape in shapes):
        return None
    if len(matrices) == 2:
        (first, second), result = matrices[0], matrices[1]
        inner = {prod(matrices[0]) // size for size in (first, second) if size in result and size}
        return prod(result) * inner.pop() if len(inner) == 1 else None
    if len(matrices) < 3:
        return None
    # A bias or scales may come before or after the operands; the result is last.
    sizes = [prod(shape) for shape in (*matrices[:2], matrices[-1])]
    root = isqrt(prod(sizes))
    return root if root * root == prod(sizes) else None


def _is_matrix(shape: Shape) -> bool:
    return len(shape) == 2 and all(isinstance(size, int) for size in shape)
