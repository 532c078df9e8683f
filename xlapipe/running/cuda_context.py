"""Creates the CUDA context of a GPU in a thread, before jax needs it.

Creating a context and linking XLA's libraries takes 0.4 s and needs no Python, so that it can run
while jax is imported. XLA then retains the same context, the device's primary one, and finds the
libraries loaded.
"""

import ctypes
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

_FIRST_GPU = 0
# The largest of the libraries that jax's plugin loads, in the folder of the package.
_LIBRARIES = {
    "jax_plugins.xla_cuda13": ("xla_cuda_plugin.so",),
    "nvidia.cu13": tuple(
        f"lib/lib{name}"
        for name in (
            "cublas.so.13",
            "cublasLt.so.13",
            "cusparse.so.12",
            "cusolver.so.12",
            "cufft.so.12",
        )
    ),
    "nvidia.nccl": ("lib/libnccl.so.2",),
    "nvidia.cudnn": ("lib/libcudnn.so.9",),
}


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
        _load_libraries()


def _load_libraries() -> None:
    for package, names in _LIBRARIES.items():
        with suppress(ImportError):  # a parent package is missing
            spec = find_spec(package)
            for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
                for name in names:
                    with suppress(OSError):
                        ctypes.CDLL(str(Path(folder) / name))
