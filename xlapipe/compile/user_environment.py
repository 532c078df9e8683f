"""The user's variables of the environment that could change a program, and where they go.

A plan must not depend on the shell in which it was made, so XLA's and jax's variables do not reach
the compiling child. Those that could change the program are listed in the dump.
"""

import re
from collections.abc import Iterator, Mapping

from xlapipe.devices.platforms import PLATFORMS, platform_named
from xlapipe.errors import WorkloadError

CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
_FLAGS = frozenset(name for platform in PLATFORMS for name in platform.flag_variables)
# Variables of jax, and flags of XLA, that do not affect a program for the target: where jax
# runs, what it logs, and what it keeps.
_NEUTRAL_VARIABLE = re.compile(
    r"JAX_(PLATFORMS|PLATFORM_NAME|NUM_CPU_DEVICES|(ENABLE_)?COMPILATION_CACHE.*|PERSISTENT_CACHE.*"
    r"|LOG.*|DEBUG_LOG_MODULES|TRACEBACK_.*|EXPLAIN_.*|DUMP_IR.*|.*TRANSFER_GUARD.*)"
)
# Optimisation of the kernels' code comes after buffer assignment.
_NEUTRAL_FLAG = re.compile(
    r"--xla_(dump_.*|force_host_platform_device_count.*|cpu_.*|backend_optimization_level.*)"
)
_HOST_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the compiling child gets; the number of CPU devices is among them."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _FLAGS and (name == CPU_DEVICES or not name.startswith("JAX_"))
    }
    match = _HOST_DEVICES.search(environment.get("XLA_FLAGS", ""))
    return {CPU_DEVICES: match[1], **kept} if match else kept


def refuse_changed_variables(
    workload: str,
    before: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    settings: Mapping[str, object],
    platform: str,
) -> None:
    """Refuses variables of jax and XLA that the user's module has set since `before`.

    jax reads its variables when it is imported, which was before, and XLA its flags at one time or
    another, so that they would reach the program by chance. The settings are those of jax's
    configuration, by jax's names.
    """
    changed = {
        name: " ".join(flag for flag in value.split() if flag not in before.get(name, "").split())
        if name in _FLAGS
        else value
        for name, value in environment.items()
        if value != before.get(name)
        and not _is_in_force(settings.get(name.lower()), value)
        and (name not in _FLAGS or name in platform_named(platform).flag_variables)
    }
    for setting in left_out(changed, lowered_here=False):
        name = setting.partition("=")[0]
        fix = (
            "options={'xla_…': value} on the workload, or compiler_options= of jax.jit"
            if name in _FLAGS
            else f"jax.config.update({name.lower()!r}, value) in the module"
        )
        raise WorkloadError(
            f"workload {workload}: its module sets {setting} in os.environ, which jax has read "
            f"already; expected what the program depends on without the environment; fix: {fix}"
        )


def _is_in_force(setting: object, value: str) -> bool:
    """Whether jax's configuration has the value of a variable already."""
    if isinstance(setting, bool):
        return setting == (value.lower() in ("1", "true", "t", "yes", "y", "on"))
    return setting is not None and str(setting) == value


def left_out(environment: Mapping[str, str], *, lowered_here: bool) -> Iterator[str]:
    """What the compiling child does not get and could change the program, as `NAME=value`."""
    for name, value in sorted(environment.items()):
        if name in _FLAGS:
            flags = [flag for flag in value.split() if not _NEUTRAL_FLAG.fullmatch(flag)]
            if flags:
                yield f"{name}={' '.join(flags)}"
        elif name.startswith("JAX_") and not lowered_here and not _NEUTRAL_VARIABLE.fullmatch(name):
            yield f"{name}={value}"
