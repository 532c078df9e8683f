"""Options of the `jax.jit` of a step, read from the jitted object before it is lowered."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, SingleDeviceSharding

from xlapipe.compile.lowering.names import fn_text, positional_names, unbound
from xlapipe.errors import WorkloadError
from xlapipe.workload import Workload


@dataclass(frozen=True)
class JitSharding:
    """A sharding that was given to `jax.jit` as `in_shardings` or `out_shardings`, the place."""

    place: str
    sharding: Any


def jit_parameters(fn: Any) -> Any:
    """jax's own record of the arguments of `jax.jit`; None for a function that is not jitted.

    Also of a step with `functools.partial`, bound to an object, or under Flax's `nnx.jit`.
    """
    jitted = unbound(fn).fn
    return getattr(getattr(jitted, "jitted_fn", jitted), "_jit_info", None)


def jit_shardings(fn: Any) -> Iterator[JitSharding]:
    """The shardings that a step's `jax.jit` was given; PartitionSpecs alone are not among them."""
    parameters = jit_parameters(fn)
    if parameters is None:
        return
    for place in ("in_shardings", "out_shardings"):
        for leaf in jax.tree.leaves(getattr(parameters, f"{place}_leaves")):
            if isinstance(leaf, jax.sharding.Sharding):
                yield JitSharding(place, leaf)


def named_jit_shardings(fn: Any) -> Iterator[JitSharding]:
    """Those of `jit_shardings` that are over a mesh."""
    for given in jit_shardings(fn):
        if isinstance(given.sharding, NamedSharding) and not given.sharding.mesh.empty:
            yield given


def jit_device(fn: Any) -> Any:
    """The device of a step's `jax.jit` if its shardings name one, which arguments must share."""
    devices = (
        next(iter(given.sharding.device_set))
        for given in jit_shardings(fn)
        if isinstance(given.sharding, SingleDeviceSharding)
    )
    return next(devices, None)


def dropped_donations(fn: Any) -> dict[str, str]:
    """The settings of jax that drop the donation of a step, by the names of its parameters."""
    jit_options = jit_parameters(fn)
    if jit_options is None or not jax.config.jax_debug_nans:
        return {}
    numbers = jit_options.donate_argnums
    by_position = positional_names(fn, max(numbers, default=-1) + 1)
    names = (*jit_options.donate_argnames, *(by_position[number] for number in numbers))
    return dict.fromkeys(names, "jax_debug_nans")


def refuse_other_device(workload: Workload) -> None:
    """Refuses a step that is jitted for a device or platform by name, or that runs without jit."""
    parameters = jit_parameters(workload.fn)
    for name in ("device", "backend"):
        value = getattr(parameters, name, None)
        if value is not None:
            raise WorkloadError(
                f"{fn_text(workload)} is jitted with {name}={value!r}, so it would not "
                f"run on the target; fix: leave {name}= out of jax.jit, where jax deprecates it, "
                "and name the GPU with --target"
            )
    if jax.config.jax_disable_jit:
        raise WorkloadError(
            f"{fn_text(workload)}: jax_disable_jit is on, so it would run operation by operation; "
            'fix: jax.config.update("jax_disable_jit", False), or leave out '
            "jax.disable_jit() and JAX_DISABLE_JIT"
        )
