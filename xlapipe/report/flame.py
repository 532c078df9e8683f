"""The section with the flame view: bytes at the peak by module, source line and value."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xlapipe.dump.opened import Opened
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.labels import labels_of, pattern_of
from xlapipe.plans.occupancy import CountedValue, Role
from xlapipe.plans.peak import NO_SOURCE, peak_of
from xlapipe.report.memory_map import module_scope
from xlapipe.report.units import rounded, share
from xlapipe.report.wrapped_text import shortened

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


def flame_boxes(dump: Opened) -> tuple[FlameBox, ...]:
    """The boxes, from the top level down, each level in the order of its parents."""
    peak = peak_of(dump.program)
    whole = sum(counted.counted_bytes for counted in peak.contents)
    if not whole:
        return ()
    placed = [(_keys(dump, counted), counted) for counted in peak.contents if counted.counted_bytes]
    return tuple(_boxes(placed, 0, 0.0, whole))


def _keys(dump: Opened, counted: CountedValue) -> tuple[str, str, str]:
    """The names of a value's boxes: its module, its line and itself."""
    plan, labels = dump.plan, labels_of(dump.program)
    label = labels.value(counted.allocation, counted.value, counted.role)
    source = plan.nearest_source(counted.value.instruction)
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
