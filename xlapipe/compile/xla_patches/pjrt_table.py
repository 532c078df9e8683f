"""The table of functions of a plugin that has PJRT's C API, by ctypes.

It follows xla/pjrt/c/pjrt_c_api.h of API version 0.113. The plugins of jaxlib 0.10.2 to 0.12.0.1
report 0.112 to 0.116. A major version only adds functions at the end.
"""

import ctypes
from ctypes import c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any, ClassVar

_MAJOR_VERSION = 0
# PJRT_Compile is the 90th function of PJRT_Api.
_COMPILE = 89


class _ApiHead(ctypes.Structure):
    """The start of PJRT_Api, with PJRT_Api_Version in it."""

    _fields_: ClassVar[Any] = [
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("version_struct_size", c_size_t),
        ("version_extension_start", c_void_p),
        ("major_version", c_int),
        ("minor_version", c_int),
    ]


class CompileArguments(ctypes.Structure):
    """PJRT_Compile_Args, up to the field that is read."""

    _fields_: ClassVar[Any] = [
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("topology", c_void_p),
        ("program", c_void_p),
    ]


class PjrtProgram(ctypes.Structure):
    """PJRT_Program."""

    _fields_: ClassVar[Any] = [
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("code", c_void_p),
        ("code_size", c_size_t),
        ("format", c_void_p),
        ("format_size", c_size_t),
    ]


def compile_slot(library: Path) -> c_size_t | None:
    """The place in a plugin's table that has PJRT_Compile's address; None if it is not known."""
    get_api = ctypes.CDLL(str(library)).GetPjrtApi
    get_api.restype = c_void_p
    address = int(get_api())
    head = _ApiHead.from_address(address)
    offset = ctypes.sizeof(_ApiHead) + ctypes.sizeof(c_void_p) * _COMPILE
    if head.major_version != _MAJOR_VERSION or head.struct_size <= offset:
        return None
    return c_size_t.from_address(address + offset)
