"""Registers with the CUDA plugin what executables call in jax's libraries. Imports no jax.

jax registers these when it is imported. Kernels through Triton are part of the executable, and the
plugin has Mosaic GPU's call. Host callbacks cannot be built in advance.
"""

import ctypes
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from xlapipe.errors import TargetError
from xlapipe.running.pjrt.c_api import PjrtApi

_PACKAGE = "jax_cuda13_plugin"
_PLATFORM = "CUDA"
_CAPSULE = b"pjrt_c_api"
# Threefry, the generator of random numbers.
_LIBRARIES = ("_prng",)
_FFI = "_ffi"


def register_custom_calls(api: PjrtApi) -> None:
    """Registers jax's functions for GPUs that an executable may call.

    Raises:
      TargetError: jax's plugin is not installed, or does not accept them.
    """
    try:
        extension = import_module(f"{_PACKAGE}.cuda_plugin_extension")
        capsule = _capsule(api.address)
        for library in _LIBRARIES:
            targets: Mapping[str, Any] = import_module(f"{_PACKAGE}.{library}").registrations()
            for name, function in targets.items():
                extension.register_custom_call_target(
                    capsule, name, function, _PLATFORM, int(name.endswith(_FFI)), 0
                )
    except (ImportError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise TargetError(
            f"{_PACKAGE}: its functions cannot be registered with its plugin: {error}; fix: "
            "install jax[cuda13]"
        ) from None


def _capsule(address: int) -> Any:
    """The address of a PJRT_Api, as jax passes it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(address, _CAPSULE, None)
