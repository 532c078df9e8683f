"""Lowering in the test's own process, where closures and local functions are.

Source lines of the call stack become part of the module. Below a step they are the test runner's:
others under xdist, and others after each line that is added above the call. A new thread has none
of these frames, so the module is the same as that of a registered workload.
"""

import contextvars
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from typing import Any

import jax
from jax.extend import source_info_util

from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.lowering.lowered_program import LoweredProgram
from xlapipe.compile.lowering.meshes import axes_of
from xlapipe.compile.lowering.names import named_leaves
from xlapipe.compile.lowering.settings import current_settings
from xlapipe.devices.platforms import NVIDIA, Platform
from xlapipe.devices.targets.topology import DeviceTopology, topology_of_devices
from xlapipe.workload import Workload

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

    Raises:
      WorkloadError: as `lower`; what the user's function raises passes through.
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


def same_buffers(workload: Workload) -> dict[str, str]:
    """Paths of leaves that are one array, each to the first other one.

    Arguments that are abstract have no buffers, and nothing is known of them.
    """
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for path, leaf in named_leaves(workload):
        buffer = _buffer(leaf)
        if buffer is None:
            continue
        other = first.setdefault(buffer, path)
        if other != path:
            same[path] = other
            same.setdefault(other, path)
    return same


def _buffer(leaf: Any) -> Any:
    """What two leaves have in common if they are one buffer; None if that is unknown.

    A numpy array is copied to the device for each leaf, and can be shared freely.
    """
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or leaf.size == 0:
        return None
    if leaf.is_deleted():
        return None
    try:
        return leaf.unsafe_buffer_pointer()
    except (ValueError, RuntimeError, NotImplementedError, AttributeError):
        return id(leaf)  # on several devices, or a typed key
