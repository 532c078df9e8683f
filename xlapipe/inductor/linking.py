"""From the forward graph's outputs to the backward graph's arguments.

AOTAutograd's forward graph returns what the user asked for, then what it saves; its backward graph
takes what was saved, then the tangents. What was saved and is neither an argument of the forward
graph nor one of the user's outputs has no other owner: the backward graph frees it at its `del`.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xlapipe.inductor.allocations import Replay
from xlapipe.inductor.layouts import Layout, Tensor
from xlapipe.inductor.wrapper.evaluation import GivenArgument
from xlapipe.inductor.wrapper.output_code import WrapperCode, literal_sizes
from xlapipe.inductor.wrapper.sizes_and_dtypes import Gathered

_TANGENT = re.compile(r"tangents_\d+")


@dataclass(frozen=True)
class Link:
    """How many of a forward graph's outputs are saved, and who owns the backward's arguments."""

    saved: int
    given: Mapping[str, GivenArgument]


def link(forward: Replay, backward: WrapperCode) -> Link | None:
    """Matches outputs and arguments; None where their numbers or sizes do not match."""
    names = argument_names(backward)
    saved_names = [name for name in names if _TANGENT.fullmatch(name) is None]
    count = len(saved_names)
    if not count or count > len(forward.returned):
        return None
    first = len(forward.returned) - count
    pairs = _paired(saved_names, forward.returned[first:], argument_layouts(backward))
    if pairs is None:
        return None
    users = {tensor.storage for _, tensor in forward.returned[:first] if tensor is not None}
    return Link(count, {name: _given(forward, tensor, users) for name, tensor in pairs.items()})


def _given(forward: Replay, tensor: Tensor, users: set[int]) -> GivenArgument:
    storage = forward.storages[tensor.storage]
    if storage.argument or storage.constant or tensor.storage in users:
        return GivenArgument(None, None)
    return GivenArgument(tensor.storage, storage.size_bytes)


def _paired(
    names: Sequence[str],
    outputs: Sequence[tuple[str, Tensor | None]],
    layouts: Mapping[str, Layout],
) -> dict[str, Tensor] | None:
    """Arguments with the tensors that were saved for them.

    Saved numbers come last among the outputs and first among the arguments.
    """
    numbers = [tensor for _, tensor in outputs if tensor is None]
    tensors = [tensor for _, tensor in outputs if tensor is not None]
    pairs = dict(zip(names[len(numbers) :], tensors, strict=True))
    for name, tensor in pairs.items():
        layout = layouts.get(name)
        if layout is None or tensor.layout is None:
            continue
        known = all(isinstance(size, int) for size in (*layout.shape, *tensor.layout.shape))
        if known and layout.shape != tensor.layout.shape:
            return None
    return pairs


def argument_names(code: WrapperCode) -> tuple[str, ...]:
    """Names that `call` unpacks from its arguments."""
    for node in ast.walk(code.functions["call"]):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=items) | ast.List(elts=items)], value=ast.Name(id="args")
            ):
                return tuple(item.id for item in items if isinstance(item, ast.Name))
    return ()


def argument_layouts(code: WrapperCode) -> Mapping[str, Layout]:
    """Layouts of the arguments as far as they are numbers."""
    layouts = {
        name: example for name, example in code.examples.items() if isinstance(example, Layout)
    }
    for name, asserted in Gathered(code, {}).asserted.items():
        shape, strides = map(literal_sizes, asserted.args[1:3])
        if name not in layouts and shape is not None and strides is not None:
            layouts[name] = Layout(None, shape, strides)
    return layouts
