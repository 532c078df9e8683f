"""Folders for caches, and for temporary files, which are removed even if their process was killed.

The process that made a folder holds a lock on a file in it. The kernel releases the lock when the
process ends, however it ends, so that a later process knows which folders are unused. A folder
whose lock file was removed is kept for the user, such as one with the log of a failed compile.
"""

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_PREFIX = "xlapipe-"
_LOCK = ".lock"


class Scratch:
    """A folder for temporary files.

    Attributes:
      path: the folder.
    """

    def __init__(self, purpose: str = "") -> None:
        """Makes the folder, and removes those of processes that were killed.

        Args:
          purpose: part of its name, e.g. `server-`.
        """
        _remove_stale()
        self._process, self._kept = os.getpid(), False
        # Not inherited by child processes, which may end later than this one.
        self._lock: int | None = None
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}"))
        # A signal may come where no `finally` closes it.
        atexit.register(self.close)
        # The lock has its name only when it is held, so that no other process mistakes the folder
        # for a stale one.
        unlocked = self.path / f"{_LOCK}.new"
        self._lock = os.open(unlocked, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _LOCK)

    def keep(self) -> None:
        """Leaves the folder to the user, whom a message names it to."""
        self._kept = True
        (self.path / _LOCK).unlink(missing_ok=True)

    def close(self) -> None:
        """Removes the folder unless it is kept."""
        atexit.unregister(self.close)
        if self._process != os.getpid():
            return  # a fork of the process that made it
        if not self._kept:
            shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


@contextmanager
def scratch_folder(purpose: str = "") -> Iterator[Path]:
    """A folder that is removed at the end of the block."""
    scratch = Scratch(purpose)
    try:
        yield scratch.path
    finally:
        scratch.close()


@cache
def _remove_stale() -> None:
    """Removes this user's folders whose processes have ended; once in a process."""
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                _remove_if_stale(folder)


def _remove_if_stale(folder: Path) -> None:
    state = folder.lstat()
    if folder.is_symlink() or not folder.is_dir() or state.st_uid != os.getuid():
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def cache_folder(name: str) -> Path:
    """This user's folder for what can be regenerated, e.g. `~/.cache/xlapipe/plans`.

    It need not be there yet. A relative XDG_CACHE_HOME is ignored, as its specification says.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "xlapipe" / name


def is_trusted(path: Path, *, made_by: Path | None = None) -> bool:
    """Whether nobody but this user, or root, can have made a file or what is in a folder.

    Args:
      made_by: the folder of a file, which must be trusted as well.
    """
    try:
        state = path.lstat()
    except OSError:
        return False
    is_writable = stat.S_ISDIR(state.st_mode) and state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_own = state.st_uid in (os.getuid(), 0) and not is_writable
    return is_own and (made_by is None or is_trusted(made_by.resolve()))


def make_own_folder(path: Path) -> None:
    """Makes a folder that nobody else can write, or makes it one if it is this user's.

    Raises:
      OSError: it cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = path.stat()
    if state.st_uid == os.getuid() and state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        path.chmod(0o700)
