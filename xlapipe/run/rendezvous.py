"""The processes that run one program together: which one this is."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from xlapipe.errors import TargetError

DEFAULT_WAIT_SECONDS = 60.0
_LONGEST_WAIT_SECONDS = 7 * 24 * 3600.0
COUNT, PROCESS = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
COORDINATOR, DEVICES = "JAX_COORDINATOR_ADDRESS", "JAX_LOCAL_DEVICE_IDS"
WAIT = "XLAPIPE_WAIT_SECONDS"
# Environment of processes that use several GPUs; the user's own settings take precedence. With one
# hardware queue, kernels begin in the order in which they were launched, so that a collective that
# was launched before a gemm gets multiprocessors before the gemm occupies all of them. With more
# queues the order varies, and all devices wait for the one on which the gemm was first.
SEVERAL_GPUS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


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
    waits = 0 < member.wait_seconds < _LONGEST_WAIT_SECONDS  # not for NaN
    if not (0 <= member.process < member.count and 0 < port < 65536 and waits):
        raise TargetError(
            f"{member.name} at {member.coordinator}: expected a process from 0 to below the number "
            "of processes, a port from 1 to 65535 and a wait above 0 s"
        )
    return member


def this_member() -> Member | None:
    """`member_from` of this process's environment."""
    return member_from(os.environ)
