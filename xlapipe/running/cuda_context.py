"""Creates the CUDA context of a GPU in a thread, before jax needs it.

Creating a context takes about half a second and needs no Python, so that it can run while jax is
imported. XLA then retains the same context: the device's primary one.
"""

import ctypes
import os
from threading import Thread

_FIRST_GPU = 0


def start_context() -> Thread | None:
    """Starts to create the context of the first visible GPU; None if jax is told not to use GPUs.

    Reports no errors: jax meets the same ones, and reports them, when it creates its client.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return None
    thread = Thread(target=_create_context, name="CUDA context")
    thread.start()
    return thread


def _create_context() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")  # ctypes releases the GIL during a call
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), _FIRST_GPU) == 0:
        # Never released: the context would be destroyed before XLA retains it.
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
