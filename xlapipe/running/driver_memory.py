"""A GPU's memory in use by everything, as the driver tells it: XLA's allocator knows its own."""

import ctypes
from typing import Any


def used_bytes(ordinal: int) -> int | None:
    """Bytes in use on a GPU, of this and of every other program; None where nobody tells.

    Args:
      ordinal: the GPU's index among those that this process may see.
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
        # XLA uses the same context, so that none is made.
        if driver.cuCtxPushCurrent_v2(context) != 0:
            return None
        try:
            code = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return total.value - free.value if code == 0 else None
