"""Forks compiling children: `python -P _fork_server.py SOCKET`. Never imported.

Each child starts with jax imported, and with no XLA client: that starts in the child, with the
environment of its request. One connection serves one child: the client sends a line of JSON, and
receives the child's process id when it has started and its exit code when it has ended, each on a
line. The server ends when its standard input is closed, and so with the client; a child is killed
when its connection is closed, which the kernel does when the client is killed.

A process with threads cannot be forked safely: a lock that another thread holds is never released
in the child. So the server looks for threads before each fork, and forks no more if it has any.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

# What every child imports, and what lowering and most workloads do, if it is installed.
IMPORTED_BY_CHILDREN = ("xlapipe.devices.environment.process_end", "xlapipe.compile.child")
IMPORTED_BY_WORKLOADS = (
    "jaxlib.mlir.dialects.mhlo",
    "jaxtyping",
    "jax.experimental.pallas.mosaic_gpu",
    "jax.experimental.pallas.triton",
    "flax.nnx",
    "optax",
)

_SILENT_CLIENT_SECONDS = 60.0


def serve(path: str) -> None:
    """Accepts connections on the socket `path` until standard input is closed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    gc.set_threshold(100_000)  # as in `_start_child.py`
    before = dict(os.environ)
    _import_libraries()
    # Modules set these for XLA to read later; a child would, if it imported the modules itself.
    variables = {name: value for name, value in os.environ.items() if before.get(name) != value}
    # Objects that exist before the fork are not traversed, and so not copied, in children.
    gc.freeze()
    selector = selectors.DefaultSelector()
    for source in (listener, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return  # children die with this process
            if key.fileobj is listener:
                if len(os.listdir("/proc/self/task")) > 1:
                    selector.unregister(listener)
                    listener.close()
                    continue
                connection, _ = listener.accept()
                with contextlib.suppress(OSError, ValueError):  # the client has ended
                    _Child.start(connection, selector, variables)
            elif isinstance(key.fileobj, int):
                key.data.collect(selector)
            else:
                key.data.kill(selector)


class _Child:
    """A child, which the selector knows by its process descriptor and by its connection."""

    def __init__(self, process: int, connection: socket.socket) -> None:
        self.process, self.connection, self.is_killed = process, connection, False
        self.descriptor = os.pidfd_open(process)

    @classmethod
    def start(
        cls,
        connection: socket.socket,
        selector: selectors.BaseSelector,
        variables: Mapping[str, str],
    ) -> None:
        """Forks the child that a new connection requests."""
        connection.settimeout(_SILENT_CLIENT_SECONDS)
        line = b""
        while not line.endswith(b"\n"):
            part = connection.recv(1 << 20)
            if not part:
                raise ConnectionError
            line += part
        request = json.loads(line)
        with warnings.catch_warnings():
            # jax warns that it has threads; there are none before an XLA client is started.
            warnings.simplefilter("ignore")
            process = os.fork()
        if process == 0:
            for key in list(selector.get_map().values()):
                if key.fileobj is not sys.stdin:  # which `_become` replaces
                    os.close(key.fd)
            os.close(connection.fileno())
            _become(request, variables)
        child = cls(process, connection)
        for source in (child.descriptor, connection):
            selector.register(source, selectors.EVENT_READ, child)
        child.send(process)

    def send(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the client has ended, which kills the child
            self.connection.sendall(b"%d\n" % number)

    def collect(self, selector: selectors.BaseSelector) -> None:
        """Sends the exit code of the child, which has ended."""
        _, status = os.waitpid(self.process, 0)
        selector.unregister(self.descriptor)
        os.close(self.descriptor)
        self.send(os.waitstatus_to_exitcode(status))
        if not self.is_killed:
            selector.unregister(self.connection)
        self.connection.close()
        self.is_killed = True

    def kill(self, selector: selectors.BaseSelector) -> None:
        """Kills the child, whose client has ended."""
        if self.is_killed:
            return
        self.is_killed = True
        selector.unregister(self.connection)
        for end in (os.killpg, os.kill):  # it may not lead its own group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self.process, signal.SIGKILL)


def _import_libraries() -> None:
    import_module("xlapipe.compile.xla_patches.stand_ins").load_named_stand_ins()
    for name in IMPORTED_BY_CHILDREN:
        import_module(name)
    for name in IMPORTED_BY_WORKLOADS:
        if find_spec(name.split(".", maxsplit=1)[0]) is not None:
            with contextlib.suppress(ImportError):  # the workload's own import reports it
                import_module(name)


def _become(request: dict[str, Any], variables: Mapping[str, str]) -> NoReturn:
    """Does what `subprocess.Popen` and `_start_child.py` do for a child that is not forked."""
    code = 1
    try:
        os.setsid()
        sys.modules["xlapipe.devices.environment.process_end"].die_with_parent()
        with Path(os.devnull).open("rb") as null, Path(request["log"]).open("ab") as log:
            for number, file in enumerate((null, log, log)):
                os.dup2(file.fileno(), number)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update({**variables, **request["environment"]})
        tempfile.tempdir = None  # the server's, if a module has used it
        # jax reads this variable when it is imported, which was in the server.
        count = int(os.environ.get("JAX_NUM_CPU_DEVICES", "-1"))
        sys.modules["jax"].config.update("jax_num_cpu_devices", count)
        code = sys.modules["xlapipe.compile.child"].main(Path(request["job"]))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - printed as the interpreter does
        traceback.print_exc()
    sys.modules["xlapipe.devices.environment.process_end"].leave(code)
    raise AssertionError("left")


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    serve(sys.argv[1])
