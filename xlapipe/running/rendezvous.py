"""One process of several: which one it is, and how they find each other before jax starts.

jax's own start ends a process whose peers do not come (`LOG(FATAL)`, with a stack trace and no
word of who is missing). So the processes meet here first, over a socket at the coordinator's
address, which jax's coordination service takes over when all have come.
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
# For processes that use several GPUs, unless the user says otherwise. With one hardware queue
# kernels begin in the order in which they were launched: a collective that was started before a
# gemm gets its share of the GPU before the gemm takes all of it. Otherwise it is chance, and one
# device that loses keeps all others waiting.
SEVERAL_GPUS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
_GO = b"go\n"
_LONGEST_LINE = 1024
_RETRY_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process of several that run one program.

    Attributes:
      process: from 0; process 0 is the coordinator.
      count: of processes, on all hosts.
      coordinator: `HOST:PORT` of process 0.
      local_devices: indices of the GPUs that this process takes; None for all it sees.
      wait_seconds: how long it waits for the others, whenever it does.
    """

    process: int
    count: int
    coordinator: str
    local_devices: tuple[int, ...] | None = None
    wait_seconds: float = DEFAULT_WAIT_SECONDS

    @property
    def name(self) -> str:
        return f"process {self.process} of {self.count}"

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)

    def environment(self) -> dict[str, str]:
        """The variables that `member_from` reads."""
        found = {
            COORDINATOR: self.coordinator,
            COUNT: str(self.count),
            PROCESS: str(self.process),
            WAIT: f"{self.wait_seconds:g}",
        }
        if self.local_devices is not None:
            found[DEVICES] = ",".join(map(str, self.local_devices))
        return found


def member_from(environ: Mapping[str, str]) -> Member | None:
    """Which process this is, by the variables that `xlapipe launch` sets; None if it is alone.

    Raises:
      TargetError: some of the variables are missing, or are of another form.
    """
    if COUNT not in environ and PROCESS not in environ:
        return None
    missing = [name for name in (COORDINATOR, COUNT, PROCESS) if not environ.get(name)]
    if missing:
        raise TargetError(
            f"{', '.join(missing)} not set, but {COUNT} or {PROCESS} is: `xlapipe launch` sets "
            "all of them; unset them to run alone"
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


def meet(member: Member, about: str) -> None:
    """Returns when every process has come to the coordinator's address.

    Args:
      about: what this process will run, which must be what the others will.

    Raises:
      TargetError: who did not come in time, or came for something else.
    """
    deadline = time.monotonic() + member.wait_seconds
    if member.process == 0:
        _gather(member, about, deadline)
    else:
        _come(member, about, deadline)


def _gather(member: Member, about: str, deadline: float) -> None:
    with ExitStack() as stack:
        host = member.address[0]
        try:
            server = stack.enter_context(_listening(member))
        except OSError as error:
            raise TargetError(
                f"{member.name}: cannot listen at {member.coordinator}: {error.strerror or error}; "
                "name an address of this host and a port that is free with --coordinator"
            ) from None
        peers: dict[int, socket.socket] = {}
        while len(peers) < member.count - 1:
            try:
                server.settimeout(max(0.001, deadline - time.monotonic()))
                peer = stack.enter_context(server.accept()[0])
            except TimeoutError:
                missing = [n for n in range(1, member.count) if n not in peers]
                _tell(peers, f"process {', '.join(map(str, missing))} is missing")
                raise TargetError(
                    f"{member.name}: process {', '.join(map(str, missing))} did not come to "
                    f"{member.coordinator} within {member.wait_seconds:g} s: start it with the "
                    "same command on its host, where this address can be reached"
                ) from None
            hello = _hello(peer, deadline)
            if hello is None:
                continue  # somebody else's connection
            number, count, theirs = hello
            wrong = None
            if count != member.count:
                wrong = f"expected {member.count} processes, process {number} expects {count}"
            elif number in peers or not 0 < number < member.count:
                wrong = f"two processes say that they are number {number}"
            elif theirs != about:
                wrong = f"process 0 runs {about}, process {number} runs {theirs}"
            peers[number] = peer
            if wrong is not None:
                _tell(peers, wrong)
                raise TargetError(
                    f"{member.name}, at {host}: {wrong}; give every host the same command but "
                    "for --host-index"
                )
        for peer in peers.values():
            peer.sendall(_GO)
        for peer in peers.values():
            _line(peer, deadline)  # it hangs up first, so that the port is free at once


def _listening(member: Member) -> socket.socket:
    """On the address alone where that is this host's loopback, else on every address."""
    host, port = member.address
    own = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    loopback = own[4][0] in ("127.0.0.1", "::1")
    if loopback:
        return socket.create_server(own[4][:2], family=own[0])
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


def _tell(peers: Mapping[int, socket.socket], text: str) -> None:
    for peer in peers.values():
        with suppress(OSError):
            peer.sendall(f"{text}\n".encode())


def _hello(peer: socket.socket, deadline: float) -> tuple[int, int, str] | None:
    try:
        data = json.loads(_line(peer, min(deadline, time.monotonic() + 5)))
        return int(data["process"]), int(data["count"]), str(data["about"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _come(member: Member, about: str, deadline: float) -> None:
    said = b""
    while True:
        left = deadline - time.monotonic()
        try:
            with socket.create_connection(member.address, timeout=max(0.001, left)) as server:
                hello = {"process": member.process, "count": member.count, "about": about}
                server.sendall(json.dumps(hello).encode() + b"\n")
                said = _line(server, deadline)
                break
        except OSError as error:
            # Not listening yet, or unknown, or silent.
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                raise TargetError(
                    f"{member.name}: the coordinator {member.coordinator} did not answer within "
                    f"{member.wait_seconds:g} s: {error.strerror or error}; is process 0 running, "
                    "and can its host be reached at this address?"
                ) from None
            time.sleep(_RETRY_SECONDS)
    if said != _GO:
        reason = said.decode(errors="replace").strip() or "it hung up"
        raise TargetError(f"{member.name}: the coordinator {member.coordinator} says: {reason}")


def _line(connection: socket.socket, deadline: float) -> bytes:
    """Up to a line's end or the other side's hanging up."""
    found = b""
    while not found.endswith(b"\n") and len(found) < _LONGEST_LINE:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(_LONGEST_LINE)
        if not part:
            break
        found += part
    return found


def this_member() -> Member | None:
    """`member_from` of this process's environment."""
    return member_from(os.environ)
