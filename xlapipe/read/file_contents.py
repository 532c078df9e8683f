"""Files as bytes and text: gzip, bounds, and errors that name the file."""

import zlib
from pathlib import Path

from xlapipe.errors import DumpError
from xlapipe.read.source_text import SourceText

LIMIT_BYTES = 1 << 29
"""No dump file is read beyond this size, packed or not."""

_GZIP = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20


def read_bytes(path: Path, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """The file's bytes, unpacked where they are gzip, whatever the file's name.

    Raises:
      DumpError: if it is missing, no regular file, unreadable, too large, or damaged gzip.
    """
    try:
        if not path.is_file():
            found = "a directory" if path.is_dir() else "none" if not path.exists() else "none such"
            raise DumpError(
                f"{path}: expected a file, found {found}; give an .hlo.pb, a "
                "*buffer-assignment.txt, or the directory of an XLA dump"
            )
        if path.stat().st_size > limit_bytes:
            raise DumpError(_too_large(path, limit_bytes))
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DumpError(f"{str(path)!r}: expected a readable file, found: {error}") from None
    if data.startswith(_GZIP):
        return _unpack(data, path, limit_bytes)
    return data


def read_source(path: Path) -> SourceText:
    """The file's text.

    Raises:
      DumpError: as `read_bytes`, and for text that is not UTF-8.
    """
    data = read_bytes(path)
    try:
        return SourceText(str(path), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DumpError(
            f"{path}:{line}: expected UTF-8 text, found byte 0x{data[error.start]:02x}; the file "
            "is binary or damaged: copy or dump it again"
        ) from None


def _unpack(data: bytes, path: Path, limit_bytes: int) -> bytes:
    """Unpacks gzip, member after member, and stops at the limit."""
    unpacked: list[bytes] = []
    size = 0
    while data:
        unpacker = zlib.decompressobj(wbits=31)
        while not unpacker.eof:
            try:
                chunk = unpacker.decompress(data, _CHUNK_BYTES)
            except zlib.error as error:
                raise DumpError(
                    f"{path}: expected gzip, found damaged data ({error}); copy or dump it again"
                ) from None
            data = unpacker.unconsumed_tail
            size += len(chunk)
            if size > limit_bytes:
                raise DumpError(_too_large(path, limit_bytes))
            unpacked.append(chunk)
            if not chunk and not data and not unpacker.eof:
                raise DumpError(
                    f"{path}: expected whole gzip data, found its end too early; copy it again"
                )
        data = unpacker.unused_data.lstrip(b"\0")
    return b"".join(unpacked)


def _too_large(path: Path, limit_bytes: int) -> str:
    return (
        f"{path}: expected at most {limit_bytes} bytes unpacked, found more; no dump of a module "
        "is so large: give the right file"
    )
