"""Files and folders that are written completely or not at all."""

import ctypes
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from xlapipe.errors import XlapipeError

_PARTIAL = f".*.partial-{'[0-9a-f]' * 16}"  # as of `_beside`
# What is older was left by a process that was killed.
_LEFT_SECONDS = 24 * 3600
# Characters of a hidden name, so that a label fits after it.
_LONGEST_NAME = 200
_CURRENT_FOLDER = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE
# Of file systems that exchange no names, and where another process was faster.
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_CHANGED_MEANWHILE = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)


def write_files(files: Mapping[Path, bytes]) -> None:
    """Writes all of `files`, making their folders; each gets its name when it is complete.

    A link is followed, and the file that it names is replaced. A device or a pipe, such as
    `/dev/stdout`, is written into.
    """
    partials: dict[Path, Path] = {}
    path = next(iter(files), Path())
    try:
        for path, content in files.items():
            target = Path(os.path.realpath(path))
            if target.is_dir():
                raise XlapipeError(f"{path}: expected the name of a file to write, found a folder")
            if _is_special(target):
                _write(target, content, os.O_WRONLY | os.O_NOCTTY)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_left(target.parent)
            partials[target] = _beside(target)
            _write_new(partials[target], content)
        for target, partial in partials.items():
            partial.replace(target)
    except OSError as error:
        raise XlapipeError(
            f"{path}: cannot be written: {error.strerror}; fix: choose another place"
        ) from None
    finally:
        for partial in partials.values():
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def remove_left(folder: Path) -> None:
    """Removes the partial files and folders in `folder` that killed processes left."""
    oldest = time.time() - _LEFT_SECONDS
    for left in folder.glob(_PARTIAL):
        with suppress(OSError):
            state = left.lstat()
            if state.st_mtime < oldest and stat.S_ISDIR(state.st_mode):
                shutil.rmtree(left, ignore_errors=True)
            elif state.st_mtime < oldest:
                left.unlink()


def is_partial(name: str) -> bool:
    """Whether this is the name of a file that a killed process left half written."""
    return fnmatch(name, _PARTIAL)


def write_folder(path: Path, files: Mapping[str, bytes], *, fix: str) -> None:
    """Writes a folder that holds exactly `files`; an existing folder is replaced."""
    with replace_folder(path, fix=fix) as folder:
        for name, content in files.items():
            _write_new(folder / name, content)


@contextmanager
def replace_folder(path: Path, *, fix: str) -> Iterator[Path]:
    """Yields an empty folder to write into, which replaces `path` when the block succeeds.

    The two folders are exchanged in one step where the file system can, so that `path` is at no
    moment missing, and several processes may replace it at once.
    """
    partial = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_left(path.parent)
        partial.mkdir()
        yield partial
        _put_in_place(partial, path)
    except OSError as error:
        raise XlapipeError(f"{path}: cannot be written: {error.strerror}; fix: {fix}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, path: Path) -> None:
    """Gives `partial` the name `path`; a folder of that name gets another one, and is removed."""
    while True:
        try:
            if not os.path.lexists(path):
                partial.rename(path)
            elif not _exchanged(partial, path):
                former = _beside(path)
                path.rename(former)
                try:
                    partial.rename(path)
                except OSError:
                    with suppress(OSError):  # another process was faster
                        former.rename(path)
                    raise
                finally:
                    shutil.rmtree(former, ignore_errors=True)
            return
        except OSError as error:
            if error.errno not in _CHANGED_MEANWHILE:
                raise


def _exchanged(one: Path, other: Path) -> bool:
    """Exchanges two names in one step (Linux's renameat2); False where that is not possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library before 2.28
        return False
    names = os.fsencode(one), os.fsencode(other)
    if rename(_CURRENT_FOLDER, names[0], _CURRENT_FOLDER, names[1], _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number not in _NOT_HERE:
        raise OSError(number, os.strerror(number))
    return False


def _write_new(path: Path, content: bytes) -> None:
    _write(path, content, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)


def _write(path: Path, content: bytes, flags: int) -> None:
    with open(os.open(path, flags | os.O_CLOEXEC, 0o666), "wb") as stream:
        stream.write(content)


def _is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _beside(path: Path) -> Path:
    """A hidden name in the same folder, so that a rename stays on one file system."""
    return path.with_name(f".{path.name[:_LONGEST_NAME]}.partial-{secrets.token_hex(8)}")
