"""AMD GPUs: what differs from NVIDIA's for XLA, whose compiler for GPUs is one for both.

XLA keeps its names for NVIDIA's libraries in custom calls: `__cublas$lt$matmul` is a call of
hipBLASLt here, and a convolution of `__cudnn$conv…` one of MIOpen.
"""

from dataclasses import replace
from typing import Any

from xlapipe.devices.platforms.nvidia import NVIDIA, TRITON_CALL
from xlapipe.devices.platforms.platform import DeviceFigures
from xlapipe.devices.platforms.textproto import parse

_PACKAGES = ("jax-rocm7-plugin", "jax-rocm7-pjrt")


def _device_figures(config_text: str) -> DeviceFigures:
    """The figures of a GpuTargetConfigProto in text form."""
    config: Any = parse(config_text)
    device = config.get("gpu_device_info", {})
    capability = device.get("rocm_compute_capability", {})
    architecture = str(capability.get("gcn_arch_name", "")).partition(":")[0]
    return DeviceFigures(
        device_kind=str(config.get("device_description_str") or device.get("name") or ""),
        core_count=int(device.get("core_count", 0)),
        platform="gpu",
        platform_name="rocm",
        platform_version=f"PJRT C API\nrocm {config.get('runtime_version', {}).get('major', '')}",
        compute_capability=architecture,
        kind_for_pallas=architecture,
    )


AMD = replace(
    NVIDIA,
    name="rocm",
    vendor="AMD",
    config_name="ROCM",
    recorded_packages=_PACKAGES,
    compiler_packages=_PACKAGES,
    own_compiler="jax-rocm7-pjrt",
    library_names={
        "cublas": "rocblas",
        "cublaslt": "hipblaslt",
        "cublaslt_f8": "hipblaslt_f8",
        "cudnn": "miopen",
    },
    kernel_names={TRITON_CALL: NVIDIA.kernel_names[TRITON_CALL]},
    # Neither XLA's own sorts nor its order of instructions are changed: see `xla_patches`.
    plugin=None,
    plugins_with_stand_ins=("jax_plugins.xla_rocm7", "jax_rocm7_plugin"),
    refuses_without_device=True,
    convolution_library="MIOpen",
    # MIOpen chooses on the device alone, and XLA ends the process where no result names a choice.
    convolution_options={"xla_gpu_experimental_disable_binary_libraries": True},
    device_figures=_device_figures,
    # Mosaic GPU is for NVIDIA's alone.
    refused_kernels=("mosaic_gpu",),
    builds_executables=False,
    predicts_times=False,
)
