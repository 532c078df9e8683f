"""Locks between processes: held by no forked child, released explicitly, waited for with a limit.

A lock of `flock` belongs to an open file, which a forked child shares with its parent. Until that
child ends, others would wait, however long ago the parent closed the file.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xlapipe.errors import XlapipeError

_SILENT_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 0.5
_held: set[int] = set()


def _close_in_child() -> None:
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def hold(descriptor: int, *, shared: bool = False) -> None:
    """Locks an open file or folder; `release` ends that."""
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    _held.add(descriptor)


def release(descriptor: int) -> None:
    """Releases a lock, if this process holds it, and closes the file; not in a forked child."""
    if descriptor in _held:
        _held.discard(descriptor)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextmanager
def locked(descriptor: int, *, what: str, limit_seconds: float) -> Iterator[None]:
    """Holds the lock of an open file or folder, which is closed at the end of the block.

    A wait of more than two seconds is logged, with the process that holds the lock.
    """
    began, is_told = time.monotonic(), False
    while True:
        try:
            hold(descriptor)
            break
        except BlockingIOError:
            waited = time.monotonic() - began
        holder = _holder(descriptor)
        if waited > limit_seconds:
            os.close(descriptor)
            raise XlapipeError(
                f"{what}: waited {waited:.0f} s for {holder}, which holds the lock; fix: see what "
                "that process does, or end it"
            )
        if waited > _SILENT_SECONDS and not is_told:
            logging.getLogger("xlapipe").warning("%s: waiting for %s", what, holder)
            is_told = True
        time.sleep(min(0.01 + waited / 10, _LONGEST_PAUSE_SECONDS))
    try:
        yield
    finally:
        release(descriptor)


def _holder(descriptor: int) -> str:
    """The process that locked a file, as the kernel lists it."""
    inode = str(os.fstat(descriptor).st_ino)
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                command = Path("/proc", fields[4], "cmdline").read_bytes()
                text = command.replace(b"\0", b" ").decode(errors="replace").strip()
                return f"process {fields[4]} ({text:.100})"
    return "another process"
