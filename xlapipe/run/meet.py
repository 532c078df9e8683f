"""How the processes of one program meet, through a socket at the coordinator's address.

If a process is missing, jax's own start ends the others with a stack trace (`LOG(FATAL)`) that does
not name it. So the processes meet here first; jax's coordination service uses the address after it.

The port is open to others, so both sides prove that they have the members' token, by the challenges
of `multiprocessing.connection`: an HMAC over random numbers of the other side. A peer that cannot
prove it is refused alone. Peers are heard in parallel, each for a few seconds.
"""

import errno
import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn

from xlapipe.errors import TargetError
from xlapipe.run.rendezvous import Member

_MOST_BYTES = 4096
_HELLO_SECONDS = 5
_RETRY_SECONDS = 0.05
_GO = b"go"
_LOOPBACK = ("127.0.0.1", "::1")
# What a peer that is not a member, or has ended, may cause.
_REFUSED = (AuthenticationError, EOFError, OSError, ValueError)


@dataclass(frozen=True)
class _Hello:
    """What a member of the program states of itself, and the connection to it."""

    connection: Connection
    process: int
    count: int
    program: str


def meet(member: Member, program: str) -> None:
    """Returns when every process has connected to the coordinator.

    Args:
      program: identifies what this process will run; must be the same in every process.

    Raises:
      TargetError: processes are missing, or run another program.
    """
    deadline = time.monotonic() + member.wait_seconds
    if member.process == 0:
        known: dict[int, Connection] = {}
        try:
            _gather(member, program, deadline, known)
        finally:
            for connection in known.values():
                connection.close()
    else:
        _connect_and_wait(member, program, deadline)


def _gather(member: Member, program: str, deadline: float, known: dict[int, Connection]) -> None:
    """Process 0: waits for all others, then lets them start.

    Args:
      known: gets the connection to each process.
    """
    hellos: SimpleQueue[_Hello] = SimpleQueue()
    with _listening(member) as server:
        server.settimeout(_RETRY_SECONDS)
        while len(known) < member.count - 1:
            if time.monotonic() >= deadline:
                _fail_for_missing(member, known)
            with suppress(OSError):  # nobody connected meanwhile
                Thread(target=_hear, args=(server.accept()[0], member, hellos), daemon=True).start()
            with suppress(Empty):
                while True:
                    _take_in(member, program, hellos.get_nowait(), known)
        for connection in known.values():
            _send(connection, _GO)
        # The peers close first, so that the port is free at once.
        for connection in known.values():
            with suppress(OSError, EOFError):
                if connection.poll(max(0.0, deadline - time.monotonic())):
                    connection.recv_bytes(_MOST_BYTES)


def _hear(peer: socket.socket, member: Member, hellos: "SimpleQueue[_Hello]") -> None:
    """Hears a peer that has the token; closes the connection of any other."""
    connection = _connection(peer)
    try:
        deliver_challenge(connection, member.token.encode())
        answer_challenge(connection, member.token.encode())
        hellos.put(_Hello(connection, *json.loads(connection.recv_bytes(_MOST_BYTES))))
    except _REFUSED:
        connection.close()


def _take_in(member: Member, program: str, hello: _Hello, known: dict[int, Connection]) -> None:
    process, mismatch = hello.process, None
    if hello.count != member.count:
        mismatch = f"expected {member.count} processes, process {process} expects {hello.count}"
    elif process in known or not 0 < process < member.count:
        mismatch = f"two processes have the number {process}"
    elif hello.program != program:
        mismatch = f"process 0 runs {program}, process {process} runs {hello.program}"
    if mismatch is None:
        known[process] = hello.connection
        return
    _send(hello.connection, mismatch.encode())
    hello.connection.close()
    _fail(
        known,
        mismatch,
        f"{member.name}, at {member.address[0]}: {mismatch}; fix: give every host the same "
        "command, except --host-index",
    )


def _fail_for_missing(member: Member, known: dict[int, Connection]) -> NoReturn:
    missing = ", ".join(str(n) for n in range(1, member.count) if n not in known)
    _fail(
        known,
        f"process {missing} is missing",
        f"{member.name}: process {missing} did not connect to {member.coordinator} within "
        f"{member.wait_seconds:g} s; fix: start it on its host with the same command and the "
        "same XLAPIPE_TOKEN, and check that the host can reach this address",
    )


def _fail(known: dict[int, Connection], reason: str, message: str) -> NoReturn:
    for connection in known.values():
        _send(connection, reason.encode())
    raise TargetError(message)


def _send(connection: Connection, content: bytes) -> None:
    """Sends to a peer; one that does not read it has ended."""
    with suppress(OSError):
        connection.send_bytes(content)


def _connect_and_wait(member: Member, program: str, deadline: float) -> None:
    """All other processes: connects, and waits until all may start."""
    while True:
        try:
            answer = _ask(member, program, deadline)
            break
        except _REFUSED as error:
            # The coordinator does not listen yet, its host is unknown, or it does not answer.
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                reason = getattr(error, "strerror", None) or error
                raise TargetError(
                    f"{member.name}: the coordinator {member.coordinator} did not answer within "
                    f"{member.wait_seconds:g} s: {reason}; fix: check that process 0 is running "
                    "with the same XLAPIPE_TOKEN, and that its host can be reached at this address"
                ) from None
            time.sleep(_RETRY_SECONDS)
    if answer != _GO:
        raise TargetError(
            f"{member.name}: the coordinator {member.coordinator} reports: {answer.decode()}"
        )


def _ask(member: Member, program: str, deadline: float) -> bytes:
    """The coordinator's answer to a hello.

    Raises:
      OSError, EOFError, AuthenticationError: no connection, none until the deadline, or what
        answers is not a coordinator with the token.
    """
    seconds = max(0.001, deadline - time.monotonic())
    with _connection(socket.create_connection(member.address, seconds)) as coordinator:
        answer_challenge(coordinator, member.token.encode())
        deliver_challenge(coordinator, member.token.encode())
        coordinator.send_bytes(json.dumps([member.process, member.count, program]).encode())
        if not coordinator.poll(max(0.0, deadline - time.monotonic())):
            raise TimeoutError("it does not let the processes start")
        return coordinator.recv_bytes(_MOST_BYTES)


def _connection(peer: socket.socket) -> Connection:
    """A connection of messages, of which reading and writing each take a few seconds at most."""
    peer.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        peer.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _HELLO_SECONDS, 0))
    return Connection(peer.detach())


@contextmanager
def _listening(member: Member) -> Iterator[socket.socket]:
    try:
        server = _server_socket(member)
    except OSError as error:
        raise TargetError(
            f"{member.name}: cannot listen at {member.coordinator}: {error.strerror or error}; "
            "fix: give --coordinator an address of this host and a free port"
        ) from None
    with server:
        yield server


def _server_socket(member: Member) -> socket.socket:
    """Listens at the coordinator's address; on all if this host does not have it, as with NAT."""
    host, port = member.address
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if address[0] in _LOOPBACK or not str(address[0]).startswith("127."):
        try:
            return socket.create_server(address[:2], family=family)
        except OSError as error:
            if address[0] in _LOOPBACK or error.errno != errno.EADDRNOTAVAIL:
                raise
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)
