"""The processes that run one program together: which one this is, and how they meet.

If a process is missing, jax's own start ends the others with a stack trace (`LOG(FATAL)`) that does
not name it. So the processes meet here first, through a socket at the coordinator's address, which
jax's coordination service uses afterwards.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from xlapipe.errors import TargetError

DEFAULT_WAIT_SECONDS = 60.0
COUNT, PROCESS = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
COORDINATOR, DEVICES = "JAX_COORDINATOR_ADDRESS", "JAX_LOCAL_DEVICE_IDS"
WAIT = "XLAPIPE_WAIT_SECONDS"
# Environment of processes that use several GPUs; the user's own settings take precedence. With one
# hardware queue, kernels begin in the order in which they were launched, so that a collective that
# was launched before a gemm gets multiprocessors before the gemm occupies all of them. With more
# queues the order varies, and all devices wait for the one on which the gemm was first.
SEVERAL_GPUS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
_START = b"go\n"
_MAX_LINE_BYTES = 1024
_HELLO_SECONDS = 5
_RETRY_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of several processes that run one program together.

    Attributes:
      process: number of this process, from 0; process 0 is the coordinator.
      count: number of processes on all hosts.
      coordinator: `HOST:PORT` of process 0.
      local_devices: indices of the GPUs that this process uses; None for all visible ones.
      wait_seconds: how long it waits for the others at each point where they meet.
    """

    process: int
    count: int
    coordinator: str
    local_devices: tuple[int, ...] | None = None
    wait_seconds: float = DEFAULT_WAIT_SECONDS

    @property
    def name(self) -> str:
        """The process in messages, e.g. `process 0 of 2`."""
        return f"process {self.process} of {self.count}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the coordinator."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)

    def environment(self) -> dict[str, str]:
        """The variables that `member_from` reads."""
        variables = {
            COORDINATOR: self.coordinator,
            COUNT: str(self.count),
            PROCESS: str(self.process),
            WAIT: f"{self.wait_seconds:g}",
        }
        if self.local_devices is not None:
            variables[DEVICES] = ",".join(map(str, self.local_devices))
        return variables


def member_from(environ: Mapping[str, str]) -> Member | None:
    """The member that the variables of `xlapipe launch` describe; None for a single process.

    Raises:
      TargetError: some of the variables are missing, or have another form.
    """
    if COUNT not in environ and PROCESS not in environ:
        return None
    missing = [name for name in (COORDINATOR, COUNT, PROCESS) if not environ.get(name)]
    if missing:
        raise TargetError(
            f"{', '.join(missing)} not set, but {COUNT} or {PROCESS} is; fix: start with `xlapipe "
            "launch`, which sets all of them, or unset them to run a single process"
        )
    try:
        devices = environ.get(DEVICES)
        member = Member(
            process=int(environ[PROCESS]),
            count=int(environ[COUNT]),
            coordinator=environ[COORDINATOR],
            local_devices=tuple(map(int, devices.split(","))) if devices else None,
            wait_seconds=float(environ.get(WAIT, DEFAULT_WAIT_SECONDS)),
        )
        port = member.address[1]
    except ValueError as error:
        raise TargetError(
            f"{COORDINATOR}={environ[COORDINATOR]} {COUNT}={environ[COUNT]} "
            f"{PROCESS}={environ[PROCESS]}: expected HOST:PORT and numbers: {error}"
        ) from None
    if not (0 <= member.process < member.count and 0 < port < 65536 and member.wait_seconds > 0):
        raise TargetError(
            f"{member.name} at {member.coordinator}: expected a process from 0 to below the number "
            "of processes, a port from 1 to 65535 and a wait above 0 s"
        )
    return member


def this_member() -> Member | None:
    """`member_from` of this process's environment."""
    return member_from(os.environ)


def meet(member: Member, program: str) -> None:
    """Returns when every process has connected to the coordinator.

    Args:
      program: identifies what this process will run; must be the same in every process.

    Raises:
      TargetError: processes are missing, or run another program.
    """
    deadline = time.monotonic() + member.wait_seconds
    if member.process == 0:
        _gather(member, program, deadline)
    else:
        _connect_and_wait(member, program, deadline)


def _gather(member: Member, program: str, deadline: float) -> None:
    """The coordinator's side: waits for all others, then lets them start."""
    with ExitStack() as stack:
        server = _listen(member, stack)
        peers: dict[int, socket.socket] = {}
        while len(peers) < member.count - 1:
            peer = _accept(member, server, stack, peers, deadline)
            hello = _read_hello(peer, deadline)
            if hello is None:
                continue  # a connection of another program
            process, count, peer_program = hello
            mismatch = None
            if count != member.count:
                mismatch = f"expected {member.count} processes, process {process} expects {count}"
            elif process in peers or not 0 < process < member.count:
                mismatch = f"two processes have the number {process}"
            elif peer_program != program:
                mismatch = f"process 0 runs {program}, process {process} runs {peer_program}"
            peers[process] = peer
            if mismatch is not None:
                _send(peers, mismatch)
                raise TargetError(
                    f"{member.name}, at {member.address[0]}: {mismatch}; fix: give every host the "
                    "same command, except --host-index"
                )
        for peer in peers.values():
            peer.sendall(_START)
        for peer in peers.values():
            _read_line(peer, deadline)  # the peer closes first, so that the port is free at once


def _listen(member: Member, stack: ExitStack) -> socket.socket:
    try:
        return stack.enter_context(_server_socket(member))
    except OSError as error:
        raise TargetError(
            f"{member.name}: cannot listen at {member.coordinator}: {error.strerror or error}; "
            "fix: give --coordinator an address of this host and a free port"
        ) from None


def _accept(
    member: Member,
    server: socket.socket,
    stack: ExitStack,
    peers: Mapping[int, socket.socket],
    deadline: float,
) -> socket.socket:
    """The next connection.

    Raises:
      TargetError: there is none before the deadline; the other processes get the reason too.
    """
    try:
        server.settimeout(max(0.001, deadline - time.monotonic()))
        return stack.enter_context(server.accept()[0])
    except TimeoutError:
        missing = ", ".join(str(n) for n in range(1, member.count) if n not in peers)
        _send(peers, f"process {missing} is missing")
        raise TargetError(
            f"{member.name}: process {missing} did not connect to {member.coordinator} within "
            f"{member.wait_seconds:g} s; fix: start it on its host with the same command, and "
            "check that the host can reach this address"
        ) from None


def _server_socket(member: Member) -> socket.socket:
    """Listens on the loopback address only if that is the coordinator's, else on all addresses."""
    host, port = member.address
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if address[0] in ("127.0.0.1", "::1"):
        return socket.create_server(address[:2], family=family)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


def _send(peers: Mapping[int, socket.socket], text: str) -> None:
    for peer in peers.values():
        with suppress(OSError):
            peer.sendall(f"{text}\n".encode())


def _read_hello(peer: socket.socket, deadline: float) -> tuple[int, int, str] | None:
    """Number, process count and program of a peer; None if it is not a process of xlapipe."""
    try:
        line = _read_line(peer, min(deadline, time.monotonic() + _HELLO_SECONDS))
        hello = json.loads(line)
        return int(hello["process"]), int(hello["count"]), str(hello["program"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _connect_and_wait(member: Member, program: str, deadline: float) -> None:
    """The side of all other processes: connects, and waits until all may start."""
    hello = {"process": member.process, "count": member.count, "program": program}
    while True:
        seconds_left = deadline - time.monotonic()
        try:
            with socket.create_connection(member.address, max(0.001, seconds_left)) as server:
                server.sendall(json.dumps(hello).encode() + b"\n")
                answer = _read_line(server, deadline)
                break
        except OSError as error:
            # The coordinator does not listen yet, its host is unknown, or it does not answer.
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                raise TargetError(
                    f"{member.name}: the coordinator {member.coordinator} did not answer within "
                    f"{member.wait_seconds:g} s: {error.strerror or error}; fix: check that "
                    "process 0 is running, and that its host can be reached at this address"
                ) from None
            time.sleep(_RETRY_SECONDS)
    if answer != _START:
        reason = answer.decode(errors="replace").strip() or "it closed the connection"
        raise TargetError(f"{member.name}: the coordinator {member.coordinator} reports: {reason}")


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    """Bytes up to the end of a line, or until the other side closes the connection."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(_MAX_LINE_BYTES)
        if not part:
            break
        line += part
    return line
