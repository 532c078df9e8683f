"""What one compiler decided about a program, in the terms that both compilers have."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from xlapipe.differences.compilers.tensor_leaves import Shape, TensorLeaf
from xlapipe.inductor.layouts import dtype_name, sum_if_known
from xlapipe.plans.gemms import Gemm

_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[^\[\]]*)\]")
# HLO's names where they are not those of FX graphs.
_HLO_NAMES = {"pred": "bool", "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64"}


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


def products_of(gemms: Iterable[Gemm]) -> Mapping[str, int]:
    """The number of products and convolutions of each backend."""
    return dict(sorted(Counter(gemm.backend_text for gemm in gemms).items()))


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
      products: number of matrix products and convolutions, by what computes them.
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
    products: Mapping[str, int] = field(default_factory=dict)
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
