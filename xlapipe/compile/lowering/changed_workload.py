"""A workload with a change, such as one that can lower its memory.

The compiling child calls `changed_workload` like a user's function, so the parent imports no jax.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from xlapipe.compile.lowering.chosen_policy import rematerialise_as_chosen
from xlapipe.compile.lowering.given_calls import call_alone, with_calls
from xlapipe.compile.lowering.jit_parameters import jit_parameters, jit_shardings
from xlapipe.compile.lowering.load_workload import load_workload
from xlapipe.compile.lowering.sharded_arguments import axes_by_number, axes_that_differ, sharded
from xlapipe.compile.lowering.wrapped_steps import NnxJit, wrapped_step
from xlapipe.errors import ParameterError, WorkloadError
from xlapipe.registry import WorkloadReference
from xlapipe.workload import Workload

_SHARDS = 2


def changed_workload(
    *,
    reference: Mapping[str, str | None],
    donate: Sequence[str] = (),
    halve: str | None = None,
    shard_size: str | None = None,
    shard_leaves: Mapping[str, int] | None = None,
    more_devices: int | None = None,
    rematerialise: Mapping[str, Any] | None = None,
    calls: Sequence[Mapping[str, str]] = (),
    call: int = 1,
    devices: int | None = None,
) -> Workload:
    """The workload of a reference with one change.

    Args:
      reference: as `WorkloadReference.to_json` writes it.
      donate: names of parameters of the step to donate, those that are donated already included.
      halve: name of an integer argument of the workload's function, which is halved.
      shard_size: name of such an argument; the dimensions of the step's arguments that depend on
        it are sharded over two devices.
      shard_leaves: the dimension to shard over two devices, by path of the arguments' leaf.
      more_devices: value of the argument `devices` of the workload's function.
      rematerialise: arguments of `rematerialise_as_chosen`, for this process from now on.
      calls: as of `with_calls`.
      call: number of the call whose arguments it gets; 1 leaves the workload as it is.
      devices: as for `load_workload`.

    Raises:
      WorkloadError: the change is not possible for this workload.
    """
    original = WorkloadReference.from_json(reference)
    if halve is not None:
        original = _halved(original, halve)
    if more_devices is not None:
        original = _over_devices(original, more_devices)
    if rematerialise is not None:  # before the module is imported, which may call jax.grad then
        rematerialise_as_chosen(**rematerialise)
    workload = load_workload(original, devices=devices)
    if calls:
        workload = with_calls(workload, calls)
    if call != 1:
        workload = call_alone(workload, call)
    if donate:
        workload = _donating(workload, donate)
    if shard_size is not None:
        smaller = load_workload(_halved(original, shard_size))
        workload = sharded(workload, axes_that_differ(workload, smaller, _SHARDS), _SHARDS)
    if shard_leaves is not None:
        workload = sharded(workload, axes_by_number(workload, shard_leaves), _SHARDS)
    return workload


def _donating(workload: Workload, names: Sequence[str]) -> Workload:
    """A step that is jitted already is jitted again, with its static arguments and options.

    Raises:
      WorkloadError: its jit has other options, or it is another wrapper.
    """
    step = wrapped_step(workload)
    if step is None:
        return replace(workload, donate_argnums=(), donate_argnames=tuple(names))
    jitted = _jitted_again(step.fn, names) if not step.args and not step.kwargs else None
    if jitted is None:
        raise WorkloadError(
            f"workload {workload.name}: its step is wrapped already, so its donation cannot be "
            f"changed from outside; fix: donate {', '.join(names)} in its own jit"
        )
    return replace(workload, fn=jitted)


def _jitted_again(fn: Any, names: Sequence[str]) -> Any:
    """A jitted function with other donated arguments; None if its jit cannot be repeated."""
    said = jit_parameters(fn)
    if said is None or said.device is not None or said.backend is not None:
        return None
    if any(jit_shardings(fn)) or any((*said.in_layouts_leaves, *said.out_layouts_leaves)):
        return None
    said_too: dict[str, Any] = {
        "donate_argnames": tuple(names),
        "static_argnums": said.static_argnums or None,
        "static_argnames": said.static_argnames or None,
        "keep_unused": said.keep_unused,
    }
    if isinstance(fn, type(jax.jit(len))):
        options = dict(said.compiler_options_kvs)
        inner: Any = fn
        return jax.jit(inner.__wrapped__, compiler_options=options, **said_too)
    if not NnxJit.accepts(fn):
        return None
    from flax import nnx

    jitted = nnx.jit(fn.fun, **said_too)
    return jitted if type(jitted) is type(fn) else None  # `graph=False` has another type


def _over_devices(reference: WorkloadReference, devices: int) -> WorkloadReference:
    given = dict(reference.arguments or {})
    if not isinstance(given.get("devices", _default(reference, "devices")), int):
        raise WorkloadError(
            f"{reference}: its function has no integer argument `devices`; fix: give it one, over "
            "which it shards its arguments"
        )
    return replace(reference, arguments={**given, "devices": devices})


def _halved(reference: WorkloadReference, name: str) -> WorkloadReference:
    given = dict(reference.arguments or {})
    value = given.get(name, _default(reference, name))
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise ParameterError(
            f"{reference}: expected an integer `{name}` of 2 or more, found {value!r:.60}; fix: "
            "name an integer argument of the workload's function"
        )
    return replace(reference, arguments={**given, name: value // 2})


def _default(reference: WorkloadReference, name: str) -> Any:
    """The default of a parameter of the workload's function; None if it has no such parameter."""
    import importlib
    import sys

    if reference.folder is not None:
        sys.path.insert(0, str(reference.folder))
    module, _, attribute = reference.target.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    if isinstance(value, Workload) or not callable(value):
        return None
    parameter = inspect.signature(value).parameters.get(name)
    return parameter.default if parameter is not None else None
