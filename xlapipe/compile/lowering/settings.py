"""jax's configuration while a step is lowered: what the user has set must be in force then.

It is set with `jax.config.update`, with contexts such as `jax.default_matmul_precision`, which hold
for one thread, and with variables of the environment.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh

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
_CHANGED = ("jax_default_device",)


def current_settings() -> dict[str, Any]:
    """Every value of jax's configuration in this thread, and of its contexts without a name."""
    values = {name: holder.value for name, holder in setting_holders().items()}
    contexts = {f"context {number}": it for number, it in enumerate(trace_context())}
    return {**values, **contexts}


def refuse_changed_settings(name: str, before: Mapping[str, Any]) -> None:
    """Compares the current settings with those that the user had in force.

    The current mesh, which the workload can name, the default device and the target may differ.

    Args:
      name: name of the workload.

    Raises:
      WorkloadError: another setting differs, so the program would be another one.
    """
    for setting, value in current_settings().items():
        other = before.get(setting)
        expected = isinstance(value, (AbstractMesh, jax.Device, TracedFor)) or setting in _CHANGED
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
