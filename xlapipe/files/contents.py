"""Read untrusted files: regular ones only, within limits, without blocking.

Whatever reads a file of a user's or of a dump opens it here. A device or a pipe is refused before a
byte is read, and so is a link where only files of a dump are expected.
"""

import errno
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from xlapipe.errors import DumpError, XlapipeError

LIMIT_BYTES = 1 << 29
"""Largest file that is read, before and after unpacking."""
PACKED = (".gz", ".xz")
"""Suffixes of packed files."""
_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
# Unpacked at once: at most so many bytes of at most so many packed ones.
_PACKED_BYTES, _UNPACKED_BYTES = 1 << 16, 1 << 20
# Files that others unpack in parts have a member for each 64 KiB.
_MOST_MEMBERS = 100_000
# Memory of xz's decoder, which reserves what a file requests; `xz -9` needs 65 MiB.
_XZ_DECODER_BYTES = 1 << 28
# A larger file may unpack to this many times its size: texts pack to some hundredth, a module with
# large captured arrays to less.
_MOST_TIMES_LARGER = 1000
_ALWAYS_UNPACKED_BYTES = LIMIT_BYTES
_LONGEST_INTEGER = 20  # characters of 64 bits
_GIVE_DUMP = "give the path of a dump"


class Refusal:
    """How errors of one reader are worded."""

    def __init__(self, error: type[XlapipeError] = DumpError, fix: str = _GIVE_DUMP) -> None:
        self.error = error
        self.fix = fix

    def fail(self, message: str, fix: str | None = None) -> NoReturn:
        raise self.error(f"{message}; fix: {fix or self.fix}") from None


def plain_name(name: str) -> str:
    """The file's name before it was packed."""
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    return name


def read_packed(
    path: Path,
    *,
    limit_bytes: int = LIMIT_BYTES,
    refusal: Refusal = Refusal(),  # noqa: B008 - immutable
    follow_links: bool = True,
) -> bytes:
    """The file's bytes, unpacked if they are gzip or xz data, independent of the file's name."""
    data = read_plain(path, limit_bytes=limit_bytes, refusal=refusal, follow_links=follow_links)
    if data.startswith((_GZIP, _XZ)):
        unpacked = min(limit_bytes, max(_ALWAYS_UNPACKED_BYTES, len(data) * _MOST_TIMES_LARGER))
        unpack = _unpack_gzip if data.startswith(_GZIP) else _unpack_xz
        return unpack(data, path, unpacked, refusal)
    return data


def read_plain(
    path: Path,
    *,
    limit_bytes: int = LIMIT_BYTES,
    refusal: Refusal = Refusal(),  # noqa: B008 - immutable
    follow_links: bool = True,
) -> bytes:
    """The file's bytes as they are."""
    with _opened(path, refusal, follow_links=follow_links) as stream:
        # Python allocates the number of bytes that is requested.
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes > limit_bytes:
            _fail_too_large(path, limit_bytes, refusal)
        try:
            data = stream.read(size_bytes + 1)
            if len(data) > size_bytes:  # it has grown, or is one of the kernel's
                data += stream.read(limit_bytes + 1 - len(data))
        except OSError as error:
            refusal.fail(f"{str(path)!r}: expected a readable file, found: {error}")
    if len(data) > limit_bytes:
        _fail_too_large(path, limit_bytes, refusal)
    return data


def files_in(
    folder: Path,
    is_read: Callable[[str], bool],
    refusal: Refusal,
    *,
    leave_out: re.Pattern[str] | None = None,
) -> list[Path]:
    """The regular files of a folder, in the order of their names.

    A link out of the folder is left out: its file would be shown as if it were of the folder, and
    be in reports of it.
    """
    try:
        with os.scandir(folder) as entries:
            links = {
                entry.name: entry.is_symlink()
                for entry in entries
                if not (leave_out and leave_out.match(entry.name)) and entry.is_file()
            }
        resolved = folder.resolve() if any(links.values()) else folder
        outside = {
            name
            for name, is_link in links.items()
            if is_link and (folder / name).resolve().parent != resolved
        }
    except OSError as error:
        refusal.fail(f"{folder}: expected a readable directory, found: {error}")
    for name in sorted(outside):
        if is_read(name):
            text = f"{folder / name}: expected a file, found a link out of its folder"
            refusal.fail(text, "copy the file")
    return [folder / name for name in sorted(links.keys() - outside)]


def read_head(path: Path, count: int) -> bytes:
    """The first `count` bytes of a file at most, unpacked if they are gzip data."""
    refusal = Refusal()
    with _opened(path, refusal, follow_links=True) as stream:
        head = stream.read(count)
    if head.startswith(_GZIP):
        try:
            return zlib.decompressobj(wbits=31).decompress(head, count)
        except zlib.error as error:
            refusal.fail(f"{path}: expected gzip data, found damaged data ({error})")
    return head


def read_json(
    path: Path,
    *,
    limit_bytes: int = LIMIT_BYTES,
    refusal: Refusal = Refusal(),  # noqa: B008 - immutable
    follow_links: bool = True,
) -> Any:
    """The JSON value in a file."""
    data = read_plain(path, limit_bytes=limit_bytes, refusal=refusal, follow_links=follow_links)
    try:
        return parse_json(data)
    except ValueError as error:
        refusal.fail(f"{path}: not JSON: {error}")


def parse_json(text: str | bytes) -> Any:
    """A JSON value whose numbers Python can calculate with."""
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_finite,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _opened(path: Path, refusal: Refusal, *, follow_links: bool) -> BinaryIO:
    """A regular file, opened without waiting for the other end of a pipe."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:
            refusal.fail(f"{path}: expected a file, found a link")
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            refusal.fail(f"{path}: expected a file or directory, found none")
        if error.errno == errno.ENXIO:  # a socket
            refusal.fail(f"{path}: expected a file, found a special file")
        refusal.fail(f"{str(path)!r}: expected a readable file, found: {error}")
    except ValueError as error:  # a NUL in the name
        refusal.fail(f"{str(path)!r}: expected a readable file, found: {error}")
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a directory" if stat.S_ISDIR(mode) else "a special file"
        refusal.fail(f"{path}: expected a file, found {kind}")
    return open(descriptor, "rb")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; parsers differ in which value of a key they take that is given twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise ValueError(f"the key {twice!r:.60} is given twice in one object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER or abs(value := int(text)) >= 1 << 64:
        raise ValueError(f"{text:.40} is an integer of more than 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is not a finite number")
    return value


def _unpack_gzip(data: bytes, path: Path, limit_bytes: int, refusal: Refusal) -> bytes:
    """Unpack all members of gzip data, up to the limit."""
    unpacked: list[bytes] = []
    size = position = members = 0
    while position < len(data):
        unpacker = zlib.decompressobj(wbits=31)
        members += 1
        if members > _MOST_MEMBERS:
            refusal.fail(f"{path}: expected at most {_MOST_MEMBERS} members of gzip, found more")
        while not unpacker.eof:
            part = data[position : position + _PACKED_BYTES]
            try:
                chunk = unpacker.decompress(part, _UNPACKED_BYTES)
            except zlib.error as error:
                refusal.fail(
                    f"{path}: expected gzip data, found damaged data ({error})",
                    "copy or dump the file again",
                )
            if not part and not chunk and not unpacker.eof:
                refusal.fail(
                    f"{path}: expected complete gzip data, found an early end",
                    "copy the file again",
                )
            position += len(part) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data)
            size += len(chunk)
            if size > limit_bytes:
                _fail_too_large(path, limit_bytes, refusal)
            unpacked.append(chunk)
        while data[position : position + 1] == b"\0":  # padding
            position += 1
    return b"".join(unpacked)


def _unpack_xz(data: bytes, path: Path, limit_bytes: int, refusal: Refusal) -> bytes:
    """Unpack one stream of xz data, up to the limit."""
    import lzma  # most files are not packed

    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_DECODER_BYTES)
    try:
        content = unpacker.decompress(data, limit_bytes + 1)
    except lzma.LZMAError as error:
        refusal.fail(
            f"{path}: expected xz data, found damaged data ({error})", "copy or dump the file again"
        )
    if len(content) > limit_bytes:
        _fail_too_large(path, limit_bytes, refusal)
    if not unpacker.eof:
        refusal.fail(
            f"{path}: expected complete xz data, found an early end", "copy the file again"
        )
    return content


def _fail_too_large(path: Path, limit_bytes: int, refusal: Refusal) -> NoReturn:
    refusal.fail(
        f"{path}: expected at most {limit_bytes} bytes unpacked, found more",
        "give another file, or pass large arrays that the step captures as arguments",
    )
