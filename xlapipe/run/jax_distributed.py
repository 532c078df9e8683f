"""jax over the devices of several processes, and plain data that the processes exchange."""

import ctypes
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from xlapipe.errors import TargetError
from xlapipe.jax_private import distributed_state
from xlapipe.run.rendezvous import Member

# jax ends every process if one has sent no heartbeat for this long.
_HEARTBEAT_SECONDS = 20
_SHUTDOWN_SECONDS = 10
# The same in all containers of a host, unlike a host name.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# A process may take much longer than others to make its inputs, so an exchange waits this many
# times `Member.wait_seconds`.
_EXCHANGE_WAITS = 10


@contextmanager
def joined(member: Member | None, program: str = "") -> Iterator[None]:
    """Starts jax over the devices of all processes; does nothing if `member` is None.

    Args:
      program: identifies what will be run; must be the same in every process.

    Raises:
      TargetError: the coordinator's port is in use, jax has started already, or another process
        runs another program. If a process is missing for `member.wait_seconds`, jax aborts the
        others.
    """
    if member is None:
        yield
        return
    _initialize(member)
    try:
        _check_programs(member, exchange(member, "program", program))
        yield
    except BaseException:
        _abandon()
        raise
    jax.distributed.shutdown()


def _initialize(member: Member) -> None:
    host, port = member.address
    local = host in ("127.0.0.1", "localhost")
    bind = f"{host}:{port}" if local else f"[::]:{port}"
    if member.process == 0:
        _check_port(member, host if local else "")
    # jax's service delays the end of a process on SIGTERM; the launcher needs it at once.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address=member.coordinator,
            num_processes=member.count,
            process_id=member.process,
            local_device_ids=member.local_devices,
            cluster_detection_method="deactivate",
            initialization_timeout=max(1, round(member.wait_seconds)),
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
            coordinator_bind_address=bind,
        )
    except RuntimeError as error:
        raise TargetError(f"{member.name}: jax.distributed did not start: {error}") from None


def _check_port(member: Member, host: str) -> None:
    """jax's service ends with a segmentation fault if its port is in use."""
    try:
        socket.create_server((host, member.address[1])).close()
    except OSError as error:
        raise TargetError(
            f"{member.name}: cannot listen at {member.coordinator}: {error.strerror or error}; "
            "fix: give --coordinator an address of this host and a free port"
        ) from None


def _check_programs(member: Member, programs: list[str]) -> None:
    others = [process for process, program in enumerate(programs) if program != programs[0]]
    if others:
        raise TargetError(
            f"{member.name}, at {member.coordinator}: process 0 runs {programs[0]}, process "
            f"{others[0]} runs {programs[others[0]]}; fix: give every host the same command, "
            "except --host-index"
        )


def _abandon() -> None:
    """Removes jax's distributed state without its shutdown.

    At exit jax would wait for the other processes, which wait for this one.
    """
    state = distributed_state
    for part in (state.client, state.service):
        if part is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # its destructor waits too
    state.client = state.service = state.preemption_sync_manager = None


def host_count(member: Member | None) -> int:
    """The number of hosts that the processes run on."""
    return len(set(exchange(member, "host", _BOOT_ID.read_text())))


def exchange(member: Member | None, key: str, value: Any) -> list[Any]:
    """Waits until every process has given a value under `key`.

    Args:
      key: names this exchange; each process uses a key once.
      value: this process's value; data that JSON can hold.

    Returns:
      The values of all processes, in the order of the processes.

    Raises:
      TargetError: a process gave no value in time.
    """
    if member is None:
        return [value]
    seconds = _EXCHANGE_WAITS * member.wait_seconds
    client: Any = distributed_state.client
    client.key_value_set(f"xlapipe/{key}/{member.process}", json.dumps(value))
    values = []
    for process in range(member.count):
        try:
            text = client.blocking_key_value_get(f"xlapipe/{key}/{process}", round(seconds * 1000))
        except RuntimeError as error:
            raise TargetError(
                f"{member.name}: process {process} did not reach {key!r} within {seconds:g} s: "
                f"{error!s:.200}; fix: see the output of process {process}, or allow more with "
                "--wait"
            ) from None
        values.append(json.loads(text))
    return values
