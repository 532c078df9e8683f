"""Steps as users write them: plain functions, and functions that jax or a library has wrapped.

A function that is wrapped already (`jax.jit`, `nnx.jit`, `eqx.filter_jit`) is lowered through its
own `lower`, so that its donation, static arguments and state updates are those of the user. Each
wrapper passes other trees to jax than the user passes to it, and maps them back to names.

To support another wrapper: add a class here with `argument_names` and `output_names`, and list it
in `_WRAPPERS`.
"""

import functools
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax import stages
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, keystr, tree_flatten_with_path

from xlapipe.compile.lowering.arguments import CallArguments
from xlapipe.compile.lowering.jaxprs import KERNELS, equation_line, pallas_calls
from xlapipe.compile.lowering.names import fn_text, positional_names, unbound
from xlapipe.devices.platforms import Platform, platform_named
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import lower_traced, lowering_of, replaced
from xlapipe.workload import Workload


@dataclass(frozen=True)
class TracedStep:
    """A step that jax traced and lowered with abstract arguments.

    `dropped_updates` are paths of values that it stored in Python objects, which jax drops.
    """

    step: "WrappedStep"
    arguments: CallArguments
    traced: Any
    lowered: Any
    dropped_updates: tuple[str, ...] = ()

    @property
    def lowering(self) -> Any:
        """As of `jax_private.lowering_of`."""
        return lowering_of(self.lowered)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, after those that were bound before."""
        return (*self.step.args, *self.arguments.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments by name, those that were bound before included."""
        return {**self.step.kwargs, **self.arguments.kwargs}

    @cached_property
    def argument_names(self) -> list[str]:
        """The user's names of the leaves that jax was passed, in jax's order."""
        return self.step.argument_names(self)

    @cached_property
    def output_names(self) -> list[str]:
        """The user's names of the leaves that jax returns, in jax's order."""
        return self.step.output_names(self)

    @property
    def argument_paths(self) -> list[tuple[Any, ...]]:
        """Paths of the leaves that jax was passed."""
        return _paths(self.lowered.args_info)

    @property
    def output_paths(self) -> list[tuple[Any, ...]]:
        """Paths of the leaves that the function returns, without the new values of references."""
        tree = self.lowered.out_tree
        return _paths(tree.unflatten(range(tree.num_leaves)))


@contextmanager
def record_lowering(
    step: "WrappedStep", arguments: CallArguments, platform_name: str
) -> Iterator[list[TracedStep]]:
    """Lowers for `platform_name` whatever a wrapper lowers, and records the outermost calls."""
    recorded: list[TracedStep] = []
    original = getattr(*lower_traced)
    depth = 0

    def lower(self: Any, *, lowering_platforms: Any = None, **options: Any) -> Any:
        nonlocal depth
        if depth == 0:
            _refuse_kernels(self.jaxpr, platform_named(platform_name))
        depth += 1
        try:
            platforms = (platform_name,) if depth == 1 else lowering_platforms
            lowered = original(self, lowering_platforms=platforms, **options)
        finally:
            depth -= 1
        if depth == 0:
            recorded.append(TracedStep(step, arguments, self, lowered))
        return lowered

    with replaced(lower_traced, lower):
        yield recorded


@dataclass(frozen=True)
class WrappedStep:
    """A function under `jax.jit`, and the arguments that were bound to it before the workload's.

    `jax.jit` passes the user's own trees, so its names are the user's.
    """

    fn: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def accepts(fn: Any) -> bool:
        """Whether `fn` is wrapped this way."""
        return isinstance(fn, type(jax.jit(len)))

    def lower(self, arguments: CallArguments) -> None:
        """Calls the function's own `lower`; `record_lowering` records the result."""
        self.fn.lower(*self.args, *arguments.args, **{**self.kwargs, **arguments.kwargs})

    def argument_names(self, call: TracedStep) -> list[str]:
        """As of `TracedStep`."""
        jaxpr = call.traced.jaxpr.jaxpr
        return list(jaxpr.debug_info.safe_arg_names(len(jaxpr.invars)))

    def output_names(self, call: TracedStep) -> list[str]:
        """As of `TracedStep`."""
        return [f"out{keystr(path)}" for path in call.output_paths]


class NnxJit(WrappedStep):
    """A function under Flax's `nnx.jit`.

    It passes each module as a list of its variables, and returns `(args, kwargs, out)`, where the
    first two hold the updated variables.
    """

    @staticmethod
    def accepts(fn: Any) -> bool:
        return _is_of(fn, "flax.nnx.") and hasattr(fn, "lower")

    def argument_names(self, call: TracedStep) -> list[str]:
        defaults = super().argument_names(call)
        variables = _VariableNames(call)
        return [
            variables.name(path) or default
            for path, default in zip(call.argument_paths, defaults, strict=True)
        ]

    def output_names(self, call: TracedStep) -> list[str]:
        variables = _VariableNames(call)
        names = []
        for path in call.output_paths:
            if path[0] == SequenceKey(2):
                names.append(f"out{keystr(path[1:])}")
            else:
                updated = variables.name(path)
                names.append(f"updated{keystr(path)}" if updated is None else f"updated.{updated}")
        return names


class _VariableNames:
    """The user's names of the variables that `nnx.jit` passes.

    A variable that several modules have is passed once, with the first of them.
    """

    def __init__(self, call: TracedStep) -> None:
        self._arguments = call.args, call.kwargs
        self._parameters = positional_names(call.step.fn, len(call.args))
        self._of_module: dict[tuple[Any, ...], list[str]] = {}
        self._passed: set[int] = set()

    def name(self, path: Sequence[Any]) -> str | None:
        """`model.linear.kernel` for `[0][0].states[0][1]`; None for a leaf of no module.

        Paths of one module come before those of the next.
        """
        if GetAttrKey("states") not in path or not isinstance(path[-1], SequenceKey):
            return None
        split = list(path).index(GetAttrKey("states"))
        prefix = tuple(path[:split])
        if prefix not in self._of_module:
            self._of_module[prefix] = list(self._not_passed(prefix))
        variables = self._of_module[prefix]
        if path[-1].idx >= len(variables):
            return None
        first = path[1]
        name = self._parameters[first.idx] if path[0] == SequenceKey(0) else str(first.key)
        return f"{name}{keystr(prefix[2:])}.{variables[path[-1].idx]}"

    def _not_passed(self, prefix: Sequence[Any]) -> Iterator[str]:
        """The names in a module of its variables that no earlier module has."""
        from flax import nnx

        module = functools.reduce(follow, prefix, self._arguments)
        _, state = nnx.split(module)
        for names, _ in nnx.to_flat_state(state):
            variable = functools.reduce(_attribute, names, module)
            if id(variable) not in self._passed:
                self._passed.add(id(variable))
                yield ".".join(map(str, names))


def _attribute(node: Any, name: Any) -> Any:
    return getattr(node, name) if isinstance(name, str) and hasattr(node, name) else node[name]


def follow(node: Any, key: Any) -> Any:
    """The child of a tree's node under a key of jax's paths."""
    if isinstance(key, SequenceKey):
        return node[key.idx]
    return node[key.key] if isinstance(key, DictKey) else getattr(node, key.name)


# Equinox returns this output beside those of the user's function.
EQUINOX_MARKER = "out.marker"


class EquinoxFilterJit(WrappedStep):
    """A function under `eqx.filter_jit`.

    It passes the arrays of the first argument, of the others, and of the function as three lists,
    and returns `(marker, out, static)`; the marker is an added scalar.
    """

    @staticmethod
    def accepts(fn: Any) -> bool:
        return _is_of(fn, "equinox.") and hasattr(fn, "lower")

    def argument_names(self, call: TracedStep) -> list[str]:
        # filter_jit binds the arguments to the signature, defaults left out.
        bound = inspect.signature(call.step.fn).bind(*call.args, **call.kwargs)
        parameters = positional_names(call.step.fn, len(bound.args))
        positional = [
            _array_names(name, value) for name, value in zip(parameters, bound.args, strict=True)
        ]
        keyword = [_array_names(name, value) for name, value in sorted(bound.kwargs.items())]
        lists = {
            "first": positional[0] if positional else [],
            "rest": [name for names in (*positional[1:], *keyword) for name in names],
        }
        names = []
        for path in call.argument_paths:
            group, number = path[2].key, path[3].idx
            known = lists.get(group, [])
            names.append(known[number] if number < len(known) else f"{group}[{number}]")
        return names

    def output_names(self, call: TracedStep) -> list[str]:
        return [
            EQUINOX_MARKER if path[0] == SequenceKey(0) else f"out{keystr(path[1:])}"
            for path in call.output_paths
        ]


def _array_names(name: str, value: Any) -> list[str]:
    flat = tree_flatten_with_path(value)[0]
    return [f"{name}{keystr(path)}" for path, leaf in flat if isinstance(leaf, jax.Array)]


_WRAPPERS = (WrappedStep, NnxJit, EquinoxFilterJit)


def wrapped_step(workload: Workload) -> WrappedStep | None:
    """The workload's function if it is wrapped; None for a plain function."""
    fn, args, kwargs = unbound(workload.fn)
    if _is_pmap(fn):
        raise WorkloadError(
            f"{fn_text(workload)} is under jax.pmap, which xlapipe does not lower; fix: "
            "the equivalent is fn=jax.shard_map(jax.vmap(f), in_specs=P('i'), out_specs=P('i')), "
            "where f is the function before pmap and 'i' its axis_name, with mesh={'i': devices} "
            "and in_specs=P('i') on the workload"
        )
    for wrapper in _WRAPPERS:
        if wrapper.accepts(fn):
            return wrapper(fn, args, kwargs)
    if isinstance(fn, (stages.Traced, stages.Lowered, stages.Compiled)):
        raise WorkloadError(
            f"workload {workload.name}: fn is a jax.stages.{type(fn).__name__}, which jax made for "
            "this machine, expected a function; fix: give the function before lower() or compile()"
        )
    if hasattr(fn, "lower") and not inspect.isfunction(fn):
        raise WorkloadError(
            f"{fn_text(workload)} is a {type(fn).__module__}.{type(fn).__qualname__}, a "
            "wrapper that xlapipe does not know; fix: give the function before it was wrapped, "
            "with its donation and static arguments on the workload"
        )
    return None


def _is_pmap(fn: Any) -> bool:
    """jax.pmap returns a plain function, defined in jax, that has its own `lower`."""
    if _is_of(fn, "equinox.") and "Pmap" in type(fn).__name__:
        return True  # eqx.filter_pmap
    if not (inspect.isfunction(fn) and hasattr(fn, "lower")):
        return False
    return fn.__code__.co_filename.startswith(os.path.dirname(jax.__file__))


def _is_of(fn: Any, package: str) -> bool:
    return f"{type(fn).__module__}.".startswith(package)


def _paths(tree: Any) -> list[tuple[Any, ...]]:
    return [path for path, _ in tree_flatten_with_path(tree)[0]]


def _refuse_kernels(closed_jaxpr: Any, platform: Platform) -> None:
    """Refuses a traced program that calls a kernel with another device's compiler parameters.

    jax's own error names neither the kernel nor the line.
    """
    if not platform.refused_kernels:
        return
    for equation in pallas_calls(closed_jaxpr.jaxpr, KERNELS):
        parameters = equation.params.get("compiler_params")
        module = type(parameters).__module__
        if not any(part in module for part in platform.refused_kernels):
            continue
        raise WorkloadError(
            f"the step calls a Pallas kernel{equation_line(equation)} that does not compile for "
            f"{platform.vendor}'s {platform.noun}s: its compiler_params are of "
            f"{module.rpartition('.')[0] or module}; fix: call another implementation there, e.g. "
            "with jax.lax.platform_dependent, or compile for another target"
        )
