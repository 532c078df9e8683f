"""How the processes of one program meet, through a socket at the coordinator's address.

If a process is missing, jax's own start ends the others with a stack trace (`LOG(FATAL)`) that does
not name it. So the processes meet here first; jax's coordination service uses the address after it.

The port is open to others, so every message proves that its sender has the members' token: it has
an HMAC over the random numbers of both sides, which no message of another meeting has. A peer that
cannot prove it is refused alone. Peers are heard in parallel, each for a few seconds.
"""

import errno
import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from xlapipe.errors import TargetError
from xlapipe.run.rendezvous import Member

_MAX_LINE_BYTES = 4096
_HELLO_SECONDS = 5.0
_RETRY_SECONDS = 0.05
# Connections that have not identified themselves.
_MOST_UNKNOWN_PEERS = 256
_GO = "go"
_LOOPBACK = ("127.0.0.1", "::1")


def meet(member: Member, program: str) -> None:
    """Returns when every process has connected to the coordinator.

    Args:
      program: identifies what this process will run; must be the same in every process.

    Raises:
      TargetError: processes are missing, or run another program.
    """
    deadline = time.monotonic() + member.wait_seconds
    if member.process == 0:
        _Coordinator(member, program, deadline).gather()
    else:
        _connect_and_wait(member, program, deadline)


class _Peer:
    """A connection to the coordinator, and what it has sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = secrets.token_hex(16)
        self.expires = time.monotonic() + _HELLO_SECONDS
        self.received = b""
        self.answer_nonce = ""

    def send(self, message: dict[str, Any]) -> None:
        """Sends a line; a peer that does not read it is a peer that has ended."""
        with suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> bool:
        """Reads what has arrived; whether it is a whole line, or as much as a line may have."""
        try:
            part = self.connection.recv(_MAX_LINE_BYTES)
        except OSError:
            part = b""
        self.received += part
        return not part or b"\n" in self.received or len(self.received) >= _MAX_LINE_BYTES

    def close(self) -> None:
        with suppress(OSError):
            self.connection.close()


class _Coordinator:
    """Process 0: waits for all others, then lets them start."""

    def __init__(self, member: Member, program: str, deadline: float) -> None:
        self._member = member
        self._program = program
        self._deadline = deadline
        self._known: dict[int, _Peer] = {}
        self._unknown: dict[socket.socket, _Peer] = {}

    def gather(self) -> None:
        """Raises TargetError for missing processes, and for ones that run another program."""
        with _listening(self._member) as server, selectors.DefaultSelector() as selector:
            try:
                server.setblocking(False)
                selector.register(server, selectors.EVENT_READ)
                while len(self._known) < self._member.count - 1:
                    self._step(server, selector)
                for peer in self._known.values():
                    self._answer(peer, _GO)
                self._wait_until_closed()
            finally:
                for peer in (*self._known.values(), *self._unknown.values()):
                    peer.close()

    def _step(self, server: socket.socket, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            self._fail_for_missing()
        times = [self._deadline, *(peer.expires for peer in self._unknown.values())]
        for key, _ in selector.select(max(0.0, min(times) - now)):
            if key.fileobj is server:
                self._accept(server, selector)
                continue
            peer = key.data
            if peer.read():
                selector.unregister(peer.connection)
                del self._unknown[peer.connection]
                self._hear(peer)
        now = time.monotonic()
        for peer in [peer for peer in self._unknown.values() if peer.expires <= now]:
            self._refuse(peer, selector)

    def _accept(self, server: socket.socket, selector: selectors.BaseSelector) -> None:
        with suppress(OSError):
            connection = server.accept()[0]
            connection.settimeout(_HELLO_SECONDS)
            peer = _Peer(connection)
            if len(self._unknown) >= _MOST_UNKNOWN_PEERS:
                self._refuse(next(iter(self._unknown.values())), selector)
            self._unknown[connection] = peer
            selector.register(connection, selectors.EVENT_READ, peer)
            peer.send({"nonce": peer.nonce})

    def _refuse(self, peer: _Peer, selector: selectors.BaseSelector) -> None:
        selector.unregister(peer.connection)
        del self._unknown[peer.connection]
        peer.close()

    def _hear(self, peer: _Peer) -> None:
        """Takes a peer in that has the token; closes the connection of any other."""
        hello = _message(peer.received)
        process, count, program = hello.get("process"), hello.get("count"), hello.get("program")
        nonce, proof = hello.get("nonce"), hello.get("proof")
        if not (
            type(process) is int
            and type(count) is int
            and isinstance(program, str)
            and isinstance(nonce, str)
            and isinstance(proof, str)
            and _same(
                proof, _proof(self._member, "hello", peer.nonce, nonce, process, count, program)
            )
        ):
            peer.close()
            return
        peer.answer_nonce = nonce
        member = self._member
        mismatch = None
        if count != member.count:
            mismatch = f"expected {member.count} processes, process {process} expects {count}"
        elif process in self._known or not 0 < process < member.count:
            mismatch = f"two processes have the number {process}"
        elif program != self._program:
            mismatch = f"process 0 runs {self._program}, process {process} runs {program}"
        if mismatch is None:
            self._known[process] = peer
            return
        self._answer(peer, mismatch)
        peer.close()
        self._fail(
            mismatch,
            f"{member.name}, at {member.address[0]}: {mismatch}; fix: give every host the same "
            "command, except --host-index",
        )

    def _fail_for_missing(self) -> None:
        member = self._member
        missing = ", ".join(str(n) for n in range(1, member.count) if n not in self._known)
        self._fail(
            f"process {missing} is missing",
            f"{member.name}: process {missing} did not connect to {member.coordinator} within "
            f"{member.wait_seconds:g} s; fix: start it on its host with the same command and the "
            "same XLAPIPE_TOKEN, and check that the host can reach this address",
        )

    def _fail(self, reason: str, message: str) -> None:
        for peer in self._known.values():
            self._answer(peer, reason)
        raise TargetError(message)

    def _answer(self, peer: _Peer, text: str) -> None:
        proof = _proof(self._member, "answer", peer.nonce, peer.answer_nonce, text)
        peer.send({"answer": text, "proof": proof})

    def _wait_until_closed(self) -> None:
        """The peers close first, so that the port is free at once."""
        for peer in self._known.values():
            with suppress(OSError):
                peer.connection.settimeout(max(0.001, self._deadline - time.monotonic()))
                peer.connection.recv(1)


def _connect_and_wait(member: Member, program: str, deadline: float) -> None:
    """All other processes: connects, and waits until all may start."""
    while True:
        try:
            answer = _ask(member, program, deadline)
            break
        except (OSError, ValueError) as error:
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
        raise TargetError(f"{member.name}: the coordinator {member.coordinator} reports: {answer}")


def _ask(member: Member, program: str, deadline: float) -> str:
    """The coordinator's answer to a hello.

    Raises:
      OSError: no connection, or none until the deadline.
      ValueError: what answers is not a coordinator with the token.
    """
    with socket.create_connection(
        member.address, max(0.001, deadline - time.monotonic())
    ) as server:
        challenge = _message(_read_line(server, min(deadline, time.monotonic() + _HELLO_SECONDS)))
        challenge_nonce, nonce = challenge.get("nonce"), secrets.token_hex(16)
        if not isinstance(challenge_nonce, str):
            raise ValueError("another program listens there")
        proof = _proof(
            member, "hello", challenge_nonce, nonce, member.process, member.count, program
        )
        hello = {
            "process": member.process,
            "count": member.count,
            "program": program,
            "nonce": nonce,
            "proof": proof,
        }
        server.sendall(json.dumps(hello).encode() + b"\n")
        answer = _message(_read_line(server, deadline))
        text, answer_proof = answer.get("answer"), answer.get("proof")
        if not isinstance(text, str) or not isinstance(answer_proof, str):
            raise ValueError("it closed the connection")
        if not _same(answer_proof, _proof(member, "answer", challenge_nonce, nonce, text)):
            raise ValueError("it has another token")
        return text


def _proof(member: Member, *parts: object) -> str:
    """HMAC-SHA-256 of a message's parts with the members' token."""
    text = json.dumps(parts)  # unambiguous, and ASCII whatever the texts contain
    return hmac.new(member.token.encode(), text.encode(), "sha256").hexdigest()


def _same(proof: str, expected: str) -> bool:
    return proof.isascii() and hmac.compare_digest(proof, expected)


def _message(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; empty for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


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
