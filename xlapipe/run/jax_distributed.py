"""jax over the devices of several processes, and plain data that the processes exchange.

srun, mpirun or another launcher that jax detects starts the processes.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from xlapipe.errors import TargetError
from xlapipe.jax_private import distributed_state

# jax ends every process if one has sent no heartbeat for this long.
_HEARTBEAT_SECONDS = 20
_SHUTDOWN_SECONDS = 10
# The same in all containers of a host, unlike a host name.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# A process may take much longer than others to make its inputs.
_EXCHANGE_SECONDS = 600


@contextmanager
def joined(program: str) -> Iterator[None]:
    """Starts jax over the devices of all processes of the launcher that started this one."""
    try:
        jax.distributed.initialize(
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS, shutdown_timeout_seconds=_SHUTDOWN_SECONDS
        )
    except (RuntimeError, ValueError) as error:
        raise TargetError(
            f"--distributed: jax.distributed.initialize() failed: {error}; fix: start one process "
            "per GPU by srun or mpirun"
        ) from None
    programs = exchange("program", program)
    others = [process for process, other in enumerate(programs) if other != programs[0]]
    if others:
        raise TargetError(
            f"process 0 runs {programs[0]}, process {others[0]} runs {programs[others[0]]}; fix: "
            "give every process the same command"
        )
    yield
    jax.distributed.shutdown()


def is_first_process() -> bool:
    """Whether this process prints for all of them."""
    return jax.process_index() == 0


def host_count() -> int:
    """The number of hosts that the processes run on."""
    return len(set(exchange("host", _BOOT_ID.read_text())))


def exchange(key: str, value: Any) -> list[Any]:
    """Waits until every process has given a value, that JSON can hold, under `key`."""
    client: Any = distributed_state.client
    if client is None:
        return [value]
    client.key_value_set(f"xlapipe/{key}/{jax.process_index()}", json.dumps(value))
    values = []
    for process in range(jax.process_count()):
        try:
            text = client.blocking_key_value_get(
                f"xlapipe/{key}/{process}", _EXCHANGE_SECONDS * 1000
            )
        except RuntimeError as error:
            raise TargetError(
                f"process {process} did not reach {key!r} within {_EXCHANGE_SECONDS} s: "
                f"{error!s:.200}; fix: see the output of process {process}"
            ) from None
        values.append(json.loads(text))
    return values
