"""Forks compiling children: `python -P _fork_server.py SOCKET`. Never imported.

Each child starts with jax imported, and with no XLA client: that starts in the child, with the
environment of its request. One connection serves one child: the client sends a line of JSON, and
receives the child's process id when it has started and its exit code when it has ended, each on a
line. The server ends when its standard input is closed, and so with the client; a child is killed
when its connection is closed, which the kernel does when the client is killed.
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
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NoReturn

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


def serve(path: str) -> None:
    """Accepts connections on the socket `path` until standard input is closed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    gc.set_threshold(100_000)  # as in `_start_child.py`
    variables = _variables_set_by(_import_libraries)
    # Objects that exist before the fork are not traversed, and so not copied, in children.
    gc.freeze()
    signal.signal(signal.SIGCHLD, lambda *_: _collect_ended())
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            if _fork() == 0:
                listener.close()
                _serve_one(connection, variables)
            connection.close()


def _variables_set_by(imports: Callable[[], None]) -> dict[str, str]:
    """Environment variables that modules set when they are imported, for XLA to read later.

    A child would set them too, if it imported these modules itself.
    """
    before = dict(os.environ)
    imports()
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def _import_libraries() -> None:
    import_module("xlapipe.compile.stand_ins").load_named_stand_ins()
    for name in IMPORTED_BY_CHILDREN:
        import_module(name)
    for name in IMPORTED_BY_WORKLOADS:
        if find_spec(name.split(".", maxsplit=1)[0]) is not None:
            with contextlib.suppress(ImportError):  # the workload's own import reports it
                import_module(name)


def _fork() -> int:
    with warnings.catch_warnings():
        # jax warns that it has threads; there are none before an XLA client is started.
        warnings.simplefilter("ignore")
        return os.fork()


def _collect_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _serve_one(connection: socket.socket, variables: Mapping[str, str]) -> NoReturn:
    """Starts the child, waits for it, and sends its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stream = connection.makefile("rw")
    request = json.loads(stream.readline())
    child = _fork()
    if child == 0:
        connection.close()
        _become(request, variables)
    with contextlib.suppress(BrokenPipeError):  # the client has ended
        print(child, file=stream, flush=True)
        status = _wait(child, connection)
        print(os.waitstatus_to_exitcode(status), file=stream, flush=True)
    os._exit(0)


def _wait(child: int, connection: socket.socket) -> int:
    """The child's status when it has ended; it is killed if the client ends first."""
    with selectors.DefaultSelector() as selector:
        ended = os.pidfd_open(child)
        selector.register(ended, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        if ended not in [key.fileobj for key, _ in selector.select()]:
            for kill in (os.killpg, os.kill):  # it may not lead its own group yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _become(request: dict[str, Any], variables: Mapping[str, str]) -> NoReturn:
    """Does what `subprocess.Popen` and `_start_child.py` do for a child that is not forked."""
    code = 1
    try:
        os.setsid()
        sys.modules["xlapipe.devices.environment.process_end"].die_with_parent()
        with Path(os.devnull).open("rb") as null, Path(request["log"]).open("ab") as log:
            _redirect({0: null, 1: log, 2: log})
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update({**variables, **request["environment"]})
        tempfile.tempdir = None  # the server's, if a module has used it
        # jax reads this variable when it is imported, which was in the server.
        count = int(os.environ.get("JAX_NUM_CPU_DEVICES", "-1"))
        sys.modules["jax"].config.update("jax_num_cpu_devices", count)
        code = sys.modules["xlapipe.compile.child"].main(Path(request["request"]))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - printed as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(files: dict[int, IO[bytes]]) -> None:
    for descriptor, file in files.items():
        os.dup2(file.fileno(), descriptor)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    serve(sys.argv[1])
