"""Statements of wrapper code that allocate, and parts of a pool of memory planning."""

import ast
from collections.abc import Sequence

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.allocations import Tensor
from xlapipe.inductor.layouts import ITEM_BYTES, Layout, contiguous_strides
from xlapipe.inductor.operators import ALLOCATORS
from xlapipe.inductor.wrapper.bound_values import Value
from xlapipe.inductor.wrapper.evaluation import checked_view, evaluate, sizes_of
from xlapipe.inductor.wrapper.sizes_and_dtypes import allocated_dtype
from xlapipe.inductor.wrapper.state import WrapperState


def allocate(state: WrapperState, node: ast.Call, operator: str, names: Sequence[str]) -> Value:
    """`empty_strided_cuda(sizes, strides, dtype)` and the like; the tensor has a reference."""
    shape, strides = (sizes_of(state, argument) for argument in (*node.args[:2], None, None)[:2])
    device = ALLOCATORS[operator] or _device(node)
    if shape is None or (strides is None and len(node.args) > 1):
        state.fail(node, "sizes and strides of an allocation", shown(ast.unparse(node)[:120]))
    steps = strides if strides is not None else contiguous_strides(shape)
    layout = Layout(allocated_dtype(node), shape, steps, device)
    state.check(layout, node)
    if layout.dtype is not None and layout.dtype not in ITEM_BYTES:
        state.fail(node, "a dtype of torch", shown(layout.dtype))
    line = state.number(node)
    name = names[0] if names else "?"
    storage = state.replay.allocate(name, layout.storage_bytes, line, layout=layout)
    if layout.storage_bytes is None:
        reason = f"the size {layout} has symbols without a value"
        state.unknown(name, node, reason)
    tensor = Tensor(storage, layout)
    state.hold(tensor)
    return tensor


def part_of_pool(state: WrapperState, node: ast.Call) -> Value:
    """`alloc_from_pool(pool, offset in bytes, dtype, sizes, strides)`."""
    if len(node.args) < 5:
        state.fail(node, "a pool, an offset, a dtype, sizes and strides", "fewer arguments")
    pool, offset = evaluate(state, node.args[0]), evaluate(state, node.args[1])
    shape, strides = sizes_of(state, node.args[3]), sizes_of(state, node.args[4])
    if not isinstance(pool, Tensor) or shape is None or strides is None:
        state.fail(node, "a part of a pool", shown(ast.unparse(node)[:120]))
    layout = Layout(allocated_dtype(node), shape, strides, "cuda")
    state.check(layout, node)
    place = offset if isinstance(offset, int) else None
    tensor = checked_view(state, Tensor(pool.storage, layout, place), node)
    state.hold(tensor)
    return tensor


def _device(node: ast.Call) -> str:
    for word in node.keywords:
        if word.arg == "device":
            text = ast.unparse(word.value)
            return "cpu" if "cpu" in text else "cuda"
    return "cpu"
