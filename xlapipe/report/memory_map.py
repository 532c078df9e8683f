"""The memory map: roles, live ranges, times and names of all values; and the flame of the peak.

The script of the map reads them. Values are in the order of `figures["allocations"][i]["values"]`,
with one column per property; each text is stored once, since a model of 28 layers has some thousand
values.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xlapipe.plans.call_chains import CallChains, Frame
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.labels import labels_of, pattern_of
from xlapipe.plans.occupancy import CountedValue, Role
from xlapipe.plans.peak import NO_SOURCE, peak_of
from xlapipe.plans.phases import Phase, phases_of
from xlapipe.report.overview.purposes import Uses
from xlapipe.report.time_figures import StepTime, step_time
from xlapipe.report.units import rounded, share
from xlapipe.report.wrapped_text import shortened
from xlapipe.report.xla_subject import XlaSubject

# jax's transformations around the name of a scope: `transpose(jvp(layers_3))`.
_TRANSFORMED = re.compile(r"^(?:\w+\()+([\w.-]*)\)+$")
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
            scope = module_scope(defining.op_name if defining else None)
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


def module_scope(op_name: str | None) -> str:
    """The name scopes of an operation, without jax's transformations and without its primitive.

    >>> module_scope("jit(step)/transpose(jvp(layers_3))/attention/dot_general")
    'layers_*/attention'
    >>> module_scope("jit(step)/jvp()/mul")
    ''
    """
    parts = [part for part in (op_name or "").split("/")[:-1] if "jit(" not in part]
    scopes = (_TRANSFORMED.sub(r"\1", part) for part in parts)
    return pattern_of("/".join(scope for scope in scopes if scope and "(" not in scope))


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


# Narrower boxes are left out: their bytes are in the box below them.
_LEAST_SHARE = 0.002
# Characters of the flame's font that fit a window of 1280 pixels.
_PAGE_CHARACTERS = 170
_ARGUMENTS = (Role.PARAMETER, Role.ALIAS)


@dataclass(frozen=True, slots=True)
class FlameBox:
    """One box; positions are shares of the whole width.

    Attributes:
      level: 0 for a module, 1 for a source line, 2 for values of one name.
      label: the beginning of the text that fits on a page of usual width; empty if little does.
      title: the whole text, with bytes.
      value: the name of the largest value.
    """

    level: int
    left: float
    width: float
    label: str
    title: str
    role: Role
    value: str


def flame_boxes(dump: XlaSubject) -> tuple[FlameBox, ...]:
    """The boxes, from the top level down, each level in the order of its parents."""
    peak = peak_of(dump.program)
    whole = sum(counted.counted_bytes for counted in peak.contents)
    if not whole:
        return ()
    placed = [(_keys(dump, counted), counted) for counted in peak.contents if counted.counted_bytes]
    return tuple(_boxes(placed, 0, 0.0, whole))


def _keys(dump: XlaSubject, counted: CountedValue) -> tuple[str, str, str]:
    """The names of a value's boxes: its module, its line and itself."""
    plan, labels = dump.plan, labels_of(dump.program)
    label = labels.value(counted.allocation, counted.value, counted.role)
    source = plan.nearest_source(counted.value.name)
    line = str(source) if source is not None else NO_SOURCE
    if counted.role in _ARGUMENTS:
        return f"argument {argument_name(label)}", line, pattern_of(label)
    defining = plan.instructions.get(counted.value.instruction)
    scope = module_scope(defining.op_name if defining is not None else None)
    module = scope or (source.file if source is not None else NO_SOURCE)
    return module, line, pattern_of(label.rpartition("/")[2])


def _boxes(
    placed: Sequence[tuple[tuple[str, str, str], CountedValue]], level: int, left: float, whole: int
) -> Iterator[FlameBox]:
    groups: dict[str, list[tuple[tuple[str, str, str], CountedValue]]] = {}
    for keys, counted in placed:
        groups.setdefault(keys[level], []).append((keys, counted))

    def size(group: Sequence[tuple[tuple[str, str, str], CountedValue]]) -> int:
        return sum(counted.counted_bytes for _, counted in group)

    for name, group in sorted(groups.items(), key=lambda item: (-size(item[1]), item[0])):
        width = size(group) / whole
        if width < _LEAST_SHARE:
            continue
        largest = max((counted for _, counted in group), key=lambda held: held.counted_bytes)
        count = f" × {len(group)}" if len(group) > 1 else ""
        text = f"{name}{count if level == 2 else ''}"
        yield FlameBox(
            level=level,
            left=left,
            width=width,
            label=shortened(text, int(width * _PAGE_CHARACTERS) - 1),
            title=f"{name}: {rounded(size(group))}, {share(size(group), whole)}, "
            f"{len(group)} values",
            role=largest.role,
            value=largest.value.name,
        )
        if level < 2:
            yield from _boxes(group, level + 1, left, whole)
        left += width
