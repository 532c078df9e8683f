"""Compiles a module with the numbers that its instructions have where XLA compiles for a device.

XLA makes a module of a StableHLO program. For a client of a device, it numbers the instructions of
each computation in post-order: each after those that it uses. For a topology without a device, they
keep the numbers in which they were made. Passes follow these numbers, so names, the order of the
outputs of fusions and the order of equal instructions in the schedule can differ, and with them the
keys of autotune results.

jax gives a compile without a device StableHLO only, but the function of XLA's plugin that it calls,
`PJRT_Compile`, takes an HLO module too. For one compile, `compiling` replaces that function in the
plugin's table of functions, in the memory of this process, by one that passes the module on.

The table follows xla/pjrt/c/pjrt_c_api.h of API version 0.113. The plugins of jaxlib 0.10.2 to
0.12.0.1 report 0.112 to 0.116. A major version only adds functions at the end.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int, c_size_t, c_void_p
from typing import Any, ClassVar

from xlapipe.compile.wire_format import field
from xlapipe.compile.xla_patches.loaded_library import plugin_library
from xlapipe.dump.readers.hlo_proto import HloComputationProto, HloModuleProto, HloProto

_HLO = b"hlo"
_MAJOR_VERSION = 0
# PJRT_Compile is the 90th function of PJRT_Api.
_COMPILE = 89
_Compile = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
# An instruction's id has that of its computation in the upper half.
_COMPUTATION = -(2**32)


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


class _CompileArguments(ctypes.Structure):
    """PJRT_Compile_Args, up to the field that is read."""

    _fields_: ClassVar[Any] = [
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("topology", c_void_p),
        ("program", c_void_p),
    ]


class _Program(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("code", c_void_p),
        ("code_size", c_size_t),
        ("format", c_void_p),
        ("format_size", c_size_t),
    ]


def in_client_order(content: bytes) -> bytes:
    """A module whose instructions are numbered as for a client."""
    module = HloProto.FromString(content).hlo_module
    for computation in module.computations:
        _renumber(computation)
    return module.SerializeToString()


def layout_options(content: bytes) -> bytes:
    """The layouts of a module's arguments and results, as fields of XLA's CompileOptionsProto.

    Without them, XLA gives an HLO module default layouts, without the packing of small elements.
    """
    program = HloModuleProto.FromString(content).host_program_shape
    arguments = (field(1, shape.SerializeToString()) for shape in program.parameters)
    return b"".join(arguments) + field(3, field(2, program.result.SerializeToString()))


def _renumber(computation: HloComputationProto) -> None:
    instructions = computation.instructions
    ids = {it.id: it.id & _COMPUTATION | row for row, it in enumerate(instructions)}
    for instruction in instructions:
        instruction.id = ids[instruction.id]
        for uses in (instruction.operand_ids, instruction.control_predecessor_ids):
            uses[:] = [ids[number] for number in uses]
    computation.root_id = ids[computation.root_id]


def can_compile_modules(plugin: str | None) -> bool:
    """Whether `compile` knows the plugin's table of functions."""
    return plugin is not None and _slot(plugin) is not None


@contextmanager
def compiling(module: bytes, plugin: str) -> Iterator[None]:
    """Within this context, jax's compiles for a topology compile `module`.

    The plugin is loaded, and `can_compile_modules` holds for it.
    """
    slot = _slot(plugin)
    assert slot is not None, plugin
    original_address = slot.value
    original = _Compile(original_address)
    code = ctypes.create_string_buffer(module, len(module))
    form = ctypes.create_string_buffer(_HLO, len(_HLO))

    def compile_module(address: int) -> int | None:
        arguments = _CompileArguments.from_address(address)
        program = _Program.from_address(arguments.program)
        given = bytes(program)
        program.code, program.code_size = ctypes.addressof(code), len(module)
        program.format, program.format_size = ctypes.addressof(form), len(_HLO)
        try:
            result: int | None = original(address)
        finally:
            ctypes.memmove(arguments.program, given, len(given))
        return result

    replacement = _Compile(compile_module)
    slot.value = ctypes.cast(replacement, ctypes.c_void_p).value or 0
    try:
        yield
    finally:
        slot.value = original_address


def _slot(plugin: str) -> c_size_t | None:
    """The place of PJRT_Compile in the plugin's table; None if the table is not known."""
    library = plugin_library(plugin)
    if library is None:
        return None
    get_api = ctypes.CDLL(str(library)).GetPjrtApi
    get_api.restype = c_void_p
    address = int(get_api())
    head = _ApiHead.from_address(address)
    offset = ctypes.sizeof(_ApiHead) + ctypes.sizeof(c_void_p) * _COMPILE
    if head.major_version != _MAJOR_VERSION or head.struct_size <= offset:
        return None
    return c_size_t.from_address(address + offset)
