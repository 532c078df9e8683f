"""What a running process takes and does: its memory, and where its threads are."""

import faulthandler
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

_SHARE = 0.9
_STACK_SECONDS = 2.0
_SIZES = re.compile(r"^Vm(?:RSS|Swap):\s+(\d+) kB$", re.MULTILINE)
_GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def memory_of(process: int) -> int:
    """Bytes of memory that a process has, with what was swapped out; 0 if it has ended."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text(errors="replace")
        return 1024 * sum(map(int, _SIZES.findall(status)))
    return 0


def child_memory_limit() -> int:
    """Most of the memory that this machine or container has, in bytes."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _GROUP_LIMITS:
        with suppress(OSError, ValueError):  # `max`
            sizes.append(int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii")))
    return int(_SHARE * min(sizes))


def write_stacks(process: int, log: Path) -> None:
    """Appends the stacks of a compiling child and of this process to the child's log."""
    with suppress(OSError):
        size_bytes = log.stat().st_size
        os.kill(process, signal.SIGUSR1)  # see `xlapipe.compile.child`
        end = time.monotonic() + _STACK_SECONDS
        while log.stat().st_size == size_bytes and time.monotonic() < end:
            time.sleep(0.05)
        with log.open("a", encoding="utf-8") as stream:
            stream.write("\nxlapipe: the parent:\n")
            stream.flush()
            faulthandler.dump_traceback(stream)
