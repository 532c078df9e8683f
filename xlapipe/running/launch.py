"""Starts one process per GPU on this host, watches them, and leaves none behind.

As torchrun does: the same command on every host, with its own `--host-index`. When one process
fails, the others of its host are ended at once, and jax's heartbeat ends those of other hosts.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from xlapipe.errors import TargetError
from xlapipe.running.rendezvous import DEFAULT_WAIT_SECONDS, SEVERAL_GPUS, Member

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 3.0
_TELLING_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
# Exit codes of programs that say why, as xlapipe and Python do.
_TOLD = (1, 2)
# jax's C++ side warns of the connections that a clean end cancels.
_DEFAULTS = {**SEVERAL_GPUS, "TF_CPP_MIN_LOG_LEVEL": "2"}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start.

    Attributes:
      processes: on this host, one for each of its GPUs.
      hosts: that the same command is given on; `host_index` is this one's, from 0.
      coordinator: `HOST:PORT` of host 0; None on a single host, where any free port will do.
      wait_seconds: how long processes wait for each other.

    Raises:
      TargetError: numbers that do not fit each other.
    """

    command: tuple[str, ...]
    processes: int
    hosts: int = 1
    host_index: int = 0
    coordinator: str | None = None
    wait_seconds: float = DEFAULT_WAIT_SECONDS

    def __post_init__(self) -> None:
        if not 0 <= self.host_index < self.hosts:
            raise TargetError(
                f"--host-index {self.host_index}: expected 0 to {self.hosts - 1}, one for each of "
                f"--hosts {self.hosts}"
            )
        if self.hosts > 1 and self.coordinator is None:
            raise TargetError(
                f"--hosts {self.hosts}: name host 0 and a free port of it on every host, with "
                "--coordinator HOST:PORT"
            )
        if self.coordinator is not None:
            _, _, port = self.coordinator.rpartition(":")
            if not port.isdecimal() or not 0 < int(port) < 65536:
                raise TargetError(
                    f"--coordinator {self.coordinator}: expected HOST:PORT, with a port from 1 to "
                    "65535"
                )
        if self.wait_seconds <= 0:
            raise TargetError(f"--wait {self.wait_seconds:g}: expected seconds above 0")

    def members(self) -> list[Member]:
        """The processes of this host."""
        coordinator = self.coordinator or f"127.0.0.1:{_free_port()}"
        return [
            Member(
                process=self.host_index * self.processes + local,
                count=self.hosts * self.processes,
                coordinator=coordinator,
                local_devices=(local,),
                wait_seconds=self.wait_seconds,
            )
            for local in range(self.processes)
        ]


def launch(asked: Launch) -> int:
    """Runs the command in every process and returns 0 when all have ended well.

    The first process of this host has this process's stdout and stderr; the others' go to logs,
    which are kept where one fails.

    Returns:
      The exit code of the first process of the host where that is what failed, and has said why.

    Raises:
      TargetError: the command cannot be started, or another process failed: which, and its last
        words.
    """
    program = shutil.which(asked.command[0])
    if program is None:
        raise TargetError(f"{asked.command[0]}: no such command; name what each process is to run")
    logs = Path(tempfile.mkdtemp(prefix="xlapipe-launch-"))
    members = asked.members()
    running: dict[Member, subprocess.Popen[bytes]] = {}
    failed = False
    try:
        with _ended_by_signals():
            for member in members:
                running[member] = _start(asked, program, member, members[0], logs)
            failing = _first_failure(running)
            if failing is None:
                return 0
            failed = True
            # Several may have ended by now: the first one has told the user itself.
            first = running[members[0]].returncode
            if first in _TOLD:
                return first
            raise TargetError(_ending(failing, running[failing].returncode, asked, logs))
    finally:
        _end(running.values())
        if not failed:
            shutil.rmtree(logs, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _start(
    asked: Launch, program: str, member: Member, first: Member, logs: Path
) -> "subprocess.Popen[bytes]":
    log: IO[bytes] | None = None if member is first else _log(logs, member).open("wb")
    try:
        return subprocess.Popen(
            [program, *asked.command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**_DEFAULTS, **os.environ, **member.environment()},
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - the launcher has one thread
        )
    except OSError as error:
        raise TargetError(f"{program}: cannot be started: {error.strerror}") from None
    finally:
        if log is not None:
            log.close()


def _die_with_parent() -> None:
    """Whatever ends the launcher, SIGKILL too, ends this process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _first_failure(running: "dict[Member, subprocess.Popen[bytes]]") -> Member | None:
    """Waits until one has failed, or all have ended well.

    A process that ended itself knows why; one that jax or XLA aborted may have died of another's
    end, which then comes a moment later.
    """
    aborted: float | None = None
    while True:
        codes = {member: child.poll() for member, child in running.items()}
        failed = {member: code for member, code in codes.items() if code}
        told = [member for member, code in failed.items() if code > 0]
        if told:
            return told[0]
        if failed:
            aborted = aborted or time.monotonic()
            if time.monotonic() - aborted > _TELLING_SECONDS:
                return next(iter(failed))
        elif all(code == 0 for code in codes.values()):
            return None
        time.sleep(_POLL_SECONDS)


def _end(children: "Collection[subprocess.Popen[bytes]]") -> None:
    """Ends the processes and what they started, politely first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the launcher as Ctrl-C does, by way of its `finally`."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _log(logs: Path, member: Member) -> Path:
    return logs / f"process-{member.process}.log"


def _ending(member: Member, code: int, asked: Launch, logs: Path) -> str:
    log = _log(logs, member)
    how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
    text = f"{member.name} ended with {how}"
    if code == -signal.SIGALRM:
        text += (
            f": its first call did not end within {asked.wait_seconds:g} s; a GPU or a link "
            "between them may be stuck: NCCL_DEBUG=INFO tells more, --wait allows more time"
        )
    if log.exists():
        text += f"{_last_words(log)}; its log is {log}"
    return f"{text}; the other processes were ended"


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line.startswith("xlapipe: error: ")]
    fatal = [line for line in lines if "heartbeat" in line or "Check failed" in line]
    last = (said or fatal or [line for line in lines if line])[-1:]
    return f": {last[0].removeprefix('xlapipe: error: '):.600}" if last else ""
