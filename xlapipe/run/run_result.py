"""The result of running an executable: outputs' digests, times, and memory of each device."""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from xlapipe.run.memory_account import MemoryAccount
from xlapipe.time.profiles.joined_profile import MeasuredStep


@dataclass(frozen=True)
class OutputDigest:
    """One output leaf; `sha256` is of the bytes of the whole array in row-major order."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


@dataclass(frozen=True)
class DeviceRun:
    """Memory of one device, None without statistics; by its process and position in the mesh."""

    process: int
    device: int
    memory: MemoryAccount | None


@dataclass(frozen=True)
class ProfiledRun:
    """Profiled calls: wall time of each, and the kernels joined with the plan."""

    call_seconds: tuple[float, ...]
    measured: MeasuredStep


@dataclass(frozen=True)
class RunResult:
    """The result of a run; the same in every process, except for times.

    `load_seconds` are of reading and loading, after jax has started, and `call_seconds` from inputs
    on the devices until this process's part of the outputs is ready. The devices are of all
    processes, in the order of the mesh; the profile is of further calls, if any.
    """

    device: str
    autotuning: str
    load_seconds: float
    first_call_seconds: float
    call_seconds: tuple[float, ...]
    outputs: tuple[OutputDigest, ...]
    devices: tuple[DeviceRun, ...]
    processes: int
    profile: ProfiledRun | None = None

    @property
    def median_call_seconds(self) -> float | None:
        return median(self.call_seconds) if self.call_seconds else None

    @property
    def worst(self) -> DeviceRun:
        """The device that used most memory; the first of several."""
        return max(self.devices, key=lambda run: run.memory.measured_bytes if run.memory else 0)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `memory` is the worst device's."""
        memory = self.worst.memory
        data = asdict(self)
        if self.profile is None:
            del data["profile"]
        return {
            **data,
            "median_call_seconds": self.median_call_seconds,
            "memory": asdict(memory) if memory is not None else None,
        }
