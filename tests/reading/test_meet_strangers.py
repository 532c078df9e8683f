"""Strangers at the port where processes meet: refused one by one, and the processes still meet."""

import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from tests.reading.test_launch import free_port
from xlapipe.errors import TargetError
from xlapipe.run.meet import meet
from xlapipe.run.rendezvous import Member

# Longer than any stranger is heard, so that one after another would be too late.
_WAIT_SECONDS = 20.0


def member(process: int, port: int, *, token: str = "secret", count: int = 2) -> Member:
    return Member(
        process=process,
        count=count,
        coordinator=f"127.0.0.1:{port}",
        wait_seconds=_WAIT_SECONDS,
        token=token,
    )


def connect(port: int) -> socket.socket:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def hello(**changed: object) -> bytes:
    fields = {"process": 1, "count": 2, "program": "same", "nonce": "n", "proof": "p"}
    return json.dumps({**fields, **changed}).encode() + b"\n"


STRANGERS: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "infinity": b'{"process": Infinity, "count": 2, "program": "same"}\n',
    "surrogate": hello(program="\ud800", nonce="\ud800", proof="\ud800"),
    "no proof": hello(),
    "wrong count": hello(count=3),
    "a proof that is no text": hello(proof=1),
    "not ASCII": hello(proof="é" * 64),
    "endless": b"a" * 100_000,
    "deep": b"[" * 4000 + b"\n",
    "nothing": b"",
    "a list": b"[1, 2]\n",
    "old protocol": b'{"process": 1, "count": 2, "program": "same"}\n',
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_alone(sent: bytes) -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        coordinator = pool.submit(meet, member(0, port), "same")
        with connect(port) as stranger:
            challenge = stranger.makefile("rb").readline()
            with suppress(OSError):
                stranger.sendall(sent)
            pool.submit(meet, member(1, port), "same").result(_WAIT_SECONDS)
        coordinator.result(_WAIT_SECONDS)
    # What runs there is told to nobody without the token.
    assert b"same" not in challenge


def test_a_thousand_connections_do_not_keep_the_processes_apart() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        coordinator = pool.submit(meet, member(0, port), "same")
        for _ in range(1000):
            stack.enter_context(connect(port))
        started = time.monotonic()
        pool.submit(meet, member(1, port), "same").result(_WAIT_SECONDS)
        coordinator.result(_WAIT_SECONDS)
        assert time.monotonic() - started < _WAIT_SECONDS


def test_a_recorded_hello_does_not_start_again() -> None:
    """What one meeting sent proves nothing in another, whose random numbers differ."""
    port = free_port()
    sent: list[bytes] = []

    def relay(listener: socket.socket) -> None:
        with listener.accept()[0] as client, connect(port) as server:
            client.sendall(server.recv(4096))
            sent.append(client.recv(4096))
            server.sendall(sent[0])
            client.sendall(server.recv(4096))

    with ThreadPoolExecutor(3) as pool, socket.create_server(("127.0.0.1", 0)) as listener:
        coordinator = pool.submit(meet, member(0, port), "same")
        through = listener.getsockname()[1]
        relayed = pool.submit(relay, listener)
        pool.submit(meet, member(1, through), "same").result(_WAIT_SECONDS)
        relayed.result(_WAIT_SECONDS)
        coordinator.result(_WAIT_SECONDS)
        again = pool.submit(meet, member(0, port), "same")
        with connect(port) as replay:
            lines = replay.makefile("rb")
            assert b"nonce" in lines.readline()
            replay.sendall(sent[0])
            assert lines.readline() == b""  # closed, without `go`
        pool.submit(meet, member(1, port), "same").result(_WAIT_SECONDS)
        again.result(_WAIT_SECONDS)


def test_another_token_is_not_a_member() -> None:
    port = free_port()
    waiting = Member(
        process=0, count=2, coordinator=f"127.0.0.1:{port}", wait_seconds=1.0, token="one"
    )
    other = Member(
        process=1, count=2, coordinator=f"127.0.0.1:{port}", wait_seconds=1.0, token="two"
    )
    with ThreadPoolExecutor(2) as pool:
        errors = [pool.submit(meet, member_, "same").exception() for member_ in (waiting, other)]
    assert "process 1 did not connect" in str(errors[0])
    assert "did not answer within 1 s" in str(errors[1])
    assert all(isinstance(error, TargetError) for error in errors)
    assert "XLAPIPE_TOKEN" in str(errors[0])


def test_it_listens_at_the_coordinators_address_only() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        coordinator = pool.submit(meet, member(0, port), "same")
        connect(port).close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=1)
        meet(member(1, port), "same")
        coordinator.result(_WAIT_SECONDS)


def test_random_bytes(seed: int = 7) -> None:
    generator = random.Random(seed)
    port = free_port()
    stop = threading.Event()

    def pester() -> None:
        while not stop.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as stranger:
                stranger.sendall(generator.randbytes(generator.randrange(200)) + b"\n")

    with ThreadPoolExecutor(3) as pool:
        coordinator = pool.submit(meet, member(0, port), "same")
        connect(port).close()
        pool.submit(pester)
        time.sleep(0.3)
        try:
            meet(member(1, port), "same")
            coordinator.result(_WAIT_SECONDS)
        finally:
            stop.set()
