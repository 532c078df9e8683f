"""Changes that can lower a program's memory: compiles each, and keeps those that do."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from xlapipe.compile.job import Job
from xlapipe.devices.environment.scratch import scratch_folder
from xlapipe.dump.dump import Dump
from xlapipe.errors import ParameterError
from xlapipe.plans.donatable import argument_name, donatable
from xlapipe.plans.made_together import made_together
from xlapipe.plans.program import Program
from xlapipe.report.advice import Remedy
from xlapipe.search.candidate import Candidate, Change, changed_job
from xlapipe.search.memory_budget import MemoryBudget
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.search.rows import Row, SearchSettings, compile_rows

_POLICIES = {
    "dots_saveable": "rematerialise everything but matrix products, around the whole gradient "
    "(jax.checkpoint_policies.dots_saveable)",
    "nothing_saveable": "rematerialise everything, around the whole gradient (jax.checkpoint)",
    "offload": "keep matrix products in the host's memory, around the whole gradient "
    "(jax.checkpoint_policies.offload_dot_with_no_batch_dims)",
}
# The file in a temporary folder that the compiling child writes the chosen value to.
_NOTE = "rematerialised.txt"
_SHARDS = 2
_DISABLED = "xla_disable_hlo_passes"
_SIZES = ("batch", "batch_size", "seq", "sequence", "length", "tokens")


@dataclass(frozen=True)
class TriedChanges:
    """The changes that were compiled.

    Attributes:
      remedies: those whose plan is smaller, most bytes saved first.
      useless: those whose plan is not.
      failed: those that do not compile, each with the first line of its error; not those of a size
        that the workload does not have.
    """

    remedies: tuple[Remedy, ...]
    useless: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Limit:
    """What a program has to fit.

    Attributes:
      limit_bytes: memory of the device that may be used; None if unknown.
      held_bytes: part of `limit_bytes` that the program's arguments and other arrays use already.
    """

    limit_bytes: int | None
    held_bytes: int = 0


def try_changes(job: Job, dump: Dump, limit: Limit, *, at_once: int | None = None) -> TriedChanges:
    """Compiles the changes that can lower the program's memory.

    Args:
      job: the compile of the unchanged workload.
      dump: its plan and names.
      limit: what the changed program has to fit.
      at_once: number of compiles that run at the same time; None for the number of cores.
    """
    device_count = prod((dump.manifest.mesh or {}).values())
    with scratch_folder("explain-") as folder:
        note = Path(folder, _NOTE)
        changes = [
            Change("unchanged"),
            *changes_of(dump.program, job, device_count=device_count, note=note),
        ]
        jobs = [changed_job(job, change) for change in changes]
        candidates = [Candidate(job.reference, change=change) for change in changes]
        search = SearchSettings(
            memory=MemoryBudget(share=1.0), at_once=at_once or os.cpu_count() or 1
        )
        rows = compile_rows(candidates, search, jobs=jobs)
        changes = [_with_note(change, note) for change in changes]
    base = rows[0].outcome
    if not isinstance(base, PlannedMemory):
        raise base
    smaller, useless, failed = [], [], []
    for change, row in list(zip(changes, rows, strict=True))[1:]:
        if isinstance(row.outcome, ParameterError):
            continue  # the workload's function has no such size
        if not isinstance(row.outcome, PlannedMemory):
            failed.append((change.text, _reason(row)))
        elif row.outcome.total_bytes < base.total_bytes:
            smaller.append(_remedy(change, row.outcome, base, limit))
        else:
            useless.append(change.text)
    ordered = sorted(smaller, key=lambda remedy: -remedy.saved_bytes)
    return TriedChanges(tuple(ordered), tuple(useless), tuple(failed))


def _reason(row: Row) -> str:
    """The first line of an error, without the name of the changed workload."""
    line = str(row.outcome).partition("\n")[0]
    return line.removeprefix(f"{row.candidate.reference.name}: ")


def _with_note(change: Change, note: Path) -> Change:
    """The change with the value that the compiling child chose."""
    if change.arguments.get("note") is None or not note.exists():
        return change
    return replace(change, text=f"{change.text}: {note.read_text(encoding='utf-8')}")


def _remedy(change: Change, memory: PlannedMemory, base: PlannedMemory, limit: Limit) -> Remedy:
    fits = None
    if limit.limit_bytes is not None:
        # What was in use in addition to the program's own arguments stays in use.
        others_bytes = max(0, limit.held_bytes - base.argument_bytes)
        fits = memory.total_bytes + others_bytes <= limit.limit_bytes
    return Remedy(
        change=change.text,
        saved_bytes=base.total_bytes - memory.total_bytes,
        total_bytes=memory.total_bytes,
        fits=fits,
    )


def changes_of(
    program: Program, job: Job, *, device_count: int = 1, note: Path | None = None
) -> Iterator[Change]:
    """The changes that are worth a compile for this program.

    Args:
      device_count: number of devices of the program.
      note: file for what the compiling child chooses to rematerialise.
    """
    names = tuple(row.name for row in donatable(program))
    if names:
        text = f"donate {', '.join(names)} (donate_argnames={tuple(names)!r})"
        already = dict.fromkeys(
            argument_name(leaf.path) for leaf in program.arguments if leaf.donated
        )
        yield Change(text, arguments={"donate": (*already, *names)})
    given = job.reference.arguments or {}
    sizes = tuple(dict.fromkeys(("batch", *(size for size in _SIZES if size in given))))
    for name in sizes:
        value = f"{name}={given[name] // 2}" if isinstance(given.get(name), int) else f"half {name}"
        yield Change(value, arguments={"halve": name})
    path = str(note) if note is not None else None
    yield Change(
        "rematerialise only the largest saved values",
        arguments={"checkpoint": "largest", "note": path},
    )
    for policy, text in _POLICIES.items():
        yield Change(text, arguments={"checkpoint": policy})
    yield from _shardings(program, sizes, device_count)
    slop, overlap = job.platform.memory_slop_option, job.platform.overlap_option
    if slop is not None and job.target is not None:
        total_bytes = program.plan.totals.total_allocation_bytes
        percent = max(1, min(95, 80 * total_bytes // job.target.device_memory_bytes))
        text = f"XLA option {slop}={percent}: XLA rematerialises to save a fifth"
        yield Change(text, options={slop: percent})
    if overlap is not None:
        yield Change(f"XLA option {overlap}=False", options={overlap: False})
    yield from _without_passes(program, job)


def _without_passes(program: Program, job: Job) -> Iterator[Change]:
    """XLA's passes that made values in one kernel which wait at the peak.

    Each is left out alone: what they join takes less time.
    """
    given = str(job.options.get(_DISABLED, ""))
    for name in dict.fromkeys(made.joined_by for made in made_together(program.plan)):
        passes = f"{given},{name}".lstrip(",")
        text = f"XLA option {_DISABLED}={passes}: XLA makes values when they are used, not at once"
        yield Change(text, options={_DISABLED: passes})


def _shardings(program: Program, sizes: Sequence[str], count: int) -> Iterator[Change]:
    """More devices: for a sharded program twice the number, for another one two."""
    if count > 1:
        text = f"{_SHARDS * count} devices instead of {count}"
        yield Change(text, arguments={"more_devices": _SHARDS * count}, several_devices=True)
        return
    for name in sizes:
        text = f"shard {name} over {_SHARDS} devices"
        yield Change(text, arguments={"shard_size": name}, several_devices=True)
    name, axes = largest_argument(program)
    if axes:
        text = f"shard {name} over {_SHARDS} devices, each array along its largest even axis"
        yield Change(text, arguments={"shard_leaves": axes}, several_devices=True)


def largest_argument(program: Program) -> tuple[str, Mapping[str, int]]:
    """The parameter of the step with the most bytes, and the largest even axis of each leaf.

    Leaves are named by their paths.
    """
    bytes_by_name: Counter[str] = Counter()
    for leaf in program.arguments:
        bytes_by_name[argument_name(leaf.path)] += leaf.size_bytes
    ((name, _),) = bytes_by_name.most_common(1) or [("", 0)]
    axes = {
        leaf.path: max(even, key=lambda axis: leaf.shape[axis])
        for leaf in program.arguments
        if argument_name(leaf.path) == name
        if (even := [axis for axis, size in enumerate(leaf.shape) if size and size % _SHARDS == 0])
    }
    return name, axes
