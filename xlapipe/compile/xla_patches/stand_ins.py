"""Shared libraries that a plugin of jax names and that are not installed, as stand-ins in memory.

The plugins for AMD GPUs are linked with ROCm's libraries, which no package index has. A compile
without a device only asks them whether there is one. A stand-in is an ELF file with the name of the
library, and with the functions and versions that the plugins import from it; each function returns
its library's error for a missing device. The files are written from the plugins' own tables, are in
memory alone, and are loaded into the compiling process alone.

Where all of the libraries are installed, none of this is done.
"""

import ctypes
import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# The variable of the compiling process that names the packages in whose folders the plugins are,
# that of XLA first.
PLUGINS_VARIABLE = "XLAPIPE_PLUGINS_WITH_STAND_INS"

_SYSTEM_LIBRARY = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)|ld-linux-x86-64)\.so\.\d+")
_PYTHON = re.compile(r"_?Py")
# hipErrorNoDevice, HSA_STATUS_ERROR, and -1 of libdrm and libnuma; other libraries have small enums
# whose 1 is an error.
_ERRORS = {"libamdhip64": 100, "libhsa-runtime64": 0x1000, "librocm_sysdeps": -1}
_TEXT = b"stand-in of xlapipe: there is no device\0"
# Functions that return a text, and that store one where their second argument points.
_GIVES_TEXT = re.compile(r".*(ErrorString|ErrorName|LastError|get_status_string)")
_STORES_TEXT = re.compile(r"hsa_status_string|amdsmi_status_code_to_string")
_COUNTS_DEVICES = "hipGetDeviceCount"

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_VERSION, _VERSION_NAME = struct.Struct("<HHHHIII"), struct.Struct("<II")
_NEED, _NEED_NAME = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_DYNAMIC_SECTION, _DYNSYM_SECTION = 6, 11
_VERSYM_SECTION, _VERNEED_SECTION = 0x6FFFFFFF, 0x6FFFFFFE
_PAGE = 4096


@dataclass(frozen=True, order=True)
class Imported:
    """A function that a library imports; its version is empty for one without."""

    name: str
    version: str = ""


_loaded: list[str] = []


def load_named_stand_ins() -> None:
    """Loads stand-ins for the plugins that the environment names, if any."""
    names = os.environ.get(PLUGINS_VARIABLE)
    if names:
        _loaded.extend(load_stand_ins(names.split(",")))


def are_loaded() -> bool:
    return bool(_loaded)


def load_stand_ins(modules: Sequence[str]) -> list[str]:
    """Loads stand-ins for the libraries that the plugins in some packages name, if one is missing.

    The first package is that of XLA's own plugin.
    """
    plugins = [path for module in modules for path in sorted(_folder(module).glob("*.so"))]
    try:
        for plugin in plugins[:1]:
            ctypes.CDLL(str(plugin))
    except OSError:
        libraries: dict[str, set[Imported]] = {}
        for plugin in plugins:
            for library, functions in imports_of(plugin).items():
                libraries.setdefault(library, set()).update(functions)
        for library, imported in libraries.items():
            _load(library, stand_in(library, sorted(imported)))
        return list(libraries)
    return []


def _folder(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    return Path(spec.submodule_search_locations[0])


def _load(library: str, content: bytes) -> None:
    """Loads a library from memory, to the end of the process.

    Its file stays open: the loader knows libraries by path, and the path is that of the file's
    number, which must not be used again.
    """
    number = os.memfd_create(library)
    with open(number, "wb", closefd=False) as stream:
        stream.write(content)
    ctypes.CDLL(f"/proc/self/fd/{number}")


def imports_of(path: Path) -> Mapping[str, tuple[Imported, ...]]:
    """What a library (64-bit ELF) imports from each other one that is not part of the system.

    A function without a version is imported from whichever has it: here from the first.
    """
    with path.open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    with content:
        table_at, entry_bytes, count = (
            *struct.unpack_from("<Q", content, 40),
            *struct.unpack_from("<HH", content, 58),
        )
        sections = [_SECTION.unpack_from(content, table_at + i * entry_bytes) for i in range(count)]
        by_kind = {section[1]: section for section in sections}

        def bytes_of(kind: int) -> bytes:
            section = by_kind.get(kind)
            return content[section[4] : section[4] + section[5]] if section is not None else b""

        strings = sections[by_kind[_DYNSYM_SECTION][6]]
        names = content[strings[4] : strings[4] + strings[5]]
        symbols, versions = bytes_of(_DYNSYM_SECTION), bytes_of(_VERSYM_SECTION)
        needs, dynamic = bytes_of(_VERNEED_SECTION), bytes_of(_DYNAMIC_SECTION)

    def text_at(at: int) -> str:
        return names[at : names.index(b"\0", at)].decode()

    needed = [text_at(value) for tag, value in _DYNAMIC.iter_unpack(dynamic) if tag == 1]
    libraries = [name for name in needed if not _SYSTEM_LIBRARY.fullmatch(name)]
    owners = {number: (text_at(file), text_at(name)) for number, file, name in _needed(needs)}
    functions: dict[str, set[Imported]] = {name: set() for name in libraries}
    for index, (name_at, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(symbols)):
        if section != 0 or info >> 4 != 1:  # defined here, or not needed (weak)
            continue
        name = text_at(name_at)
        (number,) = struct.unpack_from("<H", versions, 2 * index) if versions else (1,)
        library, version = owners.get(number & 0x7FFF, ("", ""))
        if not library and libraries and not _PYTHON.match(name):
            library = libraries[0]
        if library in functions:
            functions[library].add(Imported(name, version))
    return {name: tuple(sorted(imported)) for name, imported in functions.items()}


def _needed(table: bytes) -> Iterator[tuple[int, int, int]]:
    """Each version's number, and where the names of its library and of itself are."""
    at = 0
    while table:
        _, count, file, first, following = _NEED.unpack_from(table, at)
        name_at = at + first
        for _ in range(count):
            _, _, number, name, step = _NEED_NAME.unpack_from(table, name_at)
            yield number, file, name
            name_at += step
        if not following:
            return
        at += following


class _Strings:
    """A table of names, each ended by a zero byte."""

    def __init__(self) -> None:
        self.content = bytearray(b"\0")

    def add(self, text: str) -> int:
        at = len(self.content)
        self.content += text.encode() + b"\0"
        return at


def stand_in(library: str, functions: Sequence[Imported]) -> bytes:
    """A shared library for x86-64 with functions that only report that there is no device."""
    error = next((code for name, code in _ERRORS.items() if library.startswith(name)), 1)
    strings = _Strings()
    own_name = strings.add(library)
    versions = sorted({it.version for it in functions if it.version})
    names = [(strings.add(it.name), it) for it in functions]
    definitions = _definitions([library, *versions], strings)

    # The parts up to the code are in one segment that is read and executed.
    at = _HEADER.size + 4 * _SEGMENT.size
    symbols_at = at
    hashes_at = symbols_at + _SYMBOL.size * (len(functions) + 1)
    hashes = _hash_table([it.name for it in functions])
    numbers_at = hashes_at + len(hashes)
    numbers = struct.pack(
        f"<{len(functions) + 1}H",
        0,
        *(2 + versions.index(it.version) if it.version else 1 for it in functions),
    )
    definitions_at = _aligned(numbers_at + len(numbers), 8)
    strings_at = definitions_at + len(definitions)
    text_at = strings_at + len(strings.content)
    code_at = _aligned(text_at + len(_TEXT), 16)
    code, symbols = bytearray(), bytearray(_SYMBOL.size)
    for name_at, function in names:
        address = code_at + len(code)
        instructions = _code(function.name, error, text_at - address)
        # A global function of some section.
        symbols += _SYMBOL.pack(name_at, 0x12, 0, 1, address, len(instructions))
        code += instructions
    content = bytearray(_aligned(code_at + len(code), _PAGE))
    for place, part in (
        (symbols_at, symbols),
        (hashes_at, hashes),
        (numbers_at, numbers),
        (definitions_at, definitions),
        (strings_at, strings.content),
        (text_at, _TEXT),
        (code_at, code),
    ):
        content[place : place + len(part)] = part

    entries = [
        (14, own_name),  # SONAME
        (4, hashes_at),  # HASH
        (5, strings_at),  # STRTAB
        (6, symbols_at),  # SYMTAB
        (10, len(strings.content)),  # STRSZ
        (11, _SYMBOL.size),  # SYMENT
        (0x6FFFFFF0, numbers_at),  # VERSYM
        (0x6FFFFFFC, definitions_at),  # VERDEF
        (0x6FFFFFFD, len(versions) + 1),  # VERDEFNUM
        (0, 0),
    ]
    dynamic = b"".join(_DYNAMIC.pack(*entry) for entry in entries)
    dynamic_at, size = len(content), len(dynamic)
    header = _HEADER.pack(
        # 64 bits, little-endian; a shared library for x86-64.
        *(b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 4),
        *(0, 0, 0),
    )
    # Read and executed; read and written, since the loader writes to it; the latter's table; and a
    # stack that is not executed.
    segments = (
        (1, 5, 0, 0, 0, dynamic_at, dynamic_at, _PAGE),
        (1, 6, dynamic_at, dynamic_at, dynamic_at, size, size, _PAGE),
        (2, 6, dynamic_at, dynamic_at, dynamic_at, size, size, 8),
        (0x6474E551, 6, 0, 0, 0, 0, 0, 16),
    )
    start = header + b"".join(_SEGMENT.pack(*segment) for segment in segments)
    content[: len(start)] = start
    return bytes(content) + dynamic


def _code(name: str, error: int, text_from_here: int) -> bytes:
    """A function's machine code for x86-64; the text is `text_from_here` bytes from its first."""
    fail = b"\x48\xc7\xc0" + struct.pack("<i", error) + b"\xc3"  # mov rax, error; ret
    text = b"\x48\x8d\x05" + struct.pack("<i", text_from_here - 7)  # lea rax, [text]
    if _GIVES_TEXT.fullmatch(name):
        return text + b"\xc3"  # ret
    if _STORES_TEXT.fullmatch(name):
        return text + b"\x48\x89\x06\x31\xc0\xc3"  # mov [rsi], rax; xor eax, eax; ret
    if name == _COUNTS_DEVICES:
        return b"\xc7\x07\0\0\0\0" + fail  # mov dword [rdi], 0
    return fail


def _definitions(names: Sequence[str], strings: _Strings) -> bytes:
    """The table of a library's versions, its own name first."""
    table, step = bytearray(), _VERSION.size + _VERSION_NAME.size
    for number, name in enumerate(names, 1):
        following = step if number < len(names) else 0
        is_own = int(number == 1)
        table += _VERSION.pack(1, is_own, number, 1, _hash(name), _VERSION.size, following)
        table += _VERSION_NAME.pack(strings.add(name), 0)
    return bytes(table)


def _hash_table(names: Sequence[str]) -> bytes:
    """The table by which the loader finds a symbol's number, which is 1 for the first name."""
    buckets, chains = [0] * max(1, len(names)), [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        chains[number], buckets[bucket] = buckets[bucket], number
    count = len(buckets) + len(chains)
    return struct.pack(f"<{2 + count}I", len(buckets), len(chains), *buckets, *chains)


def _hash(name: str) -> int:
    """The hash of names in ELF files."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def _aligned(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
