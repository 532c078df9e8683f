"""How long a compile took, by stage, by pass of XLA and by kernel, and what took the longest.

Seconds differ from run to run and from machine to machine, so they are in `compile_times.json`
beside a dump's files, and in no golden. Two compiles are compared by their CPU time, which depends
little on what else runs, and only on machines of one kind.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal
from xlapipe.files.typed_data import Count, Line, Seconds, read_typed
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.plan import Plan

COMPILE_TIMES = "compile_times.json"
_SCHEMA_VERSION = 1
_MAX_BYTES = 64 << 20
_FIX = "remove the file, or dump the workload again"
# Fewer copies are an ordinary loop, which costs little.
_LEAST_COPIES = 4
# What a cause must take of all to be named.
_LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Wall time, and CPU time of all threads and of the programs that were started."""

    wall: Seconds
    cpu: Seconds


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Wall time of all runs of one of XLA's passes."""

    name: Line
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class KernelSeconds:
    """Wall time of one kernel's machine code: LLVM, then ptxas.

    Attributes:
      kernel: XLA's name; empty if it is not known which kernel it is.
    """

    kernel: Line
    llvm: Seconds
    ptxas: Seconds

    @property
    def seconds(self) -> float:
        return self.llvm + self.ptxas


@dataclass(frozen=True, slots=True)
class Copies:
    """Operations that Python traced repeatedly, as an unrolled loop does.

    Attributes:
      source: line of the first of them.
      times: how often most of them were traced.
      operations: number of all that were traced as often.
      of: number of operations in the program.
    """

    source: SourceLine | None
    times: Count
    operations: Count
    of: Count


@dataclass(frozen=True, kw_only=True)
class CompileTimes:
    """What a compile took.

    Attributes:
      machine: model of the CPU, and the number of cores that the compile could use.
      stages: by name: `trace`, `lower`, `compile`; the last is one call of XLA, without autotuning
        on a device.
      code_seconds: wall time of code generation, a part of `compile`; None if it is not known.
      passes: XLA's passes, the longest first.
      kernels: in XLA's order; empty if they are not known.
      copies: None if no operation was traced repeatedly.
    """

    machine: Line
    stages: Mapping[str, StageSeconds]
    code_seconds: Seconds | None = None
    passes: tuple[PassSeconds, ...] = ()
    kernels: tuple[KernelSeconds, ...] = ()
    copies: Copies | None = None

    @property
    def wall_seconds(self) -> float:
        return sum(stage.wall for stage in self.stages.values())

    @property
    def cpu_seconds(self) -> float:
        return sum(stage.cpu for stage in self.stages.values())

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Wall time by stage, with XLA's split into passes and code generation if it is known."""
        walls = {name: stage.wall for name, stage in self.stages.items()}
        if self.code_seconds is None:
            return walls
        xla = walls.pop("compile", 0.0)
        return {**walls, "passes": xla - self.code_seconds, "code": self.code_seconds}

    def to_bytes(self) -> bytes:
        """The content of the file."""
        data = {"schema_version": _SCHEMA_VERSION, **asdict(self)}
        return f"{json.dumps(data, indent=1)}\n".encode()

    def ratio_to(self, baseline: "CompileTimes") -> float | None:
        """CPU time relative to the baseline's; None if that is of another kind of machine."""
        if self.machine != baseline.machine or not baseline.cpu_seconds:
            return None
        return self.cpu_seconds / baseline.cpu_seconds

    def text(self, plan: Plan) -> str:
        """The figure on one line, with the largest cause."""
        parts = [f"{_STAGES[name]} {value:.1f}" for name, value in self.stage_seconds.items()]
        if self.kernels:
            llvm = sum(kernel.llvm for kernel in self.kernels)
            ptxas = sum(kernel.ptxas for kernel in self.kernels)
            parts[-1] += f" ({len(self.kernels)} kernels: LLVM {llvm:.1f}, ptxas {ptxas:.1f})"
        cause = largest_cause(self, plan)
        more = f"; {cause}" if cause else ""
        return (
            f"{self.wall_seconds:.1f} s, {self.cpu_seconds:.1f} s of CPU ({self.machine}): "
            f"{', '.join(parts)}{more}"
        )


_STAGES = {
    "trace": "trace",
    "lower": "lower",
    "compile": "XLA",
    "passes": "XLA's passes",
    "code": "code generation",
}


def read_compile_times(folder: Path) -> CompileTimes | None:
    """What the compile of a dump took; None without the file.

    Raises:
      DumpError: it is damaged.
    """
    path = folder / COMPILE_TIMES
    if not os.path.lexists(path):
        return None
    refusal = Refusal(DumpError, _FIX)
    times = read_typed(
        path,
        CompileTimes,
        limit_bytes=_MAX_BYTES,
        refusal=refusal,
        follow_links=False,
        schema_version=_SCHEMA_VERSION,
    )
    if unknown := sorted(times.stages.keys() - _STAGES.keys()):
        refusal.fail(f"{path}: stages: expected trace, lower, compile, found {unknown[0]!r:.40}")
    if not times.wall_seconds:
        refusal.fail(f"{path}: stages: expected more than 0 s in all, found none")
    if any(seconds < 0 for seconds in times.stage_seconds.values()):
        refusal.fail(
            f"{path}: code_seconds: expected a part of the stage `compile`, found more than it took"
        )
    return times


def source_of_kernel(plan: Plan, kernel: str) -> SourceLine | None:
    """The line that most instructions of a kernel are of; None if it is not known."""
    named = {name.replace(".", "_"): name for name in plan.instructions}
    name = named.get(kernel)
    if name is None or plan.module is None:
        return None
    fused = plan.instructions[name].called_computations
    inside = (item for called in fused for item in plan.module.computations[called].instructions)
    lines = Counter(item.source for item in inside if item.source is not None)
    return lines.most_common(1)[0][0] if lines else plan.nearest_source(name)


def largest_cause(times: CompileTimes, plan: Plan) -> str:
    """What to change for a shorter compile, in words; empty if nothing takes a large share."""
    causes = [*_unrolled(times), *_kernel(times, plan)]
    if times.passes:
        longest = times.passes[0]
        share = longest.seconds / times.wall_seconds
        causes.append((longest.seconds, f"pass {longest.name} takes {share:.0%} of it"))
    if not causes:
        return ""
    seconds, text = max(causes)
    return f"largest: {text}" if seconds >= _LEAST_SHARE * times.wall_seconds else ""


def _unrolled(times: CompileTimes) -> Iterator[tuple[float, str]]:
    """What copies of the loop's body take beyond the first, by their share of the operations.

    The code of one kernel, the longest, is of no copy.
    """
    copies = times.copies
    if copies is None or copies.times < _LEAST_COPIES:
        return
    at = f"{copies.source}: " if copies.source is not None else ""
    share = copies.operations / copies.of * (1 - 1 / copies.times)
    codes = [kernel.seconds for kernel in times.kernels]
    one = max(codes) / sum(codes) * (times.code_seconds or 0.0) if any(codes) else 0.0
    yield (
        share * (times.wall_seconds - one),
        f"{at}{copies.operations:,} of {copies.of:,} operations are {copies.times} copies of a "
        "loop's body; jax.lax.scan compiles it once",
    )


def _kernel(times: CompileTimes, plan: Plan) -> Iterator[tuple[float, str]]:
    """The kernel whose code took longest."""
    named = [kernel for kernel in times.kernels if kernel.kernel]
    if not named:
        return
    longest = max(named, key=lambda kernel: kernel.seconds)
    source = source_of_kernel(plan, longest.kernel)
    at = f" at {source}" if source is not None else ""
    yield (
        longest.seconds,
        f"kernel {longest.kernel}{at} takes {longest.seconds:.1f} s of code generation (LLVM "
        f"{longest.llvm:.1f}, ptxas {longest.ptxas:.1f})",
    )
