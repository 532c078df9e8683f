"""Expressions of wrapper code: names, numbers, containers, and views of tensors."""

import ast
import builtins
from collections.abc import Sequence

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.allocations import Tensor
from xlapipe.inductor.expressions import Dimension, evaluate_tree
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.operators import VIEWS
from xlapipe.inductor.wrapper.bound_values import OPAQUE, Box, Value, items_of
from xlapipe.inductor.wrapper.sizes_and_dtypes import dotted
from xlapipe.inductor.wrapper.state import WrapperState

_BUILTINS = frozenset(dir(builtins)) | {"self", "args", "inf", "nan"}
_LONGEST_LIST = 10_000


def evaluate(state: WrapperState, node: ast.expr) -> Value:
    """A value without a reference."""
    match node:
        case ast.Name(id=name):
            return _name(state, name, node)
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Constant(value=None):
            return None
        case ast.Tuple(elts=items):
            return tuple(evaluate(state, item) for item in items)
        case ast.List(elts=items):
            return Box([evaluate(state, item) for item in items])
        case ast.Subscript(value=base, slice=ast.Constant(value=int(place))):
            values = items_of(evaluate(state, base))
            return values[place] if -len(values) <= place < len(values) else OPAQUE
        case ast.Call(func=function, args=[_, *_]) if dotted(function) in VIEWS:
            return _view(state, node)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method), args=places) if (
            method in ("size", "stride")
        ):
            return _sizes_of_tensor(state.frame.names.get(name), method, places)
        case ast.BinOp(
            left=ast.List(elts=[ast.Constant(value=None)]),
            op=ast.Mult(),
            right=ast.Constant(value=int(count)),
        ) if 0 <= count <= _LONGEST_LIST:
            return Box([None] * count)
        case ast.BinOp() | ast.UnaryOp():
            value = evaluate_tree(node, state.frame.symbols)
            return OPAQUE if value is None else value
        case ast.Starred(value=inner) | ast.Attribute(value=inner):
            evaluate(state, inner)
        case ast.Call(args=arguments):
            for argument in arguments:
                evaluate(state, argument)
    return OPAQUE


def _sizes_of_tensor(value: Value, method: str, places: Sequence[ast.expr]) -> Value:
    """What `tensor.size()`, `tensor.stride()` or `tensor.size(0)` gives."""
    if not isinstance(value, Tensor) or value.layout is None:
        return OPAQUE
    sizes = value.layout.shape if method == "size" else value.layout.strides
    known = tuple(size if isinstance(size, int) else OPAQUE for size in sizes)
    match places:
        case []:
            return known
        case [ast.Constant(value=int(place))] if -len(known) <= place < len(known):
            return known[place]
    return OPAQUE


def _name(state: WrapperState, name: str, node: ast.expr) -> Value:
    if name in state.frame.names:
        return state.frame.names[name]
    if name in state.code.constants and name not in state.launches.constants:
        state.launches.constants[name] = _constant(state, name, node)
    if name in state.launches.constants:
        return state.launches.constants[name]
    if name not in state.code.names and name not in _BUILTINS:
        state.fail(node, "a name that is defined before", shown(name))
    return OPAQUE


def _constant(state: WrapperState, name: str, node: ast.expr) -> Tensor:
    layout, line = state.code.constants[name], state.number(node)
    state.check(layout, node)
    storage = state.replay.allocate(
        name, layout.storage_bytes, line, argument=True, held=True, layout=layout
    )
    state.replay.storages[storage].constant = True
    tensor = Tensor(storage, layout)
    state.replay.name_value(name, tensor)
    return tensor


def _view(state: WrapperState, node: ast.Call) -> Value:
    base = evaluate(state, node.args[0])
    if not isinstance(base, Tensor):
        return OPAQUE
    arguments = [*node.args[1:3]]
    shape, strides = (sizes_of(state, argument) for argument in (*arguments, None, None)[:2])
    if shape is None or strides is None:
        state.fail(node, "sizes and strides of a view", shown(ast.unparse(node)[:120]))
    dtype = base.layout.dtype if base.layout is not None else None
    device = base.layout.device if base.layout is not None else "cuda"
    layout = Layout(dtype, shape, strides, device)
    state.check(layout, node)
    start = evaluate(state, node.args[3]) if len(node.args) > 3 else 0
    item = layout.item_bytes
    offset = None
    if isinstance(start, int) and item is not None and base.offset_bytes is not None:
        offset = base.offset_bytes + start * item
    return checked_view(state, Tensor(base.storage, layout, offset), node)


def checked_view(state: WrapperState, tensor: Tensor, node: ast.AST) -> Tensor:
    """Refuses a view beyond its storage."""
    storage = state.replay.storages[tensor.storage]
    size = tensor.layout.storage_bytes if tensor.layout is not None else None
    offset = tensor.offset_bytes
    if offset is not None and offset < 0:
        state.fail(node, "a view at an offset not below 0", f"offset {offset}")
    if None in (size, offset, storage.size_bytes) or storage.argument or not storage.counted:
        return tensor
    if (offset or 0) + (size or 0) > (storage.size_bytes or 0):
        state.fail(
            node,
            f"a view within the {storage.size_bytes} bytes of {storage.name}",
            f"{size} bytes at offset {offset}",
        )
    return tensor


def sizes_of(state: WrapperState, node: ast.expr | None) -> tuple[Dimension, ...] | None:
    """Sizes or strides in a tuple, a list or `tensor.size()`; None for another expression."""
    if isinstance(node, ast.Call):
        value = evaluate(state, node)
        sizes = value if isinstance(value, tuple) else ()
        known = tuple(size for size in sizes if isinstance(size, int))
        return known if known and len(known) == len(sizes) else None
    if not isinstance(node, (ast.Tuple, ast.List)):
        return None
    values = []
    for item in node.elts:
        value = evaluate_tree(item, state.frame.symbols)
        values.append(ast.unparse(item) if value is None else value)
    return tuple(values)
