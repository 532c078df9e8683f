"""The user's variables of the environment that could change a program, and where they go.

A plan must not depend on the shell in which it was made, so XLA's and jax's variables do not reach
the compiling child. Those that could change the program are listed in the dump.
"""

import re
from collections.abc import Iterator, Mapping

CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# Variables of jax, and flags of XLA, that say nothing about a program for the target: where jax
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


def left_out(environment: Mapping[str, str], *, lowered_here: bool) -> tuple[str, ...]:
    """What the compiling child does not get and could change the program, as `NAME=value`.

    Args:
      lowered_here: whether this process traced the step, with jax's variables in force.
    """
    return tuple(_left_out(environment, lowered_here))


def _left_out(environment: Mapping[str, str], lowered_here: bool) -> Iterator[str]:
    for name, value in sorted(environment.items()):
        if name in _FLAGS:
            flags = [flag for flag in value.split() if not _NEUTRAL_FLAG.fullmatch(flag)]
            if flags:
                yield f"{name}={' '.join(flags)}"
        elif name.startswith("JAX_") and not lowered_here and not _NEUTRAL_VARIABLE.fullmatch(name):
            yield f"{name}={value}"
