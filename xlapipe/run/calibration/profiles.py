"""Programs as they ran on a GPU: XLA's files of each, and the seconds that were measured."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from xlapipe.dump.readers import read_path
from xlapipe.files.typed_data import typed
from xlapipe.plans.kernel_code import KernelCode
from xlapipe.plans.plan import Plan
from xlapipe.time.profiles.joined_profile import (
    CallInterval,
    KernelEvent,
    MeasuredKernel,
    join_profile,
)

KEPT_FILES = re.compile(r"(gpu_after_optimizations\.hlo\.pb|thunk_sequence\.txt)$")
"""Files of XLA that a plan is read from."""
KERNEL_CODES = "kernel_codes.json"


@dataclass(frozen=True)
class ProgramTimes:
    """Measured seconds of a program, without the profiler for the call.

    `kernels` has launches and seconds of each instruction's kernels, `kernel_seconds` is of all,
    also of those that were joined with no instruction.
    """

    span_seconds: float
    kernel_seconds: float
    wall_seconds: float
    kernels: Mapping[str, tuple[int, float]]

    @property
    def measured(self) -> tuple[MeasuredKernel, ...]:
        """The kernels, with their names."""
        return tuple(MeasuredKernel(name, *times) for name, times in self.kernels.items())


@dataclass(frozen=True)
class TimedCalls:
    """What the profiler saw of some calls of one program, and seconds of calls without it."""

    events: tuple[KernelEvent, ...]
    calls: tuple[CallInterval, ...]
    wall_seconds: tuple[float, ...]


@dataclass(frozen=True)
class ProgramProfile:
    name: str
    plan: Plan
    times: ProgramTimes


def profile_of(folder: Path, name: str, timed: TimedCalls, gpus: int = 1) -> ProgramProfile:
    """The profile of a program whose files are in `folder`/NAME, over GPUs of one host."""
    plan = plan_in(folder / name)
    topology = f"1x{gpus}" if gpus > 1 else plan.topology
    measured = join_profile(plan, timed.events, len(timed.calls), timed.calls)
    times = ProgramTimes(
        span_seconds=round(measured.span_seconds, 9),
        kernel_seconds=round(measured.kernel_seconds, 9),
        wall_seconds=round(median(timed.wall_seconds), 9),
        kernels={
            kernel.name: (kernel.launches, round(kernel.seconds, 9)) for kernel in measured.kernels
        },
    )
    return ProgramProfile(name, replace(plan, topology=topology), times)


def plan_in(folder: Path) -> Plan:
    """The plan of a program that was timed, with the codes of its Pallas kernels."""
    plan, path = read_path(folder), folder / KERNEL_CODES
    if not path.exists():
        return plan
    codes = json.loads(path.read_text(encoding="utf-8"))
    return replace(plan, kernel_codes=tuple(typed(KernelCode, code) for code in codes))


def write_kernel_codes(folder: Path, codes: Sequence[KernelCode]) -> None:
    """Write the counted code of Pallas kernels beside XLA's files, which lack it."""
    text = json.dumps([asdict(code) for code in codes], separators=(",", ":"))
    (folder / KERNEL_CODES).write_text(text, encoding="utf-8")
