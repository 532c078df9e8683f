"""Files and folders that are written completely or not at all."""

import ctypes
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import cache
from glob import escape
from pathlib import Path

from xlapipe.errors import XlapipeError
from xlapipe.files.locks import hold, locked, release

_RANDOM = "[0-9a-f]" * 16  # as of `_beside`
# Characters of a hidden name, so that a label fits after it.
_LONGEST_NAME = 200
_RENAME_SECONDS = 60.0
_CURRENT_FOLDER = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def write_files(files: Mapping[Path, bytes]) -> None:
    """Writes all of `files`, making their folders; each gets its name when it is complete.

    A link is followed, and the file that it names is replaced. A device or a pipe, such as
    `/dev/stdout`, is written into. Files that a killed process left are removed.
    """
    partials: dict[Path, Path] = {}
    locks: list[int] = []
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
            remove_left(target.parent, of=target.name)
            partials[target] = _beside(target, "partial")
            locks.append(_made_and_locked(partials[target], folder=False))
            _write(partials[target], content, os.O_WRONLY | os.O_NOFOLLOW)
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
        for lock in locks:
            release(lock)


def remove_left(folder: Path, *, of: str | None = None) -> int:
    """Removes the partial files and folders in `folder` that killed processes left.

    Returns:
      The bytes of the partial files that remain, which other processes write.
    """
    names = f"{escape(_hidden(folder / of)) if of is not None else '.*'}.partial-{_RANDOM}"
    written_bytes = 0
    for left in folder.glob(names):
        with suppress(OSError):
            written_bytes += left.stat().st_size if left.is_file() else 0
            _remove_unless_locked(left)
    return written_bytes


def is_partial(name: str) -> bool:
    """Whether this is the name of a file that a killed process left half written."""
    return fnmatch(name, f".*.partial-{_RANDOM}") or fnmatch(name, f".*.new-{_RANDOM}")


def write_folder(path: Path, files: Mapping[str, bytes], *, fix: str) -> None:
    """Writes a folder that holds exactly `files`; an existing folder is replaced."""
    with replace_folder(path, fix=fix) as folder:
        for name, content in files.items():
            _write(folder / name, content, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)


@contextmanager
def replace_folder(path: Path, *, fix: str) -> Iterator[Path]:
    """Yields an empty folder to write into, which replaces `path` when the block succeeds.

    The two folders are exchanged in one step where the file system can, so that `path` is at no
    moment missing, and several processes may replace it at once. Folders that a killed process left
    are removed.
    """
    partial = _beside(path, "partial")
    lock: int | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover_folder(path)
        lock = _made_and_locked(partial, folder=True)
        yield partial
        _put_in_place(partial, path)
    except OSError as error:
        raise XlapipeError(f"{path}: cannot be written: {error.strerror}; fix: {fix}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if lock is not None:
            release(lock)


def recover_folder(path: Path) -> None:
    """Puts back a folder that a killed process had moved aside, and removes what such ones left.

    Only where folders cannot be exchanged is there a moment in which `path` is moved aside.
    """
    pattern = f"{escape(_hidden(path))}.former-*"
    if any(path.parent.glob(pattern)):
        with _one_at_a_time(path.parent):
            for left in path.parent.glob(pattern):  # those of killed processes
                with suppress(OSError):
                    if os.path.lexists(path):
                        _remove_unless_locked(left)
                    else:
                        left.rename(path)
    remove_left(path.parent, of=path.name)


def _put_in_place(partial: Path, path: Path) -> None:
    """Gives `partial` the name `path`; a folder of that name gets the name `partial`."""
    if _renameat2() is None:
        _swap_in_two_steps(partial, path)
        return
    while True:
        try:
            if os.path.lexists(path):
                _exchange(partial, path)
            else:
                partial.rename(path)
            return
        except OSError as error:
            if error.errno in _NOT_HERE:
                _swap_in_two_steps(partial, path)
                return
            # Another process made or removed it in between.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise


def _swap_in_two_steps(partial: Path, path: Path) -> None:
    """As an exchange, where the file system has none; one process at a time."""
    with _one_at_a_time(path.parent):
        former = _beside(path, "former")
        if os.path.lexists(path):
            path.rename(former)
        try:
            partial.rename(path)
        except OSError:
            if os.path.lexists(former):
                former.rename(path)
            raise
        if os.path.lexists(former):
            former.rename(partial)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """A lock on a folder, which the kernel releases when the process ends."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with locked(lock, what=str(folder), limit_seconds=_RENAME_SECONDS):
        yield


def _exchange(one: Path, other: Path) -> None:
    """Exchanges two names in one step (Linux's renameat2)."""
    rename = _renameat2()
    assert rename is not None  # checked by `_put_in_place`
    arguments = (_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other), _EXCHANGE)
    if rename(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _renameat2() -> "ctypes._NamedFuncPointer | None":
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library before 2.28
        return None


def _made_and_locked(partial: Path, *, folder: bool) -> int:
    """Makes an empty file or folder with a lock, which the kernel releases when the process ends.

    It gets the name under which others look for what is left only when it is locked.
    """
    if os.path.lexists(partial):  # planted: the name is random
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    unlocked = partial.with_name(partial.name.replace(".partial-", ".new-"))
    if folder:
        unlocked.mkdir()
        lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    hold(lock, shared=True)
    unlocked.rename(partial)
    return lock


def _remove_unless_locked(left: Path) -> None:
    """Removes a file or a folder that no process writes."""
    lock = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        hold(lock)
    except OSError:
        os.close(lock)
        raise
    try:
        if stat.S_ISDIR(os.fstat(lock).st_mode):
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()
    finally:
        release(lock)


def _write(path: Path, content: bytes, flags: int) -> None:
    with open(os.open(path, flags | os.O_CLOEXEC, 0o666), "wb") as stream:
        stream.write(content)


def _is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _beside(path: Path, label: str) -> Path:
    """A hidden name in the same folder, so that a rename stays on one file system."""
    return path.with_name(f"{_hidden(path)}.{label}-{secrets.token_hex(8)}")


def _hidden(path: Path) -> str:
    return f".{path.name[:_LONGEST_NAME]}"
