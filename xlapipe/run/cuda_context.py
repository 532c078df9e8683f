"""Creates the CUDA context of a GPU in a thread, before a client of XLA's plugin needs it.

Creating a context and linking XLA's libraries takes 0.4 s and needs no Python, so that it can run
while Python imports modules. XLA then retains the same context, the device's primary one, and finds
the libraries loaded.
"""

import ctypes
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

_FIRST_GPU = 0
_LOG_LEVEL, _WARNINGS = "TF_CPP_MIN_LOG_LEVEL", "1"
# jax's plugin, and the libraries that jax loads before it, by the folder of the package. The plugin
# finds them by name when they are loaded.
_LIBRARIES = {
    "jax_plugins.xla_cuda13": ("xla_cuda_plugin.so",),
    "nvidia.cu13": tuple(
        f"lib/lib{name}"
        for name in (
            "cudart.so.13",
            "nvrtc.so.13",
            "cublas.so.13",
            "cublasLt.so.13",
            "cusparse.so.12",
            "cusolver.so.12",
            "cufft.so.12",
            "cupti.so.13",
        )
    ),
    "nvidia.nccl": ("lib/libnccl.so.2",),
    "nvidia.nvshmem": ("lib/libnvshmem_host.so.3",),
    "nvidia.cudnn": ("lib/libcudnn.so.9",),
}


def start_cuda_context() -> Thread | None:
    """Starts to create the context of the first visible GPU; None if jax may not use GPUs.

    Reports no errors: creating a client meets the same ones, and reports them.
    """
    if not gpus_are_selected():
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
        load_libraries()


def gpus_are_selected() -> bool:
    """Whether jax's setting of platforms selects GPUs, or selects nothing."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    return not platforms or bool({"cuda", "gpu"} & set(platforms.split(",")))


def load_libraries() -> None:
    """Loads the plugin and CUDA's libraries, those that are installed; quick if they are loaded.

    XLA logs warnings and errors only, as under jax, unless the user chose.
    """
    # Before the plugin is loaded, which reads it then.
    os.environ.setdefault(_LOG_LEVEL, _WARNINGS)
    for package, names in _LIBRARIES.items():
        with suppress(ImportError):  # a parent package is missing
            spec = find_spec(package)
            for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
                for name in names:
                    with suppress(OSError):
                        ctypes.CDLL(str(Path(folder) / name))
