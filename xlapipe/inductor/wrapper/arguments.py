"""The arguments of `call`: their storages, and which of them the caller gives away."""

import ast
import re
from collections.abc import Sequence

from xlapipe.inductor.allocations import Tensor
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.wrapper.bound_values import OPAQUE, Value
from xlapipe.inductor.wrapper.layouts_of_names import layout_of
from xlapipe.inductor.wrapper.replayed import ReplayedArgument
from xlapipe.inductor.wrapper.state import WrapperState

_KEPT_BY_CALLER = re.compile(r"(primals|tangents|arg)_?\d+")


def take_arguments(state: WrapperState, names: Sequence[str], node: ast.AST) -> None:
    """Binds the names that `call` unpacks from its arguments."""
    asserted = any(name in state.gathered.asserted for name in names)
    for name in names:
        example = state.code.examples.get(name)
        layout = layout_of(state, name, node)
        if isinstance(example, int) or (layout is None and asserted):
            value: Value = example if isinstance(example, int) else OPAQUE
            state.frame.bind(name, value)
            state.replayed.arguments.append(ReplayedArgument(name, None, None, False))
            continue
        tensor, given = _argument(state, name, layout, node)
        state.hold(tensor)
        state.bind(name, tensor, node)
        state.replayed.arguments.append(ReplayedArgument(name, layout, tensor, given))


def _argument(
    state: WrapperState, name: str, layout: Layout | None, node: ast.AST
) -> tuple[Tensor, bool]:
    link = state.known.given.get(name)
    if link is not None:
        given = link.group is not None
    else:
        given = state.known.gives_by_name and _KEPT_BY_CALLER.fullmatch(name) is None
    size = layout.element_bytes if layout is not None else None
    if link is not None and link.group is not None:
        size = link.size_bytes if link.size_bytes is not None else size
        if link.group in state.groups:
            return Tensor(state.groups[link.group], layout), True
    storage = state.replay.allocate(
        name,
        size,
        state.number(node),
        argument=True,
        held=not given,
        layout=layout,
    )
    if link is not None and link.group is not None:
        state.groups[link.group] = storage
    state.replay.argument_numbers[storage] = len(state.replayed.arguments)
    return Tensor(storage, layout), given
