"""Shapes that two compilers print: `bf16[256,1024]{1,0}` and `bf16[256, 1024]`."""

import re
from math import isqrt, prod

from xlapipe.diff.compilers.compiler_side import Product
from xlapipe.diff.compilers.tensor_leaves import Shape
from xlapipe.inductor.layouts import dtype_name
from xlapipe.plans.gemms import Gemm

_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[^\[\]]*)\]")
# HLO's names where they are not those of FX graphs.
_HLO_NAMES = {"pred": "bool", "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64"}


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


def read_product(gemm: Gemm) -> Product:
    """A gemm in terms that do not depend on which operand is transposed, or comes first."""
    arrays = [array for shape in gemm.shapes if (array := read_array(shape.text)) is not None]
    shapes = [shape for _, shape in arrays]
    result = shapes[-1] if shapes else ()
    backend = f"{gemm.backend}"
    if gemm.fast_accumulation:
        backend += ", fast accumulation"
    text = "×".join(sorted(map(str, result), key=lambda dim: (len(dim), dim))) or "?"
    return Product(_multiplications(shapes), text, backend)


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
