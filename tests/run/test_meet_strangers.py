"""Strangers at the port where processes meet: refused one by one, and the processes still meet."""

import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from tests.run.test_launch import free_port
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


STRANGERS: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "nothing": b"",
    "endless": b"\x00\x00\x00\x20" + b"a" * 100_000,
    "a length that is none": b"\xff\xff\xff\xff" * 3,
    "a wrong proof": b"\x00\x00\x00\x28{sha256}" + b"p" * 32,
    "a hello without a proof": b'\x00\x00\x00\x0e[1, 2, "same"]',
    "the coordinator's challenge": b"\x00\x00\x00\x3b#CHALLENGE#{sha256}" + b"n" * 40,
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_alone(sent: bytes) -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        coordinator = pool.submit(meet, member(0, port), "same")
        with connect(port) as stranger:
            challenge = stranger.recv(4096)
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
