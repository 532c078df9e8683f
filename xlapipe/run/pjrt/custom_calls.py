"""Registers with the CUDA plugin what executables call in jax's libraries. Imports no jax.

jax registers these when it is imported. Kernels through Triton are part of the executable, and the
plugin has Mosaic GPU's call. Host callbacks cannot be built in advance.

Only what an executable calls is registered: jax's module for that imports numpy, which would delay
the loading of all others.
"""

import ctypes
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from xlapipe.devices.pjrt.c_api import PjrtApi
from xlapipe.errors import TargetError

_PACKAGE = "jax_cuda13_plugin"
_PLATFORM = "CUDA"
_CAPSULE = b"pjrt_c_api"
# Threefry, the generator of random numbers.
_LIBRARIES = ("_prng",)
_FFI = "_ffi"


def register_custom_calls(api: PjrtApi, content: bytes) -> None:
    """Registers those of jax's functions for GPUs that an executable calls.

    They may have been registered before.

    Args:
      content: the executable, which contains the names of what it calls.

    Raises:
      TargetError: jax's plugin is not installed, or does not accept them.
    """
    try:
        for library in _LIBRARIES:
            targets: Mapping[str, Any] = import_module(f"{_PACKAGE}.{library}").registrations()
            for name, function in targets.items():
                if name.encode() in content:
                    _register(api, name, function)
    except (ImportError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise TargetError(
            f"{_PACKAGE}: its functions cannot be registered with its plugin: {error}; fix: "
            "install jax[cuda13]"
        ) from None


def _register(api: PjrtApi, name: str, function: Any) -> None:
    extension = import_module(f"{_PACKAGE}.cuda_plugin_extension")
    extension.register_custom_call_target(
        _capsule(api.address), name, function, _PLATFORM, int(name.endswith(_FFI)), 0
    )


def _capsule(address: int) -> Any:
    """The address of a PJRT_Api, as jax passes it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(address, _CAPSULE, None)
