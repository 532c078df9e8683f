"""Methods of tensors in wrapper code: views, sizes, copies, and changes in place."""

import ast

from xlapipe.inductor.allocations import Tensor
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.wrapper.bound_values import OPAQUE, Value
from xlapipe.inductor.wrapper.evaluation import evaluate
from xlapipe.inductor.wrapper.operator_calls import operands_of
from xlapipe.inductor.wrapper.state import WrapperState

_VIEWS = frozenset(
    {"view", "reshape", "t", "permute", "transpose", "detach", "squeeze", "unsqueeze", "expand"}
    | {"as_strided", "view_as", "flatten", "alias"}
)
# What they return holds no memory.
_QUESTIONS = frozenset(
    {"item", "dim", "numel", "data_ptr", "is_contiguous", "untyped_storage", "storage_offset"}
    | {"record_stream", "isnan", "isinf", "any", "all", "tolist", "stride", "size", "get_device"}
)


def call_method(state: WrapperState, node: ast.Call) -> Value:
    """The result of a tensor's method, with a reference; None for other calls."""
    if not isinstance(node.func, ast.Attribute):
        return None
    method = node.func.attr
    tensor = _tensor_of(state, node.func.value)
    if tensor is None:
        return None
    if method in _VIEWS:
        state.hold(tensor)
        return tensor
    if method in _QUESTIONS:
        return evaluate(state, node)
    if method == "clone":
        return _copy(state, tensor, node)
    if method.endswith("_"):
        name = ast.unparse(node.func.value)[:80]
        operands, _ = operands_of(state, node)
        state.launches.add(
            f"aten.{method}", node, [(None, name, tensor), *operands], [(name, tensor)], {}
        )
        return OPAQUE
    state.unknown(f"Tensor.{method}", node, "what the method allocates is not in the dump")
    return OPAQUE


def _tensor_of(state: WrapperState, node: ast.expr) -> Tensor | None:
    """The tensor of a name, an item of a list, or a view by a method."""
    match node:
        case ast.Name(id=name):
            value = state.frame.names.get(name)
        case ast.Subscript():
            value = evaluate(state, node)
        case ast.Call(func=ast.Attribute(value=base, attr=method)) if method in _VIEWS:
            value = _tensor_of(state, base)
        case _:
            return None
    return value if isinstance(value, Tensor) else None


def _copy(state: WrapperState, tensor: Tensor, node: ast.Call) -> Tensor:
    layout: Layout | None = tensor.layout
    size = layout.storage_bytes if layout is not None else None
    name = ast.unparse(node)[:80]
    storage = state.replay.allocate(name, size, state.number(node), layout=layout)
    if size is None:
        state.unknown(name, node, "the size of its result is not in the dump")
    copied = Tensor(storage, layout)
    state.hold(copied)
    return copied
