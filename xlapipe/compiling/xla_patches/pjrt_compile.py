"""Compiles an HLO module where jax compiles StableHLO.

jax gives a compile without a device StableHLO only, but the function of XLA's plugin that it calls,
`PJRT_Compile`, takes an HLO module too. For one compile, this module replaces that function in the
plugin's table of functions, in the memory of this process, by one that passes the module on. The
table's layout is that of major version 0 of PJRT's C interface, which only adds fields at its end.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

_LIBRARY = "xla_cuda_plugin.so"
_MAJOR_VERSION = 0
_HLO = b"hlo"
# Of the functions in the table, those before PJRT_Compile: of errors, the plugin and events, of
# clients, descriptions of devices, devices, memories, executables, loaded executables, buffers,
# streams and topologies.
_FUNCTIONS_BEFORE = 10 + 13 + 6 + 6 + 5 + 10 + 8 + 19 + 5 + 7


class _Head(ctypes.Structure):
    """The start of the table."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("version_size", ctypes.c_size_t),
        ("version_extensions", ctypes.c_void_p),
        ("major_version", ctypes.c_int),
        ("minor_version", ctypes.c_int),
    )


class _Arguments(ctypes.Structure):
    """PJRT_Compile_Args, up to the field that is used here."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("topology", ctypes.c_void_p),
        ("program", ctypes.c_void_p),
    )


class _Program(ctypes.Structure):
    """PJRT_Program."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("code_bytes", ctypes.c_size_t),
        ("format", ctypes.c_void_p),
        ("format_bytes", ctypes.c_size_t),
    )


_Compile = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def can_compile_modules(plugin: str | None) -> bool:
    """Whether `compiling` knows the plugin's table of functions."""
    return plugin is not None and _slot(plugin) is not None


@contextmanager
def compiling(module: bytes, plugin: str) -> Iterator[None]:
    """Within this context, jax's compiles for a topology compile `module`.

    Args:
      module: a serialised HloModuleProto.
      plugin: the Python module in whose folder XLA's plugin is, for which `can_compile_modules`
        holds; the plugin is loaded.
    """
    slot = _slot(plugin)
    assert slot is not None, plugin
    original_address = slot.value or 0
    original = _Compile(original_address)
    code = ctypes.create_string_buffer(module, len(module))
    form = ctypes.create_string_buffer(_HLO, len(_HLO))

    def compile_module(address: int) -> int | None:
        arguments = _Arguments.from_address(address)
        program = _Program.from_address(arguments.program)
        given = bytes(program)
        program.code, program.code_bytes = ctypes.addressof(code), len(module)
        program.format, program.format_bytes = ctypes.addressof(form), len(_HLO)
        try:
            result: int | None = original(address)
        finally:
            ctypes.memmove(arguments.program, given, len(given))
        return result

    replacement = _Compile(compile_module)
    slot.value = ctypes.cast(replacement, ctypes.c_void_p).value
    try:
        yield
    finally:
        slot.value = original_address


def _slot(plugin: str) -> ctypes.c_void_p | None:
    """The place of PJRT_Compile in the table of the plugin's functions; None if it is not known."""
    spec = find_spec(plugin)
    path = Path((spec.origin if spec else None) or "").with_name(_LIBRARY)
    if not path.is_file():
        return None
    get_table = ctypes.CDLL(str(path)).GetPjrtApi
    get_table.restype = ctypes.c_void_p
    address = get_table()
    head = _Head.from_address(address)
    offset = ctypes.sizeof(_Head) + _FUNCTIONS_BEFORE * ctypes.sizeof(ctypes.c_void_p)
    if head.major_version != _MAJOR_VERSION or head.size <= offset:
        return None
    return ctypes.c_void_p.from_address(address + offset)
