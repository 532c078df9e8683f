"""Lowering in the caller's own process, where closures and local functions are.

A `jax.stages.Lowered` is what the caller has lowered already: what XLA is given is recorded from
jax's own `compile` of it, as for a function. Code of it that asked for a device got the caller's,
not the target.

Source lines of the call stack become part of the module. Below a step they are the test runner's:
others under xdist, and others after each line that is added above the call. A new thread has none
of these frames, so the module is the same as that of a registered workload.
"""

import contextvars
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
from jax.extend import source_info_util
from jax.tree_util import keystr, tree_flatten_with_path

from xlapipe.compile.lowering.leaves import argument_leaves, output_leaves
from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.lowering.meshes import axes_of
from xlapipe.compile.lowering.module_kernels import may_hold_kernels, stripped_bytecode
from xlapipe.compile.lowering.xla_input import current_settings, xla_input
from xlapipe.compile.messages import LoweredProgram
from xlapipe.devices.platforms import NVIDIA, Platform
from xlapipe.devices.targets.topology import DeviceTopology, topology_of_devices
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import devices_of, lowering_of
from xlapipe.workload import Workload

_FIX = "fix: give the function and its arguments: xlapipe.plan(jax.jit(f), *args)"
source_info_util.register_exclusion(__file__)


def lower_in_test(
    workload: Workload,
    config_text: str,
    *,
    platform: Platform = NVIDIA,
    topology: DeviceTopology | None = None,
) -> LoweredProgram:
    """As `lower`, on a separate stack if that changes nothing else.

    Args:
      topology: topology of the devices; None for the mesh's default, as in the child.
    """
    settings = current_settings()
    axes = axes_of(workload)
    if topology is None and axes is not None:
        topology = topology_of_devices(
            prod(axes.values()), platform=platform.name, config_text=config_text
        )
    lower_here = partial(lower, workload, config_text, platform=platform, topology=topology)

    def lower_alike() -> LoweredProgram | None:
        # `with jax.default_matmul_precision(…)` and its like hold for one thread alone.
        return lower_here() if current_settings() == settings else None

    with ThreadPoolExecutor(1, thread_name_prefix="xlapipe-lower") as pool:
        lowered = pool.submit(contextvars.copy_context().run, lower_alike).result()
    return lower_here() if lowered is None else lowered


def program_of_lowered(
    name: str, lowered: jax.stages.Lowered, platform: Platform, device_kind: str
) -> LoweredProgram:
    """The program of `lowered`, for one device.

    Args:
      device_kind: jax's name of the target's devices.
    """
    lowering = lowering_of(lowered)
    _refuse(name, lowering, platform)
    given = xla_input(name, lowering, tuple(jax.devices()[:1]))
    device = next(iter(devices_of(lowering) or ()), None)
    lowered_for: str = getattr(device, "device_kind", "an unknown device")
    content = stripped_bytecode(given.module)
    # A device's own name may be the start of the catalogue's.
    if may_hold_kernels(content) and not device_kind.startswith(lowered_for):
        raise WorkloadError(
            f"{name}: holds GPU kernels that were lowered for {lowered_for}, expected "
            f"{device_kind}, the target; {_FIX}"
        )
    default_memory = device.default_memory().kind if device is not None else None
    debug_info = lowering.compile_args["all_args_info"].debug_info
    names = debug_info.safe_arg_names(len(jax.tree.leaves(lowered.args_info)))
    arguments = tuple(
        replace(leaf, memory_kind=None) if leaf.memory_kind == default_memory else leaf
        for leaf in argument_leaves(lowered, names)
    )
    tree: Any = lowered.out_tree
    paths, _ = tree_flatten_with_path(tree.unflatten(range(tree.num_leaves)))
    outputs = output_leaves(lowered, [f"out{keystr(path)}" for path, _ in paths], arguments)
    return LoweredProgram(
        workload=name,
        stablehlo=content,
        arguments=arguments,
        outputs=outputs,
        settings=given.settings,
        compile_options=given.compile_options,
        options=given.compiler_options,
    )


def _refuse(name: str, lowering: Any, platform: Platform) -> None:
    details = lowering.compile_args
    platforms = tuple(lowering._platforms)
    if platforms != (platform.name,):
        raise WorkloadError(
            f"{name}: lowered for {', '.join(platforms)}, expected {platform.name}, the target's "
            f"platform: programs of other platforms differ; {_FIX}, which lowers it for the "
            "target; or lower it for that platform: "
            f"jax.jit(f).trace(*args).lower(lowering_platforms=({platform.name!r},))"
        )
    if details["num_devices"] != 1:
        raise WorkloadError(
            f"{name}: lowered for {details['num_devices']} devices, expected one, since the "
            f"devices of its mesh are not the target's; {_FIX}"
        )
    if details["ordered_effects"] or details["mut"] or lowering.const_args:
        raise WorkloadError(
            f"{name}: lowered with ordered effects, references or hoisted constants, which add "
            f"parameters; {_FIX}"
        )
