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
# Each takes some 200 MB.
_MOST_SERVERS = 2


class ForkServer:
    """A server for children of this interpreter and of one environment.

    Args:
      environment: that of the server. A child may have another, except for the variables that
        Python, jax and the dynamic linker read when they start.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
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
        self, request: Path, *, log: IO[bytes], folder: Path, environment: Mapping[str, str]
    ) -> "ForkedChild":
        """Starts a child for the CompileRequest in the file `request`.

        Raises:
          OSError: the server has ended, or does not answer.
        """
        message = {
            "request": str(request),
            "log": log.name,
            "folder": str(folder),
            "environment": dict(environment),
        }
        return ForkedChild(self._connection(), message)

    def _connection(self) -> socket.socket:
        """A connection; the server listens when its interpreter has started."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._socket)
            except OSError:
                connection.close()
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return connection

    def stop(self) -> None:
        """Ends the server; children that run end with this process."""
        try:
            self._process.communicate(timeout=_STOP_SECONDS)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._folder.close()


class ForkedChild:
    """A child of a ForkServer, with the part of `subprocess.Popen` that is used for one.

    Attributes:
      pid: process id of the child, which is the leader of its own process group.
    """

    def __init__(self, connection: socket.socket, message: Mapping[str, object]) -> None:
        self._connection = connection
        self._code: int | None = None
        try:
            connection.sendall(json.dumps(message).encode() + b"\n")
            self.pid = int(self._line(timeout=_START_SECONDS))
        except OSError:  # the server was stopped meanwhile
            connection.close()
            raise

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal.

        Raises:
          subprocess.TimeoutExpired: the child runs after `timeout` seconds.
        """
        if self._code is None:
            try:
                self._code = int(self._line(timeout))
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"child {self.pid}", timeout or 0.0) from None
            except OSError:  # the process that waits for the child was killed, and so was the child
                self._code = -signal.SIGKILL
            self._connection.close()
        return self._code

    def _line(self, timeout: float | None) -> bytes:
        self._connection.settimeout(timeout)
        line = b""
        while not line.endswith(b"\n"):
            part = self._connection.recv(1)
            if not part:
                raise ConnectionError("the server of compiling children has ended")
            line += part
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
    each = {CPU_DEVICES} if count.isascii() and count.isdigit() else set()
    return {name: value for name, value in environment.items() if name not in each}


class ForkServers:
    """The servers of this process: each is started with the second compile in its environment.

    The server that was used least recently is stopped for a new one; its children run to their
    end.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[str, str] | None = None
        self._servers: list[ForkServer] = []  # in the order of their last use

    def for_environment(self, environment: Mapping[str, str]) -> ForkServer | None:
        """A server for a child with `environment`; None if the child is to be started directly."""
        if not hasattr(os, "fork"):
            return None
        with self._lock:  # jobs are compiled in threads
            for server in self._servers:
                if server.serves(environment):
                    self._servers.remove(server)
                    self._servers.append(server)
                    return server
            read = _read_at_start(environment)
            if self._seen != read:
                self._seen = read
                return None
            if len(self._servers) == _MOST_SERVERS:
                self._servers.pop(0).stop()
            self._servers.append(ForkServer(environment))
            atexit.register(self._servers[-1].stop)
            return self._servers[-1]

    def discard(self) -> None:
        """Stops all servers, of which one does not answer; children are then started directly."""
        with self._lock:
            for server in self._servers:
                server.stop()
            self._servers, self._seen = [], None
