"""Read files of a dump as bytes or text, with errors that name the file."""

from pathlib import Path

from xlapipe.dump.readers.source_text import GIVE_DUMP, SourceText
from xlapipe.errors import DumpError
from xlapipe.files.contents import LIMIT_BYTES, Refusal, read_packed


def read_bytes(path: Path, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """The file's bytes, unpacked if they are gzip or xz data, independent of the file's name."""
    return read_packed(path, limit_bytes=limit_bytes, refusal=Refusal(DumpError, GIVE_DUMP))


def read_source(path: Path) -> SourceText:
    data = read_bytes(path)
    try:
        return SourceText(str(path), data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DumpError(
            f"{path}:{line}: expected UTF-8 text, found byte 0x{data[error.start]:02x}; "
            "fix: copy or dump the file again; it is binary or damaged"
        ) from None
