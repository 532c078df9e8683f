"""Starts compiling children from a process that has jax imported: 1 to 2 s of CPU less for each.

A process that compiles once needs no server; from the second compile on, importing jax in a server
costs no more than importing it in the child. See `_fork_server.py` for the other side.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import IO

from xlapipe.compile.user_environment import CPU_DEVICES
from xlapipe.devices.environment.scratch import Scratch

_SERVER = Path(__file__).with_name("_fork_server.py")
_START_SECONDS = 60.0
# While it imports, it does not notice that its standard input is closed.
_STOP_SECONDS = 0.5


class ForkServer:
    """A server for children of this interpreter and of one environment.

    A child may have another, except for the variables that Python, jax and the dynamic linker read
    when they start.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._has_answered = False
        self._started: list[ForkedChild] = []
        self._folder = Scratch("server-")
        self._socket = f"{self._folder.path}/socket"
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SERVER), self._socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # One thread in BLAS: a process with threads cannot be forked safely.
            env={
                **_shared(environment),
                "OPENBLAS_NUM_THREADS": "1",
                "TMPDIR": str(self._folder.path),
            },
            start_new_session=True,
        )

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a child with `environment` would import the same modules in the same way."""
        return _read_at_start(environment) == _read_at_start(self._environment)

    def start(
        self, job: Path, *, log: IO[bytes], folder: Path, environment: Mapping[str, str]
    ) -> "ForkedChild":
        message = {
            "job": str(job),
            "log": log.name,
            "folder": str(folder),
            "environment": dict(environment),
        }
        child = ForkedChild(self._connection(), message)
        self._has_answered = True
        self._started = [*filter(ForkedChild.is_running, self._started), child]
        return child

    def is_used(self) -> bool:
        """Whether a child of it runs, which would end with it."""
        return any(map(ForkedChild.is_running, self._started))

    def _connection(self) -> socket.socket:
        """A connection; the server listens when its interpreter has started."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._socket)
            except OSError:
                connection.close()
                if (
                    self._has_answered
                    or self._process.poll() is not None
                    or time.monotonic() > deadline
                ):
                    raise
                time.sleep(0.02)
            else:
                return connection

    def stop(self) -> None:
        """Ends the server, and the children that run."""
        try:
            self._process.communicate(timeout=_STOP_SECONDS)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._folder.close()


class ForkedChild:
    """A child of a ForkServer, with the part of `subprocess.Popen` that is used for one.

    It is the leader of its own process group.
    """

    def __init__(self, connection: socket.socket, message: Mapping[str, object]) -> None:
        self._connection, self._received = connection, b""
        self._code: int | None = None
        try:
            connection.sendall(json.dumps(message).encode() + b"\n")
            self.pid = int(self._line(_START_SECONDS))
        except OSError:  # the server was stopped meanwhile, or does not answer
            connection.close()
            raise

    def is_running(self) -> bool:
        """Whether its end was not seen yet."""
        return self._code is None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal."""
        if self._code is None:
            try:
                self._code = int(self._line(timeout))
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"child {self.pid}", timeout or 0.0) from None
            except OSError:  # the server has ended, and so has the child
                self._code = -signal.SIGKILL
            self._connection.close()
        return self._code

    def _line(self, timeout: float | None) -> bytes:
        self._connection.settimeout(timeout)
        while b"\n" not in self._received:
            part = self._connection.recv(64)
            if not part:
                raise ConnectionError("the server of compiling children has ended")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that decide what Python, jax and the dynamic linker do when they start."""
    prefixes = ("PYTHON", "JAX_", "FLAX_", "LD_", "TF_", "TPU_", "CUDA_")
    names = ("PATH", "HOME", "VIRTUAL_ENV")
    return {
        name: value
        for name, value in _shared(environment).items()
        if name.startswith(prefixes) or name in names
    }


def _shared(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables without the number of CPU devices, which each forked child gives to jax."""
    count = environment.get(CPU_DEVICES, "")
    excluded = {CPU_DEVICES} if count.isascii() and count.isdigit() else set()
    return {name: value for name, value in environment.items() if name not in excluded}


class ServerOfEnvironment:
    """The server of this process, which starts with the second compile in one environment."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[str, str] | None = None
        self._server: ForkServer | None = None

    def get(self, environment: Mapping[str, str]) -> ForkServer | None:
        """A server for a child with `environment`; None if the child is to be started directly."""
        if not hasattr(os, "pidfd_open"):
            return None
        with self._lock:  # jobs are compiled in threads
            if self._server is not None and self._server.serves(environment):
                return self._server
            read = _read_at_start(environment)
            if self._seen != read:
                self._seen = read
                return None
            if self._server is not None and self._server.is_used():
                return None
            self._stop()
            self._server = ForkServer(environment)
            atexit.register(self._server.stop)
            return self._server

    def discard(self) -> None:
        """Asks the server no more: it does not answer, or has ended. Its children run on."""
        with self._lock:
            self._server, self._seen = None, None

    def stop(self) -> None:
        """Ends the server and its children."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._server is not None:
            atexit.unregister(self._server.stop)
            self._server.stop()
        self._server, self._seen = None, None
