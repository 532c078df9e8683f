"""Lowering in the caller's own process, where closures and local functions are.

Source lines of the call stack become part of the module. Below a step they are the test runner's:
others under xdist, and others after each line that is added above the call. A new thread has none
of these frames, so the module is the same as that of a registered workload.
"""

import contextvars
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod

from jax.extend import source_info_util

from xlapipe.compile.lowering.lower import lower
from xlapipe.compile.lowering.meshes import axes_of
from xlapipe.compile.lowering.xla_input import current_settings
from xlapipe.compile.messages import LoweredProgram
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
    """As `lower`, on a separate stack if that changes nothing else."""
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
