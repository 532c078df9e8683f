"""Starts jax as one of several processes, and lets them tell each other plain data."""

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed

from xlapipe.errors import TargetError
from xlapipe.running.rendezvous import Member, meet

# jax ends every process when one has not been heard of for so long.
_HEARTBEAT_SECONDS = 20
_SHUTDOWN_SECONDS = 10
# The kernel's own, the same in all containers of a host.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Of processes that are alive: one may need so much longer than others to make its inputs.
_WAITS = 10


@contextmanager
def joined(member: Member | None, about: str = "") -> Iterator[None]:
    """jax over the devices of all processes within the context; nothing where `member` is None.

    Args:
      about: what will be run, the same in every process.

    Raises:
      TargetError: a process is missing, or the coordinator cannot be reached, within
        `member.wait_seconds`; or jax has started already.
    """
    if member is None:
        yield
        return
    meet(member, about)
    host, port = member.address
    bind = f"{host}:{port}" if host in ("127.0.0.1", "localhost") else f"[::]:{port}"
    # It takes SIGTERM for a notice to finish soon; the launcher means now.
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
    try:
        yield
    except BaseException:
        _leave()
        raise
    jax.distributed.shutdown()


def _leave() -> None:
    """Takes back what jax does at exit: it would wait for the others, who wait for this process."""
    state = distributed.global_state
    for part in (state.client, state.service):
        if part is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # its destructor waits too
    state.client = state.service = state.preemption_sync_manager = None


def host_count(member: Member | None) -> int:
    """Hosts that the processes are on."""
    return len(set(exchange(member, "host", _BOOT_ID.read_text())))


def exchange(member: Member | None, key: str, mine: Any) -> list[Any]:
    """What every process gave under `key`, in the order of the processes.

    Args:
      mine: plain data.

    Raises:
      TargetError: a process did not come to this point in time.
    """
    if member is None:
        return [mine]
    seconds = _WAITS * member.wait_seconds
    client: Any = distributed.global_state.client
    client.key_value_set(f"xlapipe/{key}/{member.process}", json.dumps(mine))
    found = []
    for number in range(member.count):
        try:
            text = client.blocking_key_value_get(f"xlapipe/{key}/{number}", round(seconds * 1000))
        except RuntimeError as error:
            raise TargetError(
                f"{member.name}: process {number} did not come to {key!r} within "
                f"{seconds:g} s: {error!s:.200}"
            ) from None
        found.append(json.loads(text))
    return found
