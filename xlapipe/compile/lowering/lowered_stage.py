"""From a `jax.stages.Lowered` that the user has already to a lowered program.

What XLA is given is recorded from jax's own `compile` of it, as for a function. It was traced by
the user, so code that asked for a device then got the user's, not the target.
"""

from typing import Any

import jax
from jax.interpreters import mlir
from jax.tree_util import keystr, tree_flatten_with_path

from xlapipe.compile.lowering.arguments import shard_bytes
from xlapipe.compile.lowering.lowered_program import LoweredProgram
from xlapipe.compile.lowering.specs import memory_kind_of
from xlapipe.compile.lowering.strip_kernel_locations import may_hold_kernels, strip_locations
from xlapipe.compile.lowering.xla_input import XlaInput, xla_input
from xlapipe.devices.platforms import Platform
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import devices_of, lowering_of
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf

_FIX = "fix: give the function and its arguments: xlapipe.plan(jax.jit(f), *args)"


def program_of_lowered(
    name: str, lowered: jax.stages.Lowered, platform: Platform, device_kind: str
) -> LoweredProgram:
    """The program of `lowered`, for one device.

    Args:
      device_kind: jax's name of the target's devices.

    Raises:
      WorkloadError: it was lowered for another platform or GPU, for several devices, or holds what
        only its function states.
    """
    lowering = lowering_of(lowered)
    details = lowering.compile_args
    _refuse(name, lowering, platform)
    given = xla_input(name, lowering, tuple(jax.devices()[:1]))
    device = next(iter(devices_of(lowering) or ()), None)
    lowered_for: str = getattr(device, "device_kind", "an unknown device")
    content = _bytecode(name, given, lowered_for, device_kind)
    default_memory = device.default_memory().kind if device is not None else None
    infos = jax.tree.leaves(lowered.args_info)
    names = details["all_args_info"].debug_info.safe_arg_names(len(infos))
    kept = sorted(details["kept_var_idx"])
    shardings = dict(zip(kept, details["in_shardings"], strict=True))
    numbers = {position: number for number, position in enumerate(kept)}
    arguments = tuple(
        ArgumentLeaf(
            path=path,
            shape=tuple(info.shape),
            dtype=str(info.dtype),
            size_bytes=shard_bytes(info, None),
            donated=info.donated,
            parameter_number=numbers.get(position),
            memory_kind=_memory_kind(shardings.get(position), default_memory),
        )
        for position, (path, info) in enumerate(zip(names, infos, strict=True))
    )
    tree: Any = lowered.out_tree
    paths = [path for path, _ in tree_flatten_with_path(tree.unflatten(range(tree.num_leaves)))[0]]
    outputs = tuple(
        OutputLeaf(
            path=f"out{keystr(path)}",
            shape=tuple(aval.shape),
            dtype=str(aval.dtype),
            size_bytes=shard_bytes(aval, None),
            index=index,
            memory_kind=_memory_kind(sharding, default_memory),
        )
        for index, (path, aval, sharding) in enumerate(
            zip(paths, details["global_out_avals"], details["out_shardings"], strict=True)
        )
    )
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


def _bytecode(name: str, given: XlaInput, lowered_for: str, device_kind: str) -> bytes:
    content = mlir.module_to_bytecode(given.module)
    if not may_hold_kernels(content):
        return content
    # A device's own name may be the start of the catalogue's.
    if not device_kind.startswith(lowered_for):
        raise WorkloadError(
            f"{name}: holds GPU kernels that were lowered for {lowered_for}, expected "
            f"{device_kind}, the target; {_FIX}"
        )
    strip_locations(given.module)
    return mlir.module_to_bytecode(given.module)


def _memory_kind(sharding: Any, default: str | None) -> str | None:
    """The memory that the user named; None for the default of the device that it was lowered on."""
    kind = memory_kind_of(sharding) if isinstance(sharding, jax.sharding.Sharding) else None
    return None if kind == default else kind
