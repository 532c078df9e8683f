"""NVIDIA GPUs: the names, files and options that XLA uses for them."""

import re
from collections.abc import Mapping
from typing import Any

from xlapipe.devices.platforms.dump_files import (
    THUNKS_AFTER_PASSES,
    THUNKS_BEFORE_PASSES,
    DumpFile,
    Part,
    stage_files,
)
from xlapipe.devices.platforms.platform import DeviceFigures, Platform
from xlapipe.devices.platforms.textproto import parse

# The custom calls by which jax hands a Pallas kernel to Triton and to Mosaic GPU.
TRITON_CALL, MOSAIC_CALL = "__gpu$xla.gpu.triton", "mosaic_gpu_v2"

_DNN_PARTS = ("major", "minor", "patch")
# The oldest that a jax for CUDA 13 runs with. No target config names cuSOLVER's version.
_OLDEST_CUDNN, _OLDEST_CUSOLVER = 91200, 12000
# The unit in which the CUDA driver maps memory.
_MAPPED_BYTES = 2 * 2**20
# The share of a GPU's memory that jax gives XLA unless XLA_CLIENT_MEM_FRACTION is set
# (docs.jax.dev, "GPU memory allocation").
DEFAULT_MEMORY_FRACTION = 0.75


def _topology_arguments(config_text: str, topology: str | None) -> Mapping[str, Any]:
    # jax's form is slices × hosts × devices; several slices are not supported here.
    return {"target_config": config_text, "topology": f"1x{topology or '1x1'}"}


def _device_figures(config_text: str) -> DeviceFigures:
    """The figures of a GpuTargetConfigProto in text form."""
    config: Any = parse(config_text)
    device = config.get("gpu_device_info", {})
    capability = device.get("cuda_compute_capability", {})
    return DeviceFigures(
        device_kind=str(config.get("device_description_str") or device.get("name") or ""),
        core_count=int(device.get("core_count", 0)),
        platform="gpu",
        platform_name="cuda",
        platform_version=f"PJRT C API\ncuda {config.get('runtime_version', {}).get('major', '')}",
        compute_capability=".".join(str(capability.get(part, 0)) for part in ("major", "minor")),
        cudnn_version=_cudnn_version(device.get("dnn_version"), config.get("dnn_version_info")),
        cusolver_version=_OLDEST_CUSOLVER,
        cub_version=str(device.get("cub_version") or "0.0.0"),
    )


def _cudnn_version(text: Any, parts: Any) -> int:
    """cuDNN's own number of the version that the config names.

    The catalogue's configs are partly from before CUDA 13, with a cuDNN that jax would refuse.
    """
    numbers = str(text).split(".") if text else [(parts or {}).get(name, 0) for name in _DNN_PARTS]
    major, minor, patch = map(int, numbers)
    return max(10_000 * major + 100 * minor + patch, _OLDEST_CUDNN)


def _memory_limit(device_memory_bytes: int, fraction: float) -> int:
    """As jax's allocator takes on a device: 112,583,507,968 B of an H200 by default."""
    return -(-int(device_memory_bytes * fraction) // _MAPPED_BYTES) * _MAPPED_BYTES


NVIDIA = Platform(
    name="cuda",
    vendor="NVIDIA",
    config_name="CUDA",
    recorded_packages=("jax-cuda13-plugin",),
    compiler_packages=(
        "jax-cuda13-plugin",
        "jax-cuda13-pjrt",
        "nvidia-cuda-nvcc",
        "nvidia-nvvm",
        "nvidia-cublas",
        "nvidia-cudnn-cu13",
    ),
    dump_files=stage_files(
        "gpu_after_optimizations",
        DumpFile(
            part=Part.THUNKS,
            endings=(THUNKS_AFTER_PASSES, THUNKS_BEFORE_PASSES),
            name="thunk_sequence.txt",
            required=False,
        ),
        DumpFile(
            part=Part.TARGET_CONFIG,
            endings=(".gpu_target_config.pbtxt",),
            name="target_config.txtpb",
        ),
    ),
    gemm_policies={
        "auto": {},
        "cublas": {"xla_gpu_enable_triton_gemm": False},
        "triton": {
            "xla_gpu_enable_triton_gemm": True,
            "xla_gpu_triton_gemm_any": True,
            "xla_gpu_cublas_fallback": False,
        },
    },
    gemm_calls=(
        ("__cublas$gemm", "cublas"),
        ("__cublas$lt$matmul$f8", "cublaslt_f8"),
        ("__cublas$lt$", "cublaslt"),
        ("__cudnn$fmha", "cudnn"),
    ),
    gemm_fusion_kinds=(
        ("__triton", "triton"),
        ("__cudnn", "cudnn"),
        ("__cublas", "cublaslt"),
    ),
    kernel_names={
        # Quotes inside the kernel's own text are escaped, so they do not match. The boundary is
        # checked last, so that `re` finds the literal first: kernels have some 50 kB of text.
        TRITON_CALL: re.compile(r'name = "(?<!\wname = ")([^"]*)"'),
        # The kernel's module is bytecode; its name ends in `_mosaic_gpu`.
        MOSAIC_CALL: re.compile(r"\\00(?!stable_mosaic_gpu)(\w+)_mosaic_gpu\b"),
    },
    plugin="jax_plugins.xla_cuda13",
    memory_limit=_memory_limit,
    topology_arguments=_topology_arguments,
    device_figures=_device_figures,
    # All others are parts of device memory, such as temp arenas and what NCCL has registered.
    memory_spaces={5: "host"},
    default_memory_space="hbm",
    callback_calls=("xla_ffi_python_gpu_callback", "xla_ffi_partitioned_python_gpu_callback"),
    # XLA adds the workspace, and compiles the call's cuDNN graph, only where the GPU is attached.
    calls_finished_on_device=("__cudnn$fmha",),
    # A convolution of cuDNN without autotune results.
    untuned_call=re.compile(r'"algorithm":\{"algo_id":"-1"'),
    may_sort_by_library=True,
    load_autotune_flag="xla_gpu_load_autotune_results_from",
    dump_autotune_flag="xla_gpu_dump_autotune_results_to",
    results_folder_option="xla_gpu_per_fusion_autotune_cache_dir",
    complete_autotune_option="xla_gpu_require_complete_aot_autotune_results",
    # Optimising generated code comes after buffer assignment.
    memory_slop_option="xla_gpu_memory_limit_slop_factor",
    overlap_option="xla_gpu_enable_latency_hiding_scheduler",
    plan_only_options={"xla_backend_optimization_level": 0},
    cuda_folder_option="xla_gpu_cuda_data_dir",
    thunk_holders=frozenset(
        {"kAsyncStart", "kCommandBuffer", "kConditional", "kDynamicSliceFusion"}
    ),
)
