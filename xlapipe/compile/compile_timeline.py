"""What XLA does in one compile, and for how long, from its own profile of the host.

XLA marks its passes and the code generation of each kernel for profilers (TraceMe). Kernels are
compiled in threads, by tasks that are distinguished by numbers: the main thread schedules one for
each kernel, in the order of the kernels, and that one schedules the task that runs LLVM and ptxas.
"""

import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax.profiler import ProfileData

from xlapipe.jax_private import host_profile
from xlapipe.plans.compile_times import CompileTimes, KernelSeconds, PassSeconds, StageSeconds

_HOST = "/host:CPU"
_CODE = "CompileModuleToLlvmIr"
_TASK = "ThreadpoolListener::"
_KERNEL, _PTXAS = "CompileSingleModule", "PTX->CUBIN"
_LISTED_PASSES = 20
# Larger profiles are of minutes of constant folding, and take long to read.
_LARGEST_PROFILE_BYTES = 256 << 20
# `fusion (jit_step)`: a pipeline, with the module's name.
_PIPELINE = re.compile(r".+ \(.+\)")
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Event:
    """An interval of a thread, in nanoseconds."""

    name: str
    start: float
    end: float
    event: Any

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9

    def number(self, name: str) -> int | None:
        """A number that XLA recorded with it."""
        return next((value for key, value in self.event.stats if key == name), None)


@contextmanager
def timed_compile(*, profiled: bool) -> Iterator[list[CompileTimes]]:
    """Times the block, one call of XLA's compiler; after it, the list has what it took.

    Kernels have no names.
    """
    times: list[CompileTimes] = []
    session = host_profile() if profiled else None
    cpu, wall = cpu_seconds(), time.perf_counter()
    try:
        yield times
    finally:
        stage = StageSeconds(time.perf_counter() - wall, cpu_seconds() - cpu)
        taken = CompileTimes(machine=machine(), stages={"compile": stage})
        # A profile that fails, or of another form, tells nothing, and must not stop a compile.
        with suppress(Exception):
            profile = session.stop() if session is not None else b""
            if 0 < len(profile) <= _LARGEST_PROFILE_BYTES:
                taken = _with_profile(taken, profile)
        times.append(taken)


def _with_profile(times: CompileTimes, profile: bytes) -> CompileTimes:
    """The times, with what a profile tells; nothing, for one of another form."""
    planes = ProfileData.from_serialized_xspace(profile).planes
    lines = [line for plane in planes if plane.name == _HOST for line in plane.lines]
    codes = [
        (event.start_ns, line) for line in lines for event in line.events if event.name == _CODE
    ]
    if not codes:
        return times
    start, main = max(codes, key=lambda item: item[0])
    # Constant folding alone may schedule a million tasks: only those of kernels are read.
    events = _events(event for event in main.events if not event.name.startswith(_TASK))
    during = [_events(event for event in line.events if event.start_ns >= start) for line in lines]
    code = next(event for event in reversed(events) if event.name == _CODE)
    compiled = [event for thread in during for event in thread if event.name == _KERNEL]
    # Otherwise XLA compiles modules of several kernels, when it has emitted them all.
    is_one_each = all(event.start < code.end for event in compiled)
    return replace(
        times,
        passes=tuple(_passes(events)),
        code_seconds=(max(event.end for event in (code, *compiled)) - code.start) / 1e9,
        kernels=tuple(_kernels(during)) if is_one_each else (),
    )


def cpu_seconds() -> float:
    """CPU time of this process and of the programs that it started and that have ended."""
    return sum(os.times()[:4])


def machine() -> str:
    """The model of the CPU, and the number of cores that this process may use."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        match = _MODEL.search(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        model = match[1] if match is not None else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores"


def _events(given: Iterable[Any]) -> list[_Event]:
    """Events of a thread by their start; those around others are before them."""
    events = [
        _Event(event.name, event.start_ns, event.start_ns + event.duration_ns, event)
        for event in given
    ]
    return sorted(events, key=lambda event: (event.start, -event.end))


def _passes(events: Sequence[_Event]) -> list[PassSeconds]:
    """The passes: what runs directly in a pipeline, whatever it runs itself."""
    seconds: defaultdict[str, float] = defaultdict(float)
    around: list[_Event] = []
    counted_until = float("-inf")
    for event in events:
        while around and event.start >= around[-1].end:
            around.pop()
        is_pipeline = _PIPELINE.fullmatch(event.name) is not None
        inside = bool(around) and _PIPELINE.fullmatch(around[-1].name) is not None
        if inside and not is_pipeline and event.start >= counted_until:
            seconds[event.name] += event.seconds
            counted_until = event.end
        around.append(event)
    longest = sorted(seconds.items(), key=lambda item: -item[1])
    return [PassSeconds(*item) for item in longest[:_LISTED_PASSES]]


def _kernels(threads: Sequence[Sequence[_Event]]) -> list[KernelSeconds]:
    """The kernels in the order in which the main thread scheduled them.

    The main thread itself schedules the second task where the first has ended already. A module of
    constants, if there is one, is last.
    """
    scheduled_by: dict[int | None, int | None] = {}
    compiled: list[tuple[int | None, _Event, float]] = []
    for thread in threads:
        task = None
        for event in thread:
            if event.name.endswith("::StartRegion"):
                task = event.number("_c")
            elif event.name.endswith("::StopRegion"):
                task = None
            elif event.name.endswith("::Record"):
                scheduled_by[event.number("_p")] = task
            elif event.name == _KERNEL:
                compiled.append((task, event, 0.0))
            elif event.name == _PTXAS and compiled:
                compiled[-1] = (*compiled[-1][:2], event.seconds)
    ordered = [
        (_first_task(task, scheduled_by), KernelSeconds("", event.seconds - ptxas, ptxas))
        for task, event, ptxas in compiled
    ]
    return [kernel for _, kernel in sorted(ordered, key=lambda item: item[0])]


def _first_task(task: int | None, scheduled_by: Mapping[int | None, int | None]) -> int:
    """The task of the main thread that led to another one; 0 for the main thread's own work."""
    if task is None:
        return 0
    while (other := scheduled_by.get(task)) is not None:
        task = other
    return task
