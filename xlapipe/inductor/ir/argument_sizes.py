"""Sizes of arguments whose layout an IR dump does not print, from matrix products of them.

Layouts of what only extern kernels read are not in the dump. A product [M, N] of a known operand
[M, K] has another one of K × N elements. Which operand is which follows from the sizes; if it does
not, the size stays unknown.
"""

from collections.abc import Iterator, Mapping

from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.ir.nodes import IrNode
from xlapipe.inductor.layouts import Layout

_PRODUCT = "extern_kernels.mm"


def sizes_from_products(graph: IrGraph) -> Mapping[str, int]:
    """Bytes of arguments by name."""
    sizes: dict[str, int] = {}
    for leaf in graph.leaves:
        if leaf.kernel == _PRODUCT:
            sizes.update(_of_product(graph, leaf))
    return sizes


def _of_product(graph: IrGraph, leaf: IrNode) -> Iterator[tuple[str, int]]:
    names = [graph.memory_of(dependency.name) for dependency in graph.reads_of(leaf)]
    if len(names) != 2 or not leaf.outputs:
        return
    result = graph.layouts.get(leaf.outputs[0].name)
    for known, unknown in (names, names[::-1]):
        layout = graph.layouts.get(known)
        if layout is None or unknown in graph.layouts or result is None:
            continue
        elements = _other_operand(layout, result)
        if elements is not None and result.item_bytes is not None:
            yield unknown, elements * result.item_bytes


def _other_operand(operand: Layout, result: Layout) -> int | None:
    """Elements of the other operand; None if the sizes do not determine it."""
    count = operand.elements
    if len(result.shape) != 2 or not count or operand.dtype != result.dtype:
        return None
    rows, columns = result.shape
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    possible = {
        count // size * other
        for size, other in ((rows, columns), (columns, rows))
        if size in operand.shape and size and count % size == 0
    }
    return possible.pop() if len(possible) == 1 else None
