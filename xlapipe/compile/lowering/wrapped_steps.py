"""Steps as users write them: plain functions, and functions that jax or a library has wrapped.

A function that is wrapped already (`jax.jit`, `nnx.jit`, `eqx.filter_jit`) is lowered through its
own `lower`, so that its donation, static arguments and state updates are those of the user. Each
wrapper passes other trees to jax than the user passes to it; `StepCall` maps them back to names.

To support another wrapper: add a class here with `argument_names` and `output_names`, and list it
in `_WRAPPERS`.
"""

import functools
import inspect
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
from jax import stages
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, keystr, tree_flatten_with_path

from xlapipe.compile.lowering.bound_functions import unbound
from xlapipe.compile.lowering.gpu_kernels import refuse_gpu_kernels
from xlapipe.compile.lowering.names import fn_text, positional_names
from xlapipe.devices.platforms import platform_named
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import lower_traced, replaced
from xlapipe.plans.compile_times import StageSeconds
from xlapipe.workload import Workload


@dataclass(frozen=True)
class RecordedLowering:
    """One call of `lower` that reached jax.

    Attributes:
      seconds: of tracing and of lowering, by `trace` and `lower`.
    """

    traced: Any
    lowered: Any
    seconds: Mapping[str, StageSeconds]

    @property
    def output_paths(self) -> list[tuple[Any, ...]]:
        """Paths of the leaves that the function returns, without the new values of references."""
        tree = self.lowered.out_tree
        return _paths(tree.unflatten(range(tree.num_leaves)))


@contextmanager
def record_lowering(platform_name: str) -> Iterator[list[RecordedLowering]]:
    """Lowers for `platform_name` whatever a wrapper lowers, and records the outermost calls."""
    recorded: list[RecordedLowering] = []
    start = _now()
    original = getattr(*lower_traced)
    depth = 0

    def lower(self: Any, *, lowering_platforms: Any = None, **options: Any) -> Any:
        nonlocal depth
        if depth == 0 and not platform_named(platform_name).runs_gpu_kernels:
            refuse_gpu_kernels(self.jaxpr)
        depth += 1
        traced = _now()
        try:
            platforms = (platform_name,) if depth == 1 else lowering_platforms
            lowered = original(self, lowering_platforms=platforms, **options)
        finally:
            depth -= 1
        if depth == 0:
            seconds = {"trace": _between(start, traced), "lower": _between(traced, _now())}
            recorded.append(RecordedLowering(self, lowered, seconds))
        return lowered

    with replaced(lower_traced, lower):
        yield recorded


def _now() -> StageSeconds:
    return StageSeconds(time.perf_counter(), time.process_time())


def _between(start: StageSeconds, end: StageSeconds) -> StageSeconds:
    return StageSeconds(end.wall - start.wall, end.cpu - start.cpu)


@dataclass(frozen=True)
class StepCall:
    """A call of a wrapped function that was lowered, with the arguments bound to it before."""

    fn: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    recorded: RecordedLowering


class JaxJit:
    """How `jax.jit` passes arguments and results to jax: its own names are the user's."""

    def accepts(self, fn: Any) -> bool:
        """Whether `fn` is wrapped this way."""
        return isinstance(fn, type(jax.jit(len)))

    def argument_names(self, call: StepCall) -> list[str]:
        """The user's names of the leaves that jax was passed, in jax's order."""
        jaxpr = call.recorded.traced.jaxpr.jaxpr
        return list(jaxpr.debug_info.safe_arg_names(len(jaxpr.invars)))

    def output_names(self, call: StepCall) -> list[str]:
        """The user's names of the leaves that jax returns, in jax's order."""
        return [f"out{keystr(path)}" for path in call.recorded.output_paths]


class NnxJit(JaxJit):
    """A function under Flax's `nnx.jit`.

    It passes each module as a list of its variables, and returns `(args, kwargs, out)`, where the
    first two hold the updated variables.
    """

    def accepts(self, fn: Any) -> bool:
        return _is_of(fn, "flax.nnx.") and hasattr(fn, "lower")

    def argument_names(self, call: StepCall) -> list[str]:
        defaults = super().argument_names(call)
        variables = _VariableNames(call)
        return [
            variables.name(path) or default
            for path, default in zip(_paths(call.recorded.lowered.args_info), defaults, strict=True)
        ]

    def output_names(self, call: StepCall) -> list[str]:
        variables = _VariableNames(call)
        names = []
        for path in call.recorded.output_paths:
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

    def __init__(self, call: StepCall) -> None:
        self._arguments = call.args, call.kwargs
        self._parameters = positional_names(call.fn, len(call.args))
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


class EquinoxFilterJit(JaxJit):
    """A function under `eqx.filter_jit`.

    It passes the arrays of the first argument, of the others, and of the function as three lists,
    and returns `(marker, out, static)`; the marker is an added scalar.
    """

    def accepts(self, fn: Any) -> bool:
        return _is_of(fn, "equinox.") and hasattr(fn, "lower")

    def argument_names(self, call: StepCall) -> list[str]:
        # filter_jit binds the arguments to the signature, defaults left out.
        bound = inspect.signature(call.fn).bind(*call.args, **call.kwargs)
        parameters = positional_names(call.fn, len(bound.args))
        positional = [
            _array_names(name, value) for name, value in zip(parameters, bound.args, strict=True)
        ]
        keyword = [_array_names(name, value) for name, value in sorted(bound.kwargs.items())]
        lists = {
            "first": positional[0] if positional else [],
            "rest": [name for names in (*positional[1:], *keyword) for name in names],
        }
        names = []
        for path in _paths(call.recorded.lowered.args_info):
            group, number = path[2].key, path[3].idx
            known = lists.get(group, [])
            names.append(known[number] if number < len(known) else f"{group}[{number}]")
        return names

    def output_names(self, call: StepCall) -> list[str]:
        return [
            EQUINOX_MARKER if path[0] == SequenceKey(0) else f"out{keystr(path[1:])}"
            for path in call.recorded.output_paths
        ]


def _array_names(name: str, value: Any) -> list[str]:
    flat = tree_flatten_with_path(value)[0]
    return [f"{name}{keystr(path)}" for path, leaf in flat if isinstance(leaf, jax.Array)]


_WRAPPERS: tuple[JaxJit, ...] = (JaxJit(), NnxJit(), EquinoxFilterJit())


@dataclass(frozen=True)
class WrappedStep:
    """A wrapped function and the arguments that were bound to it before the workload's own."""

    fn: Any
    wrapper: JaxJit
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    @property
    def is_equinox(self) -> bool:
        return isinstance(self.wrapper, EquinoxFilterJit)

    def lower(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Calls the function's own `lower`; `record_lowering` records the result."""
        self.fn.lower(*self.args, *args, **self._all_kwargs(kwargs))

    def argument_names(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], recorded: RecordedLowering
    ) -> list[str]:
        """The user's names of the leaves that jax was passed, in jax's order."""
        return self.wrapper.argument_names(self._call(args, kwargs, recorded))

    def output_names(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], recorded: RecordedLowering
    ) -> list[str]:
        """The user's names of the leaves that jax returns, in jax's order."""
        return self.wrapper.output_names(self._call(args, kwargs, recorded))

    def _call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], recorded: RecordedLowering
    ) -> StepCall:
        return StepCall(self.fn, (*self.args, *args), self._all_kwargs(kwargs), recorded)

    def _all_kwargs(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {**(self.kwargs or {}), **kwargs}


def wrapped_step(workload: Workload) -> WrappedStep | None:
    """The workload's function if it is wrapped; None for a plain function.

    Raises:
      WorkloadError: a wrapper that cannot be lowered as it would run.
    """
    fn, args, kwargs = unbound(workload.fn)
    if _is_pmap(fn):
        raise WorkloadError(
            f"{fn_text(workload)} is under jax.pmap, which xlapipe does not lower; fix: "
            "the equivalent is fn=jax.shard_map(jax.vmap(f), in_specs=P('i'), out_specs=P('i')), "
            "where f is the function before pmap and 'i' its axis_name, with mesh={'i': devices} "
            "and in_specs=P('i') on the workload"
        )
    if str(getattr(fn, "__module__", "")).startswith("keras.") and fn.__name__ == "iterator_step":
        raise WorkloadError(
            f"{fn_text(workload)} is keras's own train_function, test_function or "
            "predict_function, which takes an iterator of batches; fix: give "
            "jax.jit(model.train_step, donate_argnums=0), with args=(state, batch) as in keras's "
            "guide to custom training in JAX"
        )
    for wrapper in _WRAPPERS:
        if wrapper.accepts(fn):
            return WrappedStep(fn, wrapper, args, kwargs)
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
