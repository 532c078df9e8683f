"""The memory map: roles, live ranges, times and names of all values.

The script of the map reads them. Values are in the order of `figures["allocations"][i]["values"]`,
with one column per property; each text is stored once, since a model of 28 layers has some thousand
values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from xlapipe.plans.call_chains import CallChains, Frame
from xlapipe.plans.labels import labels_of, pattern_of
from xlapipe.plans.occupancy import CountedValue, Role
from xlapipe.plans.peak import peak_of
from xlapipe.plans.phases import Phase, phases_of
from xlapipe.plans.purposes import Uses
from xlapipe.report.modules import scopes_of
from xlapipe.report.time_figures import StepTime, step_time
from xlapipe.report.xla_subject import XlaSubject

ROLES = tuple(str(role) for role in Role)


def map_data(dump: XlaSubject) -> dict[str, Any]:
    """The values of a plan in columns, and the bytes in use (`occupied`) at each position.

    `start` and `end` are -1 for a value without a live range. `seconds` are of the kernel that
    defines the value, all its launches in a step: measured if the dump has a record, otherwise the
    floor; None if no kernel defines it, or its time is unknown. `time_source` names which.
    """
    plan, occupancy = dump.plan, peak_of(dump.program).occupancy
    time_source, seconds_of = _kernel_seconds(step_time(dump))
    seconds: list[float | None] = []
    strings: dict[str, int] = {"": 0}
    columns: dict[str, list[int]] = {
        name: []
        for name in (
            *("role", "start", "end", "label", "opcode", "op_name", "source"),
            *("purpose", "until", "scope", "chain"),
        )
    }
    uses = Uses(occupancy, labels_of(dump.program))
    chains = plan.module.chains if plan.module is not None else CallChains()

    def intern(text: object) -> int:
        return strings.setdefault(str(text) if text is not None else "", len(strings))

    for allocation in plan.allocations:
        for value in allocation.values:
            live = occupancy.alive.get(value.name)
            defining = plan.instructions.get(value.instruction)
            role = occupancy.role(allocation, value)
            columns["role"].append(ROLES.index(role))
            columns["start"].append(live.start if live is not None else -1)
            columns["end"].append(live.end if live is not None else -1)
            columns["label"].append(intern(labels_of(dump.program).value(allocation, value, role)))
            columns["opcode"].append(intern(defining.opcode if defining else None))
            columns["op_name"].append(intern(defining.op_name if defining else None))
            source = plan.nearest_source(value.name)
            columns["source"].append(intern(source))
            use = uses.of(CountedValue(allocation, value, role, value.size_bytes))
            columns["purpose"].append(intern(use.purpose))
            columns["until"].append(intern(use.until))
            scope = pattern_of("/".join(scopes_of((defining and defining.op_name) or "")))
            columns["scope"].append(intern(scope or (source.file if source is not None else None)))
            traced = plan.nearest_traced(value.instruction)
            columns["chain"].append(intern(_chain_text(chains.chain(traced)) if traced else None))
            seconds.append(seconds_of.get(value.instruction))
    live_ranges = plan.live_ranges
    return {
        "roles": ROLES,
        "last_position": occupancy.last_position,
        "peak_position": occupancy.peak_position,
        "schedule": live_ranges.schedule if live_ranges is not None else (),
        "occupied": occupancy.occupied_bytes,
        "phases": _phase_runs(phases_of(plan).by_position),
        "strings": list(strings),
        "time_source": time_source,
        "values": {**columns, "seconds": seconds},
    }


def _chain_text(chain: Sequence[Frame]) -> str:
    """The frames of a chain, innermost first, one per line."""
    return "\n".join(
        f"{frame} in {frame.function.rpartition('.')[2]}" if frame.function else str(frame)
        for frame in chain
    )


def _phase_runs(phases: Sequence[Phase | None]) -> list[tuple[str, int, int]]:
    """(phase, first position, position after the last) of each run of equal phases."""
    runs: list[tuple[str, int, int]] = []
    start = 0
    for position in range(1, len(phases) + 1):
        if position == len(phases) or phases[position] is not phases[start]:
            if (phase := phases[start]) is not None:
                runs.append((str(phase), start, position))
            start = position
    return runs


def _kernel_seconds(time: StepTime | None) -> tuple[str | None, Mapping[str, float]]:
    """Which time is known, `measured` or `floor`, and seconds by the kernel's instruction."""
    kernels = time.kernels if time is not None else ()
    for source in ("measured", "floor"):
        seconds_of = {row.name: getattr(row, f"{source}_seconds") for row in kernels}
        known = {name: seconds for name, seconds in seconds_of.items() if seconds}
        if known:
            return source, known
    return None, {}
