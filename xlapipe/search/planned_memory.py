"""Memory that the plan of one job needs on a device, beside what a process may use.

Counted are arguments, outputs, constants and temporary memory of one device, which are in the plan,
and on TPUs the program's code. Memory outside the plan (the CUDA context, libraries) is stated
beside them as far as it was measured. Other live arrays are what the caller reserves for them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import CompiledDump, compile_dump
from xlapipe.devices.platforms.nvidia import DEFAULT_MEMORY_FRACTION
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.dump.dump import check_memory_analysis
from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.file_contents import read_bytes
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.proto_reader import read_module
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.plans import HloModule, Plan
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.missing_memory import MissingMemory
from xlapipe.plans.program import CompileFacts, Program
from xlapipe.plans.usable_memory import OutsidePlan, usable_memory
from xlapipe.report.units import has_error
from xlapipe.search.memory_budget import MemoryBudget
from xlapipe.time.predict import Prediction
from xlapipe.time.predicted_locks.basis import shares_text
from xlapipe.time.predicted_locks.plan_error import OtherPlan, other_plan, plan_error_bytes
from xlapipe.time.prediction_settings import PredictionSettings
from xlapipe.time.recomputed import Recomputation
from xlapipe.time.study import Study, device_of


@dataclass(frozen=True, kw_only=True)
class PlannedMemory:
    """Memory that a plan needs on one device: arguments + outputs + temp + code = total.

    Attributes:
      argument_bytes: parameters of the program, including those that are updated in place.
      output_bytes: constants, and outputs that do not alias an argument.
      host_bytes: allocations in host memory, which are not in the total.
      device_memory_bytes: the device's whole memory.
      code_bytes: the program's code, on a TPU. 0 on GPUs, and if XLA refused the plan before it
        generated code.
      refused: whether XLA itself refused the plan because the device has too little memory.
      usable_bytes: what the plan may take, without what is reserved: the budget's bytes, or what a
        process may use: on a TPU what XLA's compiler leaves to a program, elsewhere its share of
        the memory that CUDA reports, or of the device's where that was not measured.
      outside: memory outside the plan; None on a TPU.
      reserved_bytes: what must stay free for other live arrays and programs.
      missing: instructions that may need more memory on the device; it is not in the total.
      recomputation: what XLA computes again, because its estimate exceeded its limit, the
        share of the device's memory that the process may use.
      floor_seconds: the least time of a step; None if the device's speeds are unknown.
      predicted: the predicted time of a step, without its kernels; None without a calibration.
      error_bytes: how far the total may be from the device's, by what its autotune results rest
        on; see `plan_error_bytes`.
      other_plan: the plan with the other choice of the tuner; None where that is unlikely.
      basis: what they rest on, in words; None for the device's own, or without autotuning.
      predicted_lock: number of tuned instructions by the basis of their results; None if no
        results were predicted.
      seconds: wall time of `load` (the workload's module), `lower`, `compile`, `read` and `all`.
    """

    workload: str
    topology: str | None
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    host_bytes: int = 0
    device_memory_bytes: int
    usable_bytes: int
    seconds: Mapping[str, float]
    code_bytes: int = 0
    refused: bool = False
    missing: tuple[MissingMemory, ...] = ()
    recomputation: Recomputation | None = None
    floor_seconds: float | None = None
    predicted: Prediction | None = None
    outside: OutsidePlan | None = None
    reserved_bytes: int = 0
    error_bytes: int = 0
    other_plan: OtherPlan | None = None
    basis: str | None = None
    predicted_lock: Mapping[str, int] | None = None

    @property
    def total_bytes(self) -> int:
        """All allocations except thread-local ones, which are kept in registers, and code."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes + self.code_bytes

    @property
    def rematerialised(self) -> int:
        """Number of instructions that XLA added to compute values again."""
        return self.recomputation.instructions if self.recomputation is not None else 0

    @property
    def recomputed_text(self) -> str:
        """What XLA computes again, its bytes and its time, in words; empty if nothing."""
        what = self.recomputation
        return what.text(self.total_bytes) if what is not None else ""

    @property
    def headroom_bytes(self) -> int:
        """Usable bytes minus the total; negative if it does not fit."""
        return self.usable_bytes - self.total_bytes

    @property
    def fits_within_error(self) -> bool:
        """Whether the margin, if any, is larger than the error of the total.

        Or arguments and outputs alone do not fit, which no tuning changes.
        """
        too_large = self.argument_bytes + self.output_bytes > self.usable_bytes
        return self.refused or too_large or abs(self.headroom_bytes) >= self.error_bytes

    @property
    def fits(self) -> bool:
        return self.headroom_bytes >= 0 and not self.refused

    @property
    def fits_text(self) -> str:
        """`yes`, `no`, or `refused` by XLA.

        With `?` if the margin is smaller than the error, and `*` if XLA rematerialised.
        """
        if self.refused:
            return "refused"
        unsure = "" if self.fits_within_error else "?"
        return ("yes" if self.fits else "no") + unsure + ("*" if self.rematerialised else "")


def planned_memory(
    job: Job,
    budget: MemoryBudget,
    *,
    on_program: Callable[[Program], None] | None = None,
) -> PlannedMemory:
    """Compiles a job, and reads the memory of its plan; `on_program` gets the plan itself."""
    started = time.monotonic()
    job = replace(job, memory_fraction=budget.share or DEFAULT_MEMORY_FRACTION)
    if on_program is None:
        compiled = _compile_plan(job)
    else:
        job = replace(job, plan_only=True, with_texts=True)
        dump = compile_dump(job, None, allow_refused=True)
        compiled = _plan_from_dump(dump)
        on_program(dump.dump)
    totals = compiled.plan.totals
    target = job.target or target_attached(compiled.config_text)
    facts, libtpu = compiled.facts, compiled.facts.versions.get("libtpu")
    usable = usable_memory(target, compiled.plan, libtpu=libtpu, memory_fraction=budget.share)
    study = Study(
        compiled.plan,
        device_of(facts.target, compiled.config_text, None),
        PredictionSettings(network=job.network),
        lowered=lambda: compiled.lowered,
        predicted_lock=facts.predicted_lock,
    )
    cost, prediction = study.cost, study.prediction_with_mfu
    tuned = job.lock is not None or job.target is None
    depends = job.platform.has_autotuning and not tuned
    lock = facts.predicted_lock
    all_seconds = time.monotonic() - started
    read_seconds = all_seconds - sum(compiled.stage_seconds.values())
    seconds = {**compiled.stage_seconds, "read": read_seconds, "all": all_seconds}
    return PlannedMemory(
        workload=facts.workload,
        topology=facts.topology,
        argument_bytes=totals.parameter_bytes,
        output_bytes=totals.live_out_bytes - totals.aliased_bytes + totals.constant_bytes,
        temp_bytes=totals.temp_bytes,
        host_bytes=compiled.plan.spaces[MemorySpace.HOST].total_allocation_bytes,
        device_memory_bytes=target.device_memory_bytes,
        usable_bytes=(usable.usable_bytes if budget.limit_bytes is None else budget.limit_bytes)
        - budget.reserved_bytes,
        reserved_bytes=budget.reserved_bytes,
        missing=compiled.plan.missing_memory,
        recomputation=study.recomputation,
        seconds={name: round(value, 2) for name, value in seconds.items()},
        code_bytes=facts.memory_analysis.get("code_bytes", 0),
        refused=facts.refused is not None,
        floor_seconds=cost.floor_seconds if cost is not None else None,
        predicted=replace(prediction, kernels=(), timeline=()) if prediction is not None else None,
        outside=usable.outside,
        error_bytes=plan_error_bytes(
            compiled.plan, tuned=False if depends else None, predicted_lock=lock
        ),
        other_plan=other_plan(compiled.plan, facts.other_choice),
        basis=("untuned" if lock is None else f"predicted tuning, {shares_text(lock)}")
        if depends
        else None,
        predicted_lock=lock,
    )


SMALL_MARGIN = (
    "?: the margin is smaller than that; fix: a lock of the device (`xlapipe dump … --target "
    "attached --tuning tune`) makes the plan the device's"
)


def networks(plans: Sequence[PlannedMemory]) -> tuple[str, ...]:
    """The networks that times of plans were predicted for, in words."""
    texts = (plan.predicted.network for plan in plans if plan.predicted is not None)
    return tuple(dict.fromkeys(filter(None, texts)))


def error_notes(plans: Sequence[PlannedMemory]) -> Iterator[str]:
    """That plans have predicted tuning, and what an error beside their headroom means."""
    unsure = [plan for plan in plans if has_error(plan.headroom_bytes, plan.error_bytes)]
    if any(plan.predicted_lock is not None for plan in plans):
        yield "Predicted tuning: results that the device's tuner would probably give."
    if unsure:
        untuned = all(plan.predicted_lock is None for plan in unsure)
        yield (
            f"±: {'untuned. ' if untuned else ''}9 of 10 programs recorded on NVIDIA GPUs differ "
            "from the device's plan by less."
        )
    for plan in plans:
        if (other := plan.other_plan) is not None and (
            len(plans) == 1 or (plan.headroom_bytes < other.more_bytes) == plan.fits
        ):
            yield f"Expected total: {plan.total_bytes:,} B, or {other.text(plan.total_bytes)}."


class _CompiledPlan(NamedTuple):
    plan: Plan
    facts: CompileFacts
    config_text: str
    stage_seconds: Mapping[str, float]
    lowered: HloModule | None


def _compile_plan(job: Job) -> _CompiledPlan:
    with compile_workload(replace(job, plan_only=True)) as (started, record):
        plan = record.in_plan(read_path(started.dump_folder))
        before = list(started.dump_folder.glob("*.before_optimizations.hlo.pb"))
        lowered = read_module(read_bytes(before[0]), where=str(before[0])) if before else None
    check_memory_analysis(plan, record.memory_analysis, where=job.reference.name)
    return _CompiledPlan(plan, record, record.target_config, record.seconds, lowered)


def _plan_from_dump(dump: CompiledDump) -> _CompiledPlan:
    config = dump.files.get("target_config.txtpb", b"")  # a TPU's is in the target
    before = dump.files.get("before_optimizations.txt")
    source = before and SourceText("before_optimizations.txt", before.decode(errors="replace"))
    lowered = parse_hlo(source).module if source else None
    facts, seconds = dump.dump.manifest, dump.stage_seconds
    return _CompiledPlan(dump.dump.plan, facts, config.decode(), seconds, lowered)
