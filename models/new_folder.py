"""Folders that are written completely or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from xlapipe import XlapipeError


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder to write into, which replaces `path` when the block succeeds.

    Raises:
      XlapipeError: it cannot be written; a folder that exists is then unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
            new, former = Path(scratch, "new"), Path(scratch, "former")
            new.mkdir()
            yield new
            if path.exists():
                path.rename(former)
            new.rename(path)
    except OSError as error:
        raise XlapipeError(
            f"{path}: cannot be written: {error.strerror}; fix: choose another folder"
        ) from None
