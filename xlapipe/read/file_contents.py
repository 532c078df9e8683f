"""Read files as bytes or text: gzip, xz, a size limit, and errors that name the file."""

import zlib
from pathlib import Path

from xlapipe.errors import DumpError
from xlapipe.read.fixes import GIVE_DUMP
from xlapipe.read.source_text import SourceText

LIMIT_BYTES = 1 << 29
"""Largest dump file that is read, before and after unpacking."""

PACKED = (".gz", ".xz")
"""Suffixes of packed files of a dump."""

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_CHUNK_BYTES = 1 << 20


def plain_name(name: str) -> str:
    """The file's name before it was packed."""
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    return name


def read_bytes(path: Path, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """The file's bytes, unpacked if they are gzip or xz data, independent of the file's name.

    Raises:
      DumpError: the file is missing, not a regular file, unreadable, too large, or damaged.
    """
    try:
        if not path.is_file():
            raise DumpError(f"{path}: {_kind_of(path)}; fix: {GIVE_DUMP}")
        if path.stat().st_size > limit_bytes:
            raise DumpError(_too_large(path, limit_bytes))
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DumpError(
            f"{str(path)!r}: expected a readable file, found: {error}; fix: {GIVE_DUMP}"
        ) from None
    if data.startswith(_GZIP):
        return _unpack(data, path, limit_bytes)
    if data.startswith(_XZ):
        return _unpack_xz(data, path, limit_bytes)
    return data


def read_source(path: Path) -> SourceText:
    """The file's text.

    Raises:
      DumpError: as for `read_bytes`, or the text is not UTF-8.
    """
    data = read_bytes(path)
    try:
        return SourceText(str(path), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DumpError(
            f"{path}:{line}: expected UTF-8 text, found byte 0x{data[error.start]:02x}; "
            "fix: copy or dump the file again; it is binary or damaged"
        ) from None


def _kind_of(path: Path) -> str:
    if path.is_dir():
        return "expected a file, found a directory"
    if path.exists():
        return "expected a file, found a special file"
    return "expected a file or directory, found none"


def _unpack(data: bytes, path: Path, limit_bytes: int) -> bytes:
    """Unpack all members of gzip data, up to the limit."""
    unpacked: list[bytes] = []
    size = 0
    while data:
        unpacker = zlib.decompressobj(wbits=31)
        while not unpacker.eof:
            try:
                chunk = unpacker.decompress(data, _CHUNK_BYTES)
            except zlib.error as error:
                raise DumpError(
                    f"{path}: expected gzip data, found damaged data ({error}); "
                    "fix: copy or dump the file again"
                ) from None
            data = unpacker.unconsumed_tail
            size += len(chunk)
            if size > limit_bytes:
                raise DumpError(_too_large(path, limit_bytes))
            unpacked.append(chunk)
            if not chunk and not data and not unpacker.eof:
                raise DumpError(
                    f"{path}: expected complete gzip data, found an early end; "
                    "fix: copy the file again"
                )
        data = unpacker.unused_data.lstrip(b"\0")
    return b"".join(unpacked)


def _unpack_xz(data: bytes, path: Path, limit_bytes: int) -> bytes:
    """Unpack one stream of xz data, up to the limit."""
    try:
        import lzma  # absent in a Python that was built without liblzma
    except ModuleNotFoundError:
        raise DumpError(
            f"{path}: is packed with xz, and this Python was built without lzma; fix: use another "
            "Python, or unpack the file with `xz -d`"
        ) from None
    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    try:
        content = unpacker.decompress(data, limit_bytes + 1)
    except lzma.LZMAError as error:
        raise DumpError(
            f"{path}: expected xz data, found damaged data ({error}); "
            "fix: copy or dump the file again"
        ) from None
    if len(content) > limit_bytes:
        raise DumpError(_too_large(path, limit_bytes))
    if not unpacker.eof:
        raise DumpError(
            f"{path}: expected complete xz data, found an early end; fix: copy the file again"
        )
    return content


def _too_large(path: Path, limit_bytes: int) -> str:
    return (
        f"{path}: expected at most {limit_bytes} bytes unpacked, found more; "
        "fix: give another file; no dump of a module is this large"
    )
