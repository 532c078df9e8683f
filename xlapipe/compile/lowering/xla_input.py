"""What jax itself gives XLA for a lowered step.

jax's own `compile` of the lowered step runs up to its call of XLA, which records its arguments
instead. So what jax derives from the function, the arguments and its configuration is taken from
jax, and `refuse_other_options` compares it with what the compiling child gives XLA.

What the user has set in jax's configuration must be in force while a step is lowered. It is set
with `jax.config.update`, with contexts such as `jax.default_matmul_precision`, which hold for one
thread, and with variables of the environment.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh

from xlapipe import jax_private
from xlapipe.compile.lowering.target_devices import TracedFor
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import setting_holders, trace_context

# What `jax._src.compiler.get_compile_options` reads.
_COMPILE_SETTINGS = (
    "jax_use_shardy_partitioner",
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_disable_most_optimizations",
    "jax_compiler_enable_remat_pass",
    "jax_xla_profile_version",
)
# Which device computes here while the step is traced.
_OTHER_DEVICE = ("jax_default_device",)
# What differs from jax's own by intent: xlapipe names the devices, and adds its options.
_CHANGED = ("device_assignment", "env_option_overrides", "debug_options")


@dataclass(frozen=True)
class XlaInput:
    """The arguments of jax's call of XLA: the StableHLO module, and what decides about options.

    `compiler_options` are those of the function's own `jax.jit`, `settings` of jax's configuration,
    and `compile_options` the fields of jax's compile options, as `option_fields` returns them.
    """

    module: Any
    compiler_options: Mapping[str, Any]
    settings: Mapping[str, Any]
    compile_options: Mapping[str, Any]


class _ReachedXla(Exception):  # noqa: N818 - control flow, not an error
    pass


def xla_input(where: str, lowering: Any, devices: tuple[Any, ...]) -> XlaInput:
    """What jax's compile of a lowered step gives XLA."""
    compiler_options = jax_private.compiler_options(lowering)
    _refuse_unrecordable(where, compiler_options)
    recorded: list[tuple[Any, Any]] = []

    # Another argument in a later jax is an error here, and not a part of the program that is lost.
    def compile_or_get_cached(
        backend: Any,
        computation: Any,
        devices: Any,
        compile_options: Any,
        host_callbacks: Any,
        executable_devices: Any,
        pgle_profiler: Any = None,
    ) -> Any:
        recorded.append((computation, compile_options))
        raise _ReachedXla

    assignment = devices if jax_private.devices_of(lowering) is None else None
    place = jax_private.compile_or_get_cached
    with jax_private.replaced(place, compile_or_get_cached), suppress(_ReachedXla):
        lowering.compile(device_assignment=assignment)
    ((module, options),) = recorded
    return XlaInput(
        module=module,
        compiler_options=compiler_options,
        settings=compile_settings(),
        compile_options=option_fields(options),
    )


def _refuse_unrecordable(where: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if not isinstance(value, (bool, int, float, str)):
            raise WorkloadError(
                f"{where} has {name!r} in its compiler_options, a {type(value).__name__}, expected "
                "a number, a boolean or a string; fix: leave it out, since xlapipe cannot record "
                "it in a dump"
            )


def option_fields(options: Any) -> dict[str, Any]:
    """The fields of jax's CompileOptions that are plain data, those of the build options included.

    Fields that a later jax adds are included.
    """
    fields = {}
    for prefix, owner in (("", options), ("build.", options.executable_build_options)):
        for name in dir(owner):
            if name.startswith("_") or name in _CHANGED:
                continue
            value = getattr(owner, name)
            if isinstance(value, (bool, int, float, str, list)):
                fields[prefix + name] = value
    return fields


def refuse_other_options(workload: str, jax_fields: Mapping[str, Any], options: Any) -> None:
    """Compares the compile options that XLA is given with jax's own."""
    given = option_fields(options)
    for name in sorted({*given, *jax_fields}):
        if given.get(name) != jax_fields.get(name):
            raise WorkloadError(
                f"workload {workload}: XLA's compile option {name} is {given.get(name)!r}, "
                f"expected {jax_fields.get(name)!r} as jax gives it; this is a bug of xlapipe, "
                "which refuses to plan another program than jax compiles; fix: report it"
            )


def current_settings() -> dict[str, Any]:
    """Every value of jax's configuration in this thread, and of its contexts without a name."""
    values = {name: holder.value for name, holder in setting_holders().items()}
    contexts = {f"context {number}": it for number, it in enumerate(trace_context())}
    return {**values, **contexts}


def refuse_changed_settings(name: str, before: Mapping[str, Any]) -> None:
    """Compares the current settings with those that the user had in force.

    The current mesh, which the workload can name, the default device and the target may differ.
    """
    for setting, value in current_settings().items():
        other = before.get(setting)
        expected = (
            isinstance(value, (AbstractMesh, jax.Device, TracedFor)) or setting in _OTHER_DEVICE
        )
        if not expected and value is not other and value != other:
            raise WorkloadError(
                f"workload {name}: jax's {setting} is {value!r} while the step is lowered, expected"
                f" {other!r} as the user has set it; this is a bug of xlapipe, which refuses to "
                "plan another program than jax compiles; fix: report it"
            )


def compile_settings() -> dict[str, Any]:
    """The values of the settings that decide about compile options, by jax's names."""
    holders = setting_holders()
    values = {name: holders[name].value for name in _COMPILE_SETTINGS if name in holders}
    return {name: getattr(value, "value", value) for name, value in values.items()}


def apply_settings(values: Mapping[str, Any]) -> None:
    """Gives this process the compile settings of the process that lowered the step."""
    current = compile_settings()
    for name, value in values.items():
        if current[name] != value:
            jax.config.update(name, value)
