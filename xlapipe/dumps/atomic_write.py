"""Files and folders that are written completely or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from xlapipe.errors import XlapipeError


def write_files(files: Mapping[Path, bytes]) -> None:
    """Writes all of `files`, making their folders; each gets its name when it is complete.

    Raises:
      XlapipeError: one cannot be written. Existing files are then unchanged, unless the disk fails
        between two renames.
    """
    partials = {path: _beside(path, "partial") for path in files}
    path = next(iter(files), Path())
    try:
        for path, content in files.items():
            if path.is_dir():
                raise XlapipeError(f"{path}: expected the name of a file to write, found a folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            partials[path].write_bytes(content)
        for path, partial in partials.items():
            partial.replace(path)
    except OSError as error:
        raise XlapipeError(
            f"{path}: cannot be written: {error.strerror}; fix: choose another place"
        ) from None
    finally:
        for partial in partials.values():
            _remove(partial)


def write_folder(path: Path, files: Mapping[str, bytes], *, fix: str) -> None:
    """Writes a folder that holds exactly `files`; an existing folder is replaced.

    Args:
      files: contents by name.
      fix: what to do if the folder cannot be written, for the message.

    Raises:
      XlapipeError: it cannot be written; an existing folder is then unchanged.
    """
    with replace_folder(path, fix=fix) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)


@contextmanager
def replace_folder(path: Path, *, fix: str) -> Iterator[Path]:
    """Yields an empty folder to write into, which replaces `path` when the block succeeds.

    Args:
      fix: what to do if the folder cannot be written, for the message.

    Raises:
      XlapipeError: it cannot be written; an existing folder is then unchanged.
    """
    partial, former = _beside(path, "partial"), _beside(path, "former")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        yield partial
        if path.exists():
            path.rename(former)
        partial.rename(path)
    except OSError as error:
        if former.exists() and not path.exists():
            former.rename(path)
        raise XlapipeError(f"{path}: cannot be written: {error.strerror}; fix: {fix}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)


def _beside(path: Path, label: str) -> Path:
    """A hidden name in the same folder, so that a rename stays on one file system."""
    return path.with_name(f".{path.name}.{label}-{os.getpid()}")


def _remove(partial: Path) -> None:
    try:
        partial.unlink(missing_ok=True)
    except OSError:  # its folder could not be made
        return
