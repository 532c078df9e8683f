"""Launches of kernels and calls of operators: operands, results, and bytes that they hide."""

import ast
from collections.abc import Mapping, Sequence

from xlapipe.inductor.allocations import Tensor
from xlapipe.inductor.operators import base_name, hides_bytes, returns_operand
from xlapipe.inductor.wrapper.bound_values import OPAQUE, Value, items_of, tensors_in
from xlapipe.inductor.wrapper.evaluation import evaluate
from xlapipe.inductor.wrapper.layouts_of_names import layout_of
from xlapipe.inductor.wrapper.sizes_and_dtypes import name_of
from xlapipe.inductor.wrapper.state import WrapperState


def launch(state: WrapperState, node: ast.Call, operator: str, names: Sequence[str]) -> Value:
    """Records a launch or a call; returns its results, which have a reference."""
    operands, keywords = operands_of(state, node)
    out = keywords.get("out")
    outputs = (
        [(name_of(out) or "out", item) for item in tensors_in(evaluate(state, out))] if out else []
    )
    results: Value = None
    if not outputs and not state.launches.is_kernel(operator):
        tensors = [tensor for _, _, tensor in operands]
        results = _results(state, node, operator, names, tensors)
        state.hold(results)
        outputs = _named(results, names, state.gathered.elements)
    texts = {name: ast.unparse(value)[:200] for name, value in keywords.items()}
    state.launches.add(operator, node, operands, outputs, texts)
    if base_name(operator) == "resize_storage_bytes_" and operands:
        _resize(state, node, operands[0][1])
    if outputs and results is None:
        return OPAQUE
    return results


def operands_of(
    state: WrapperState, node: ast.Call
) -> tuple[list[tuple[int | None, str, Tensor]], dict[str, ast.expr]]:
    """Tensors that are passed: place among the positional arguments, name, tensor."""
    operands: list[tuple[int | None, str, Tensor]] = []
    keywords = {word.arg: word.value for word in node.keywords if word.arg is not None}
    passed: list[tuple[int | None, ast.expr]] = [*enumerate(node.args)]
    passed += [(None, value) for name, value in keywords.items() if name != "out"]
    for place, argument in passed:
        name = name_of(argument) or "?"
        tensors = tensors_in(evaluate(state, argument))
        operands.extend((place, name, tensor) for tensor in tensors)
    return operands, keywords


def _results(
    state: WrapperState,
    node: ast.Call,
    operator: str,
    names: Sequence[str],
    operands: Sequence[Tensor],
) -> Value:
    """New tensors that a call returns, without references."""
    if returns_operand(operator) and operands:
        return operands[0]
    line = state.number(node)
    name = names[0] if names else base_name(operator)
    places = state.gathered.elements.get(name)
    if len(names) > 1:
        made: Value = tuple(_result(state, result_name, node, line) for result_name in names)
    elif places:
        count = min(max(places) + 1, 64)
        made = tuple(
            _result(state, places[place], node, line) if place in places else OPAQUE
            for place in range(count)
        )
    else:
        made = _result(state, name, node, line, operator, operands) if names else OPAQUE
    _note_unknown(state, operator, node, made)
    return made


def _result(
    state: WrapperState,
    name: str,
    node: ast.Call,
    line: int,
    operator: str = "",
    operands: Sequence[Tensor] = (),
) -> Tensor:
    layout = layout_of(state, name, node)
    if layout is None and operands:
        layout = state.launches.result_layout(operator, operands, node)
    size = layout.storage_bytes if layout is not None else None
    storage = state.replay.allocate(name, size, line, layout=layout)
    return Tensor(storage, layout)


def _note_unknown(state: WrapperState, operator: str, node: ast.Call, made: Value) -> None:
    storages = [state.replay.storages[tensor.storage] for tensor in tensors_in(made)]
    sizes = [storage.size_bytes for storage in storages]
    known = sum(size for size in sizes if size is not None)
    hidden = hides_bytes(operator)
    if hidden or None in sizes:
        reason = (
            "what the operator allocates inside is not in the dump"
            if hidden
            else "the size of its result is not in the dump"
        )
        state.unknown(operator, node, reason, known if None not in sizes else None)


def _resize(state: WrapperState, node: ast.Call, name: str) -> None:
    size = evaluate(state, node.args[1]) if len(node.args) > 1 else None
    number = size if isinstance(size, int) else None
    state.replayed.resized.append((name, number, state.number(node)))
    tensor = evaluate(state, node.args[0])
    if isinstance(tensor, Tensor) and number is not None:
        state.replay.resize(tensor.storage, number, state.number(node))


def _named(
    results: Value, names: Sequence[str], elements: Mapping[str, Mapping[int, str]]
) -> list[tuple[str, Tensor]]:
    """Results with the names that they are going to have."""
    if isinstance(results, Tensor):
        return [(names[0] if names else "?", results)]
    places = elements.get(names[0], {}) if len(names) == 1 else dict(enumerate(names))
    return [
        (places.get(place, "?"), item)
        for place, item in enumerate(items_of(results))
        if isinstance(item, Tensor)
    ]
