"""Starts one process per GPU of this host, watches them, and ends all of them when one fails.

As with torchrun, the same command is given on every host, with that host's `--host-index`. When one
process fails, the launcher ends the others of its host, and jax's heartbeat ends those of other
hosts.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xlapipe.devices.environment.process_end import die_with_parent, signals_interrupt
from xlapipe.devices.environment.scratch import Scratch
from xlapipe.errors import TargetError
from xlapipe.run.rendezvous import DEFAULT_WAIT_SECONDS, SEVERAL_GPUS, Member

_ERROR = "xlapipe: error: "
_POLL_SECONDS = 0.02
_TERMINATION_SECONDS = 3.0
# After a process was aborted, how long to wait for one that exits and prints the reason.
_REASON_SECONDS = 0.5
# With these exit codes xlapipe and Python have printed the reason.
_EXPLAINED_EXIT_CODES = (1, 2)
# Defaults for the processes. jax's C++ code logs warnings of connections that a normal end cancels.
_ENVIRONMENT = {**SEVERAL_GPUS, "TF_CPP_MIN_LOG_LEVEL": "2"}


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """A command, and the processes to run it in.

    Attributes:
      processes: number of processes on this host, one per GPU.
      hosts: number of hosts on which the same command is given.
      host_index: number of this host, from 0.
      coordinator: `HOST:PORT` of host 0; None for a free port of a single host.
      wait_seconds: how long processes wait for each other at each point where they meet.

    Raises:
      TargetError: the values contradict each other.
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
                f"--host-index {self.host_index}: expected 0 to {self.hosts - 1}, one number for "
                f"each of --hosts {self.hosts}"
            )
        if self.hosts > 1 and self.coordinator is None:
            raise TargetError(
                f"--hosts {self.hosts}: expected --coordinator HOST:PORT, found none; fix: give "
                "the address of host 0 and a free port there, the same on every host"
            )
        if self.coordinator is not None:
            _, _, port = self.coordinator.rpartition(":")
            if not port.isdecimal() or not 0 < int(port) < 65536:
                raise TargetError(
                    f"--coordinator {self.coordinator}: expected HOST:PORT, with a port from 1 to "
                    "65535"
                )
        if not 0 < self.wait_seconds < float("inf"):
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


def launch(settings: LaunchSettings) -> int:
    """Runs the command in every process, and waits for all of them.

    The first process of this host has this process's stdout and stderr. The others write to logs,
    which are kept if a process fails.

    Returns:
      0 if all processes succeeded. The exit code of the first process of this host if it failed
      and printed the reason.

    Raises:
      TargetError: the command cannot be started, or another process failed; names the process, its
        error and its log.
    """
    program = shutil.which(settings.command[0])
    if program is None:
        raise TargetError(
            f"{settings.command[0]}: no such command; fix: name a program after `--`, as in "
            "`xlapipe launch --processes 2 -- xlapipe run DIR`"
        )
    scratch = Scratch("launch-")
    logs = scratch.path
    members = settings.members()
    running: dict[Member, subprocess.Popen[bytes]] = {}
    try:
        with signals_interrupt():
            for member in members:
                running[member] = _start(settings, program, member, members[0], logs)
            failing = _wait(running)
            if failing is None:
                return 0
            scratch.keep()
            # Several may have failed by now. The first process prints to the user's terminal.
            first_code = running[members[0]].returncode
            if first_code in _EXPLAINED_EXIT_CODES:
                return first_code
            raise TargetError(_failure(failing, running[failing].returncode, settings, logs))
    finally:
        _terminate(running.values())
        scratch.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _start(
    settings: LaunchSettings, program: str, member: Member, first: Member, logs: Path
) -> "subprocess.Popen[bytes]":
    log: IO[bytes] | None = None if member is first else _log(logs, member).open("wb")
    try:
        return subprocess.Popen(
            [program, *settings.command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**_ENVIRONMENT, **os.environ, **member.environment()},
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the launcher has one thread
        )
    except OSError as error:
        raise TargetError(f"{program}: cannot be started: {error.strerror}") from None
    finally:
        if log is not None:
            log.close()


def _wait(running: "dict[Member, subprocess.Popen[bytes]]") -> Member | None:
    """Waits until a process fails, or all have succeeded.

    Returns:
      The process that failed, or None. A process that exited is preferred to one that a signal
      ended, because jax and XLA abort a process when another one ends.
    """
    aborted_at: float | None = None
    while True:
        codes = {member: child.poll() for member, child in running.items()}
        failed = {member: code for member, code in codes.items() if code}
        exited = [member for member, code in failed.items() if code > 0]
        if exited:
            return exited[0]
        if failed:
            aborted_at = aborted_at or time.monotonic()
            if time.monotonic() - aborted_at > _REASON_SECONDS:
                return next(iter(failed))
        elif all(code == 0 for code in codes.values()):
            return None
        time.sleep(_POLL_SECONDS)


def _terminate(children: "Collection[subprocess.Popen[bytes]]") -> None:
    """Ends the processes and those they started: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
        deadline = time.monotonic() + _TERMINATION_SECONDS
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))


def _log(logs: Path, member: Member) -> Path:
    return logs / f"process-{member.process}.log"


def _failure(member: Member, code: int, settings: LaunchSettings, logs: Path) -> str:
    """The message for a process that failed."""
    log = _log(logs, member)
    how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
    text = f"{member.name} ended with {how}"
    if code == -signal.SIGALRM:
        text += (
            f": its first call did not end within {settings.wait_seconds:g} s; a GPU or a link "
            "between GPUs may hang; fix: set NCCL_DEBUG=INFO for details, or allow more with --wait"
        )
    elif code == -signal.SIGABRT and settings.hosts > 1:
        text += (
            f": jax aborts a process if others did not connect to {member.coordinator} within "
            f"{settings.wait_seconds:g} s, or ended; fix: give the same command on each of the "
            f"{settings.hosts} hosts, with its own --host-index, and check that they can reach "
            "this address"
        )
    if log.exists():
        text += f"{_last_error(log)}; its log is {log}"
    return f"{text}; the other processes were ended"


def _last_error(log: Path) -> str:
    """xlapipe's error, or else XLA's fatal message, or the log's last line; after a colon."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if line.startswith(_ERROR)]
    fatal = [line for line in lines if "heartbeat" in line or "Check failed" in line]
    last = (errors or fatal or [line for line in lines if line])[-1:]
    return f": {last[0].removeprefix(_ERROR):.600}" if last else ""
