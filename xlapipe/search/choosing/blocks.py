"""The repeated functions of a forward pass, as places for a checkpoint, and the code for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xlapipe.compile.lowering.forward_graph import (
    ForwardGraph,
    ForwardValue,
    LoopCall,
    RepeatedCall,
)
from xlapipe.time.recomputed import relative

# Functions that hold a smaller share of what is saved are helpers.
_LEAST_SHARE = 0.02
_DEEPEST = 3
_EXTRA = {
    "nnx.remat": "from flax import nnx",
    "nn.remat": "from flax import linen as nn",
    "eqx.filter_checkpoint": "import equinox as eqx",
}
# Their outputs are arrays alone.
_OF_ARRAYS = ("jax.checkpoint", "nn.remat")


@dataclass(frozen=True)
class Some:
    """Which calls in a loop are checkpointed.

    Attributes:
      condition: expression of the call's `number`.
      period: the same number of calls are checkpointed in each so many.
      share: of the calls that are.
    """

    text: str
    condition: str
    period: int
    share: float

    def among(self, functions: Sequence[RepeatedCall]) -> Iterator[RepeatedCall]:
        """The functions whose loops are long enough."""
        for own in functions:
            if own.loop is not None and own.loop.calls >= 2 * self.period:
                yield own


SOME = (
    Some("every second of", "number % 2 == 0", 2, 0.5),
    Some("three of four of", "number % 4 != 0", 4, 0.75),
    Some("every fourth of", "number % 4 == 0", 4, 0.25),
)


def blocks_of(graph: ForwardGraph, values: Sequence[ForwardValue]) -> list[list[int]]:
    """Numbers of functions that get a checkpoint together.

    The outermost repeated functions, then the parts of them, then both together, then parts alone.
    """
    large = list(_large(graph, values))
    # Beside blocks, functions without a matrix product, such as a norm, are helpers.
    numbers = [number for number in large if _works(number, values)] or large
    depth = {number: _depth(graph, number, numbers) for number in numbers}
    levels = [[n for n in numbers if depth[n] == level] for level in range(_DEEPEST)]
    choices = [level for level in levels if level]
    if len(choices) > 1:
        outer, parts, *_ = choices
        choices.insert(2, [*outer, *parts])  # often the smallest plan
        choices += [[part] for part in parts if len(parts) > 1]
    return choices


def _large(graph: ForwardGraph, values: Sequence[ForwardValue]) -> Iterator[int]:
    whole = sum(value.size_bytes for value in values if value.needed)
    for number, function in enumerate(graph.repeated):
        own = sum(v.size_bytes for v in values if v.needed and number in v.calls)
        arrays_alone = function.other_output is None or function.form not in _OF_ARRAYS
        if own > _LEAST_SHARE * whole and arrays_alone:
            yield number


def _works(number: int, values: Sequence[ForwardValue]) -> bool:
    """Whether a function has a product, a convolution or a kernel."""
    own = (value for value in values if number in value.calls)
    kernels = ("pallas", "custom", "ffi")
    return any(v.operations or (v.key and v.key.primitive.startswith(kernels)) for v in own)


def _depth(graph: ForwardGraph, number: int, among: Sequence[int]) -> int:
    depth, outer = 0, graph.repeated[number].outer
    while outer is not None:
        depth += outer in among
        outer = graph.repeated[outer].outer
    return depth


def blocks_text(functions: Sequence[RepeatedCall], *, lines: bool = False) -> str:
    """As in `8 × Block (gpt.py:36), 2 × Head (gpt.py:50)`."""
    return ", ".join(
        f"{own.calls} × {own.name}" + (f" ({relative(own.source)})" if lines else "")
        for own in functions
    )


def decorators_of(functions: Sequence[RepeatedCall]) -> Mapping[str, str]:
    """The name of the decorator that each function gets, by the line that it is written above."""
    forms = list(dict.fromkeys((own.form, own.static_argnums) for own in functions))
    names = ["checkpointed", *(f"checkpointed_{n}" for n in range(2, len(forms) + 1))]
    name_of = dict(zip(forms, names, strict=True))
    return {own.source: name_of[own.form, own.static_argnums] for own in functions}


def blocks_code(functions: Sequence[RepeatedCall], policy: str, some: Some | None = None) -> str:
    """What to write: the policy, the decorators, and where they go."""
    names = decorators_of(functions)
    extra = sorted({_EXTRA[own.form] for own in functions if own.form in _EXTRA})
    imports = "\n".join(("import jax", *extra))
    decorators = {names[own.source]: _decorator(names[own.source], own) for own in functions}
    lines = [
        f"# {relative(own.source)}: write @{names[own.source]} on the line above, "
        f"for each of {own.calls} × {own.name}\n"
        for own in functions
    ]
    if some is not None:
        lines = [_changed_loop(own.loop, names[own.source], some) for own in functions if own.loop]
    code = f"import functools\n\n{imports}\n\n{policy}"
    return f"{code}{''.join(decorators.values())}\n\n{''.join(lines)}"


def _changed_loop(loop: LoopCall, name: str, some: Some) -> str:
    condition = some.condition.replace("number", loop.counter)
    call = f"({name}({loop.function}) if {condition} else {loop.function})({loop.arguments})"
    return (
        f"# {relative(loop.header_source)}: write `{loop.header}`\n"
        f"# {relative(loop.source)}: write `{call}` for `{loop.written}`\n"
    )


def _decorator(name: str, function: RepeatedCall) -> str:
    finds_arrays = function.form == "eqx.filter_checkpoint"
    if function.static_argnums is None and not finds_arrays:
        return _applied_to_arrays(name, function.form)
    static = f"static_argnums={function.static_argnums!r}, " if function.static_argnums else ""
    own = "" if finds_arrays else static
    return f"{name} = functools.partial({function.form}, {own}policy=policy)\n"


def _applied_to_arrays(name: str, form: str) -> str:
    """A decorator for functions whose arguments are partly not arrays, and passed by name.

    The first argument of a library's form is the module.
    """
    module = "" if form == "jax.checkpoint" else "module, "
    return f'''

def {name}(function):
    """`function` under {form}; arguments that are not arrays stay as they are."""

    @functools.wraps(function)
    def call({module}*args, **kwargs):
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = {{n: leaf for n, leaf in enumerate(leaves) if hasattr(leaf, "dtype")}}

        def of_arrays({module}arrays):
            own = [arrays.get(n, leaf) for n, leaf in enumerate(leaves)]
            args, kwargs = jax.tree.unflatten(tree, own)
            return function({module}*args, **kwargs)

        return {form}(of_arrays, policy=policy)({module}arrays)

    return call
'''
