"""What is known of the operators that wrapper code and IR name: who computes, what is allocated."""

import re
from collections.abc import Mapping

from xlapipe.plans.gemms import GemmBackend

ALLOCATORS: Mapping[str, str] = {
    "empty_strided_cuda": "cuda",
    "empty_strided_xpu": "xpu",
    "empty_strided_mtia": "mtia",
    "empty_strided_mps": "mps",
    "empty_strided_p2p": "cuda",
    "empty_strided_cpu": "cpu",
    "empty_strided_cpu_pinned": "cpu",
    "empty_strided_hpu": "hpu",
    "empty_strided": "",
    "torch.empty_strided": "",
    "tracked_empty_strided": "",
}
"""Functions that allocate, and the device that they allocate on; `` where an argument says."""

VIEWS = frozenset(
    {"reinterpret_tensor", "torch._C._dynamo.guards._reinterpret_tensor"}
    | {"as_strided", "torch.as_strided", "aten.as_strided", "torch.ops.aten.as_strided.default"}
)
"""Functions of (tensor, sizes, strides, offset in elements) that return a view."""

# Functions that return their operand, or a copy of it if it is not aligned.
RETURN_OPERAND = frozenset({"copy_if_misaligned", "copy_misaligned"})
# Functions that allocate nothing on the device: assertions, numbers, streams, profiling.
_ALLOCATES_NO_TENSOR = re.compile(
    r"(?:torch\._C\._dynamo\.guards\.)?assert_\w+|run_intermediate_hooks|(?:start|end)_graph"
    r"|\w*get_(?:cuda_)?raw_stream|record_function|maybe_profile|align|(?:\w+\.)?grid\w*"
    r"|_print_debugging_tensor_value_info|print\w*|isinstance|len|int|float|bool|min|max|sum|abs"
    r"|round|range|math\.\w+|(?:torch\.(?:cuda\.)?)?(?:nvtx|profiler)\.\w+|torch\.sym_\w+"
    r"|torch\._check\w*|torch\.Event|torch\.cond|torch\.(?:cuda|xpu|mtia|mps|hpu|cpu|accelerator)"
    r"\.(?:set_device|set_stream|synchronize|current_stream|default_stream|stream|Stream|Event"
    r"|_DeviceGuard|device|current_device|_set_stream_by_id)"
    r"|\w*(?:stream|event)\w*\.\w+|async_compile\.wait|\w+\.(?:append|precompile)|triton\.\w+"
)
_COLLECTIVES = {
    "all_gather_into_tensor": "all-gather",
    "all_gather_into_tensor_out": "all-gather",
    "all_gather_into_tensor_coalesced": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_reduce_": "all-reduce",
    "all_reduce_coalesced": "all-reduce",
    "all_reduce_coalesced_": "all-reduce",
    "all_to_all_single": "all-to-all",
    "broadcast": "collective-broadcast",
    "broadcast_": "collective-broadcast",
}
_COLLECTIVE_LIBRARIES = ("_c10d_functional", "c10d_functional", "symm_mem", "_dtensor")
# Operators whose result is a view of their first operand.
_ALIASING = frozenset(
    {"view", "as_strided", "alias", "detach", "t", "transpose", "permute", "unsqueeze", "squeeze"}
    | {"expand", "slice", "select", "narrow", "reshape_alias", "view_as_real", "view_as_complex"}
    | {"wait_tensor", "split", "unbind", "diagonal", "unfold", "lift_fresh"}
)
# Fallback operators that change or name what is there, and take no memory for it.
_ALLOCATES_NOTHING = frozenset(
    {"set_", "resize_", "resize_storage_bytes_", "wait_tensor", "copy_", "fill_", "zero_"}
    | {"accumulate_grad_", "_assert_async", "_assert_scalar", "sym_size", "item"}
    | {"record_stream", "_foreach_copy_", "_foreach_zero_"}
)
_GEMMS: Mapping[str, GemmBackend] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"), GemmBackend.CUBLAS),
    **dict.fromkeys(("_int_mm", "_addmm_activation", "bias_addmm"), GemmBackend.CUBLAS),
    "_scaled_mm": GemmBackend.CUBLASLT_F8,
    "_scaled_mm_v2": GemmBackend.CUBLASLT_F8,
    "_scaled_grouped_mm": GemmBackend.OTHER,
    "_grouped_mm": GemmBackend.OTHER,
    "convolution": GemmBackend.CUDNN,
    "convolution_backward": GemmBackend.CUDNN,
    "_convolution": GemmBackend.CUDNN,
    "cudnn_convolution": GemmBackend.CUDNN,
}
# `triton_tem_fused_addmm_relu_0`: the template's operator is among those that were fused.
_TEMPLATE_GEMM = re.compile(
    r"^\w*Template|_(mm|addmm|bmm|baddbmm|convolution|_scaled_mm|_int_mm|_grouped_mm)(?=_|$)"
)
_OVERLOAD = re.compile(
    r"\.(default|out|[a-z0-9_]*(?:Tensor|Scalar|int|dim|self|source)\w*|dtype|low_out)$"
)


def base_name(operator: str) -> str:
    """The operator without library and overload.

    >>> base_name("torch.ops.aten.set_.source_Tensor"), base_name("extern_kernels.mm")
    ('set_', 'mm')
    """
    parts = operator.removesuffix(".run").split(".")
    if len(parts) > 1 and parts[0] in ("torch", "aten") and _OVERLOAD.search(operator):
        parts = parts[:-1]
    return parts[-1]


def library(operator: str) -> str:
    """The library that an operator is registered in: `aten` of `torch.ops.aten.mm.default`."""
    parts = operator.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) > 2:
        return parts[2]
    return parts[0]


def is_extern(operator: str) -> bool:
    """Whether a library computes it that returns exactly what it is asked for, e.g. cuBLAS."""
    return operator.startswith("extern_kernels.")


def collective_kind(operator: str) -> str | None:
    """XLA's name of a collective; None for other operators."""
    if library(operator) not in _COLLECTIVE_LIBRARIES and "c10d" not in operator:
        return None
    return _COLLECTIVES.get(base_name(operator))


def allocates_no_tensor(function: str) -> bool:
    """Whether a function that is not an operator is known to allocate nothing on the device."""
    return _ALLOCATES_NO_TENSOR.fullmatch(function) is not None


def returns_operand(operator: str) -> bool:
    """Whether its result is its first operand, or a view of it."""
    return writes_operand(operator) or base_name(operator) in _ALIASING


def writes_operand(operator: str) -> bool:
    name = base_name(operator)
    return name.endswith("_") and not name.startswith("_")


def hides_bytes(operator: str) -> bool:
    """Whether a fallback may allocate more than the results that the dump shows."""
    name = base_name(operator)
    if is_extern(operator) or collective_kind(operator) is not None:
        return False
    return name not in _ALLOCATES_NOTHING and name not in _ALIASING


def gemm_backend(operator: str, device: str = "cuda") -> GemmBackend | None:
    """Who computes a matrix product or convolution; None for other operators."""
    backend = _GEMMS.get(base_name(operator))
    if backend is None or library(operator) not in ("extern_kernels", "aten"):
        return None
    return backend if device.startswith("cuda") else GemmBackend.OTHER


def is_template_gemm(kernel: str) -> bool:
    """Whether a Triton template's name states that it computes a matrix product or convolution."""
    return _TEMPLATE_GEMM.search(kernel) is not None
