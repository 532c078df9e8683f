"""The options of commands that compile."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import JOBS, NETWORK, SCHEDULER, Options, hidden, target_names
from xlapipe.compile.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS, default_target
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.tuning import tuning_of
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.platforms.nvidia import DEFAULT_MEMORY_FRACTION
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xlapipe.compile.make_jobs import CompileSettings
    from xlapipe.search.rows import SearchSettings

GEMM_POLICIES = tuple(policy.value for policy in GemmPolicy)
GEMM_HELP = "which GEMM backends XLA may use"


def _size(text: str) -> int:
    from xlapipe.report.units import parse_bytes

    return parse_bytes(text)


def compile_settings(
    options: argparse.Namespace, policies: "Sequence[str] | None"
) -> "CompileSettings":
    """The values of `TARGET`, with these GEMM policies."""
    from xlapipe.compile.make_jobs import CompileSettings

    return CompileSettings(
        target=options.target,
        target_config=options.target_config,
        policies=tuple(policies or ()),
        tuning=options.tuning,
        timeout_seconds=options.timeout,
        child_memory_bytes=options.child_memory,
        topology=options.topology,
        without_xla_patches=frozenset(map(XlaPatch, options.without_xla_patch)),
        use_cache=not options.no_cache,
    )


def target_name(options: argparse.Namespace) -> str:
    config: Path | None = options.target_config
    return config.stem if config is not None else options.target or default_target()


def search_settings(options: argparse.Namespace) -> "SearchSettings":
    """The values of the options of `FITTING`."""
    from xlapipe.search.memory_budget import memory_budget
    from xlapipe.search.rows import SearchSettings

    if isinstance(options.tuning, Path):
        raise XlapipeError(
            f"--tuning {options.tuning}: a lock is valid for one size and form of a step only; "
            "fix: leave it out"
        )
    return SearchSettings(
        compile=compile_settings(options, [options.gemm]),
        memory=memory_budget(options.memory),
        at_once=options.jobs,
        scheduler=options.scheduler,
    )


# Those of every compile; `compile_settings` has their values.
TARGET: Options = {
    "--target NAME": {
        "type": target_names,
        "help": f"a name of `xlapipe targets`, or `attached`; default: that of "
        f"[tool.xlapipe] in pyproject.toml, else {DEFAULT_TARGET}",
    },
    "--target-config FILE": "a GpuTargetConfigProto in text format",
    "--tuning auto|none|tune|FILE": {
        "type": tuning_of,
        "help": "which autotune results to compile with. auto, the default: those that the "
        "device's tuner would choose, where some are known of the target (`xlapipe device locks`). "
        "none: XLA's defaults; `untuned = true` below [tool.xlapipe] in pyproject.toml states it "
        "for a project. tune, with --target attached: measure them, and keep them in the dump. "
        "FILE: autotune_lock.json of a device",
    },
    "--topology HOSTSxGPUS|CHIPS": "hosts × GPUs per host, e.g. 8x8, or a grid of TPU chips, e.g. "
    "4x4, 2x2x4 or, for two slices, 4x4-2slices; default: from the workload's mesh",
    "--no-cache": "compile again what was compiled before and is unchanged; XLAPIPE_NO_CACHE=1 in "
    "the environment does so in every command",
    **hidden(
        {
            "--timeout S": {"default": DEFAULT_TIMEOUT_SECONDS},
            "--child-memory SIZE": {"type": _size},
            "--without-xla-patch": {
                "action": "append",
                "default": [],
                "choices": [patch.value for patch in XlaPatch],
            },
        }
    ),
}
COMPILE: Options = {
    **TARGET,
    "--gemm": {
        "action": "append",
        "choices": GEMM_POLICIES,
        "help": f"{GEMM_HELP}; repeatable; default: auto",
    },
}
# Those of commands that compare many plans with a device's memory, as `search_settings` has them.
FITTING: Options = {
    **TARGET,
    "--gemm": {
        "choices": GEMM_POLICIES,
        "default": "auto",
        "help": f"{GEMM_HELP}; default: %(default)s",
    },
    **NETWORK,
    "--memory SHARE|SIZE|usable[-SIZE]": "what a plan may take of the device's memory: a share "
    "(0.9), within which XLA keeps plans; bytes (60GB); or `usable`, the default, which is "
    f"{DEFAULT_MEMORY_FRACTION:g} on GPUs, as in jax, and all that the compiler leaves on TPUs. "
    "Each also less what must stay free for other arrays and programs: usable-4GB",
    **SCHEDULER,
    **JOBS,
}
