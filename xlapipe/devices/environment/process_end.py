"""How processes end: with their parent, by signals as if by Ctrl-C, or when all is done."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


class Interrupted(KeyboardInterrupt):
    """A signal that asks this process to end, such as SIGTERM.

    Attributes:
      number: number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def signals_interrupt(*numbers: int) -> Iterator[None]:
    """Raises Interrupted in the main thread for SIGTERM and SIGHUP, so that `finally` cleans up.

    Signals that are ignored (`nohup`) or handled by the program stay as they are.

    Args:
      numbers: other signals than these two.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    former = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers or (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                former[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def die_with_parent(parent: int | None = None) -> None:
    """Lets the kernel kill this process when the thread that started it ends, even by SIGKILL.

    Args:
      parent: the process id that the parent has; None if it cannot have ended yet.
    """
    import ctypes  # takes longer to import than the rest of this module

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)  # it ended before the prctl call


def end_process(code: int) -> NoReturn:
    """Ends this process as `sys.exit` does, but leaves its memory to the kernel.

    Python frees each object before it ends: 12 % of the CPU time of `show`, 15 % of a compile.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads, as Python does
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what removes files is not interrupted
    atexit._run_exitfuncs()
    leave(code)


def leave(code: int) -> NoReturn:
    """Ends this process at once: neither threads nor `atexit` functions are waited for."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):  # what could not be written was reported
                stream.flush()
    os._exit(code)
