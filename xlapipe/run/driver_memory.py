"""GPU memory in use by all programs, as the CUDA driver reports it.

XLA's allocator reports only the memory that it manages itself.
"""

import ctypes
from collections.abc import Mapping
from typing import Any


def used_bytes(ordinal: int) -> int | None:
    """Bytes in use on a GPU by this and all other programs; None if the driver does not report it.

    Args:
      ordinal: the GPU's index among those visible to this process.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    context, device = ctypes.c_void_p(), ctypes.c_int()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    calls: list[tuple[Any, ...]] = [
        (driver.cuInit, 0),
        (driver.cuDeviceGet, ctypes.byref(device), ordinal),
        (driver.cuDevicePrimaryCtxRetain, ctypes.byref(context), device),
    ]
    if any(call(*arguments) != 0 for call, *arguments in calls):
        return None
    try:
        # The primary context is the one that XLA uses, so that no second one takes memory.
        if driver.cuCtxPushCurrent_v2(context) != 0:
            return None
        try:
            code = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return total.value - free.value if code == 0 else None


def outside_allocator_bytes(device: Any, memory_stats: Mapping[str, int]) -> int | None:
    """Bytes in use on a device that XLA's allocator does not manage; None if not reported.

    Args:
      device: a jax device.
      memory_stats: its `memory_stats()`.
    """
    used = used_bytes(device.local_hardware_id) if device.platform == "gpu" else None
    pool = memory_stats.get("pool_bytes")
    return used - pool if used is not None and pool is not None else None
