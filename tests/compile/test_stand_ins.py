"""Stand-ins of shared libraries: what they are named, what they define, and what they return."""

import ctypes
import os
import sys
from pathlib import Path

import jaxlib
import pytest

from xlapipe.compile.xla_patches.stand_ins import (
    Imported,
    _load,
    imports_of,
    load_stand_ins,
    stand_in,
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="ELF for x86-64"
)
FUNCTIONS = (
    Imported("hipGetDeviceCount", "hip_4.2"),
    Imported("hipGetErrorString", "hip_4.2"),
    Imported("hipInit", "hip_4.2"),
    Imported("hipInit2", "hip_6.0"),
    Imported("miopenCreate"),
)


def test_a_stand_in_reports_that_there_is_no_device() -> None:
    _load("libamdhip64.so.901", stand_in("libamdhip64.so.901", FUNCTIONS))
    library = ctypes.CDLL("libamdhip64.so.901")  # by the name that it gives itself
    count = ctypes.c_int(7)
    assert library.hipGetDeviceCount(ctypes.byref(count)) == 100  # hipErrorNoDevice
    assert count.value == 0
    assert (library.hipInit(0), library.miopenCreate(None)) == (100, 100)
    library.hipGetErrorString.restype = ctypes.c_char_p
    assert library.hipGetErrorString(100) == b"stand-in of xlapipe: there is no device"
    assert not hasattr(library, "hipMalloc")


def test_functions_have_their_versions() -> None:
    _load("libhsa-runtime64.so.901", stand_in("libhsa-runtime64.so.901", FUNCTIONS))
    handle = ctypes.CDLL("libhsa-runtime64.so.901")._handle
    dlvsym = ctypes.CDLL(None).dlvsym
    dlvsym.restype = ctypes.c_void_p
    dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    address = dlvsym(handle, b"hipInit2", b"hip_6.0")
    assert address is not None
    assert dlvsym(handle, b"hipInit2", b"hip_4.2") is None
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 0x1000  # HSA_STATUS_ERROR


def test_what_a_library_imports_is_read_without_the_systems_libraries() -> None:
    (libraries,) = [imports_of(path) for path in Path(jaxlib.__path__[0]).glob("_jax.so")]
    assert list(libraries) == ["libjax_common.so"]
    assert all(not it.name.startswith("Py") for it in libraries["libjax_common.so"])
    assert libraries["libjax_common.so"]


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'xla_of_nobody'"):
        load_stand_ins(["xla_of_nobody"])
