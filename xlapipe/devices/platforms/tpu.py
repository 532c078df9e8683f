"""Google TPUs: the names, files and options of libtpu, which holds XLA's compiler for them."""

import re
from collections.abc import Mapping
from typing import Any

from xlapipe.devices.platforms.dump_files import stage_files
from xlapipe.devices.platforms.platform import DeviceFigures, Platform
from xlapipe.devices.platforms.textproto import parse

# Chips of a host along each dimension, libtpu's default. A single chip has its own host.
CHIPS_PER_HOST = (2, 2, 1)
# The custom call by which jax hands a Pallas kernel to Mosaic.
MOSAIC_TPU_CALL = "tpu_custom_call"


def _topology_arguments(config_text: str, topology: str | None) -> Mapping[str, Any]:
    config: Any = parse(config_text)
    text = topology or "x".join("1" * int(config["grid_dimensions"]))
    grid, _, slices = text.removesuffix("slices").partition("-")
    single_chip = set(grid.split("x")) == {"1"}
    arguments: dict[str, Any] = {
        "topology_name": f"{config['generation']}:{grid}",
        "chips_per_host_bounds": [1, 1, 1] if single_chip else list(CHIPS_PER_HOST),
    }
    if slices:
        arguments["num_slices"] = int(slices)
    if "chip_config_name" in config:
        arguments["chip_config_name"] = config["chip_config_name"]
    return arguments


def _device_figures(config_text: str) -> DeviceFigures:
    """The figures of a TPU's configuration, as `devices.targets.tpu_catalogue` writes it."""
    config: Any = parse(config_text)
    return DeviceFigures(
        device_kind=str(config["device_kind"]),
        core_count=int(config["cores_per_device"]),
        platform="tpu",
        platform_name="tpu",
        # Without `TFRT TPU`, after which Pallas expects the date on which libtpu was built, and
        # refuses kernels without it. Kernels are lowered as for the newest libtpu.
        platform_version=f"PJRT C API\n{config['device_kind']}",
    )


TPU = Platform(
    name="tpu",
    vendor="Google",
    noun="TPU",
    recorded_packages=("libtpu",),
    compiler_packages=("libtpu",),
    own_compiler="libtpu",
    dump_files=stage_files(".after_optimizations"),
    gemm_policies={"auto": {}},
    gemm_calls=(),
    gemm_fusion_kinds=(),
    # The kernel itself is bytecode without its name.
    # Tried at the start of a part alone, since the backend config may hold megabytes.
    kernel_names={MOSAIC_TPU_CALL: re.compile(r"(?:^|[/()])([^/()]++)/pallas_call$")},
    topology_arguments=_topology_arguments,
    device_figures=_device_figures,
    # 2, 3 and 4 hold a few bytes of asynchronous operations; which memory they are is not known.
    memory_spaces={0: "hbm", 1: "vmem", 5: "host", 6: "smem"},
    default_memory_space="other",
    child_environment={
        # No metadata server of Google Cloud, which would be asked for the attached chips.
        "TPU_SKIP_MDS_QUERY": "1",
        # Otherwise libtpu locks /tmp/libtpu_lockfile for as long as the process lives.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # Only silence warnings of which one begins with `Failed`, as fatal errors of XLA do.
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    },
    flag_variables=("XLA_FLAGS", "LIBTPU_INIT_ARGS"),
    # libtpu writes buffer assignment, values and live ranges only if texts are asked for.
    plan_needs_texts=True,
    pads_arrays=True,
    has_chip_memory=True,
    chip_spaces=frozenset({1, 2, 3, 4, 6}),
    is_scheduled=True,
    has_chip_grid=True,
    refuses_after_planning=True,
    code_takes_memory=True,
    builds_executables=False,
    refused_kernels=("triton", "mosaic_gpu"),
    refusing_compiler=(
        "libtpu",
        "fix: `xlapipe doctor` states the version of libtpu that this jax names",
    ),
    # libtpu counts fragmentation of the heap twice, so its temp figure is not a sum of allocations.
    temp_is_a_sum=False,
)
