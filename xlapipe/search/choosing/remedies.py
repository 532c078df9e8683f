"""Changes that can lower a program's memory."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from xlapipe.compile.job import Job
from xlapipe.compile.lowering.policy_change import BLOCK
from xlapipe.plans.constants import large_constants
from xlapipe.plans.donatable import argument_name, donatable
from xlapipe.plans.program import Program
from xlapipe.plans.returned import returned
from xlapipe.report.units import rounded
from xlapipe.search.candidate import StepChange
from xlapipe.search.choosing.compiles import target_device
from xlapipe.search.choosing.policies import (
    KEEP_ALL,
    PolicyPlace,
    block_changes,
    chosen_values,
    offloaded,
    presets,
)
from xlapipe.search.choosing.replicated import replicated
from xlapipe.search.choosing.search import groups_of, solutions
from xlapipe.time.recomputed import relative

_SHARDS = 2
# Shares of what is saved that searched policies may keep.
_SHARES = (0.5, 0.25)
_DISABLED = "xla_disable_hlo_passes"
_LARGE_BYTES = 2**20
# Least share of the plan that is worth a donation: a scalar saves nothing.
_LEAST_DONATED = 1e-4
# XLA counts its limit in whole percents of what the process may use, which is another number on
# each device: of a small program the plan there is another one.
_LEAST_PERCENT = 5
_SIZES = ("batch", "batch_size", "seq", "sequence", "length", "tokens")


def policies_for(target: str, places: Sequence[PolicyPlace]) -> Iterator[StepChange]:
    """Policies of `jax.checkpoint` where the step keeps most, as `xlapipe choose` writes them."""
    yield from block_changes(places)
    for place in places[:1]:
        if place.kind != BLOCK:
            yield from (own for own in presets(place) if not own.text.startswith(KEEP_ALL))
        for kept in solutions(place.values, _SHARES, target_device(target)):
            yield chosen_values(kept, place)
        largest = [group for group in groups_of(place.values) if group.saved_bytes][:1]
        if largest:
            yield offloaded(largest, place)


def donation_of(program: Program) -> tuple[StepChange, int] | None:
    """Donates what the step does not, and the bytes of it; None if little is left to donate."""
    rows, total_bytes = donatable(program), program.plan.totals.total_allocation_bytes
    size_bytes = sum(row.size_bytes for row in rows)
    if size_bytes < max(1, _LEAST_DONATED * total_bytes):
        return None
    names = tuple(row.name for row in rows)
    already = dict.fromkeys(argument_name(leaf.path) for leaf in program.arguments if leaf.donated)
    donated = (*already, *names)
    text = f"donate {', '.join(names)} (donate_argnames={donated!r})"
    change = StepChange(text, arguments={"donate": donated})
    return change, size_bytes


def changes_of(program: Program, job: Job) -> Iterator[StepChange]:
    """The changes but policies that are worth a compile for this program."""
    device_count = prod((program.facts.mesh or {}).values())
    if (donation := donation_of(program)) is not None:
        yield donation[0]
    copied = [row for row in returned(program) if row.copied_bytes >= _LARGE_BYTES]
    if copied:
        size = rounded(sum(row.copied_bytes for row in copied))
        paths = ", ".join(row.output.path for row in copied[:3])
        more = f" and {len(copied) - 3} more" if len(copied) > 3 else ""
        text = f"return no {paths}{more}, copies of arguments or of other outputs of {size}"
        numbers = [row.output.index for row in copied]
        yield StepChange(text, arguments={"unreturned": numbers})
    given = job.reference.arguments or {}
    sizes = tuple(dict.fromkeys(("batch", *(size for size in _SIZES if size in given))))
    for name in sizes:
        value = f"{name}={given[name] // 2}" if isinstance(given.get(name), int) else f"half {name}"
        yield StepChange(value, arguments={"halve": name})
    yield from _shardings(program, sizes, device_count)
    slop, overlap = job.platform.memory_slop_option, job.platform.overlap_option
    if slop is not None and job.target is not None:
        total_bytes = program.plan.totals.total_allocation_bytes
        percent = min(95, 80 * total_bytes // job.target.device_memory_bytes)
        text = f"XLA option {slop}={percent}: XLA rematerialises to save a fifth"
        if percent >= _LEAST_PERCENT:
            yield StepChange(text, options={slop: percent})
    if overlap is not None:
        yield StepChange(f"XLA option {overlap}=False", options={overlap: False})
    constants = large_constants(program.plan)
    constant_bytes = sum(constant.size_bytes for constant in constants)
    if constants:
        lines = [relative(str(own.source)) for own in constants if own.source is not None][:3]
        at = f" at {', '.join(lines)}" if lines else ""
        text = f"captured constants as arguments: {rounded(constant_bytes)}{at}"
        code = f"# pass what the step captures{at} as arguments of the step\n"
        yield StepChange(text, code, arguments={"constants_as_arguments": True})
    if job.target is not None and constants:
        passes = f"{job.options.get(_DISABLED, '')},constant_folding".lstrip(",")
        text = f"XLA option {_DISABLED}={passes}: XLA computes no constants, of which it has "
        yield StepChange(f"{text}{rounded(constant_bytes)}", options={_DISABLED: passes})


def _shardings(program: Program, sizes: Sequence[str], count: int) -> Iterator[StepChange]:
    """More devices: for a sharded program twice the number, for another one two."""
    if count > 1:
        yield from (group.change for group in replicated(program))
        text = f"{_SHARDS * count} devices instead of {count}"
        yield StepChange(text, arguments={"more_devices": _SHARDS * count}, several_devices=True)
        return
    for name in sizes:
        text = f"shard {name} over {_SHARDS} devices"
        yield StepChange(text, arguments={"shard_size": name}, several_devices=True)
    name, axes = largest_argument(program)
    if axes:
        text = f"shard {name} over {_SHARDS} devices, each array along its largest even axis"
        yield StepChange(text, arguments={"shard_leaves": axes}, several_devices=True)


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
