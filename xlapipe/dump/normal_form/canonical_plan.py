"""The plan's part of the canonical form; `canonical_hlo` names the rules."""

import re
from collections.abc import Iterator
from itertools import groupby

from xlapipe.dump.normal_form.canonical_hlo import CanonicalHlo, Numbering
from xlapipe.dump.normal_form.output_order import with_ordered_values

_TOKEN = re.compile(r"[\w.\-]+")
_KERNEL_NUMBERS = re.compile(r"_\d+(?=_|$)")
# Names of a loop's instructions, of which the normal form leaves out only numbers at the end that
# follow a dot.
_INNER_NUMBERS = re.compile(r"(?<=[a-z_])(?:\.\d+)+(?=[.\-][a-z])")
_INNER_CONSTANT = re.compile(r"constant(?:[._](?:\d+|clone))+")
_KERNEL = re.compile(r"^( *kCustomKernel )(\S+)")
_ASYNC_ID = re.compile(r"\basync_id=(\d+)")
_FUSION_READING_NOTHING = re.compile(r"[\w.\-]+: \w+ \S.* \(\)(?: \{|$)")
_VALUE = re.compile(r"  @([\d,]+) ([\d,]+) B ")
_ALLOCATION = re.compile(r"\d+: (.*)")


def canonical_plan(text: str, module: CanonicalHlo) -> str:
    """The canonical form of a plan's normal form."""
    sections = re.split(r"(?m)^(?=\[\w+\]$)", text)
    return "".join(_canonical_section(section, module) for section in sections if section)


def _canonical_section(section: str, module: CanonicalHlo) -> str:
    title, *lines = section.splitlines()
    names = module.names
    if title in ("[allocations]", "[fusions]"):
        lines = list(with_ordered_values(lines, module.orders))
    if title == "[fusions]":
        lines = list(_sorted_runs(lines, _FUSION_READING_NOTHING))
    if title == "[thunks]":
        lines = list(_thunk_lines(lines, module.reading_nothing))
    elif title in ("[allocations]", "[gemms]", "[fusions]", "[collectives]"):

        def renamed(match: re.Match[str]) -> str:
            name = names.get(match[0])
            if name is None and _INNER_CONSTANT.fullmatch(match[0]):
                return "constant"
            return name or _INNER_NUMBERS.sub("", match[0])

        lines = [_TOKEN.sub(renamed, line) for line in lines]
    if title == "[allocations]":
        lines = list(_ordered_allocations(lines))
    return "\n".join([title, *lines]) + "\n"


def _sorted_runs(lines: list[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """Sorts consecutive lines that match, by what follows their names."""
    for matches, run in groupby(lines, lambda line: pattern.match(line) is not None):
        neighbours = list(run)
        yield from (
            sorted(neighbours, key=lambda line: line.partition(":")[2]) if matches else neighbours
        )


def _ordered_allocations(lines: list[str]) -> Iterator[str]:
    """Values by their places, then consecutive allocations of one size and kind by their values.

    The numbers of the allocations stay in order.
    """
    blocks: list[list[str]] = []
    for line in lines:
        if _VALUE.match(line) and blocks:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    blocks = [[head, *sorted(values, key=_place)] for head, *values in blocks]
    for is_allocation, run in groupby(blocks, _size_and_kind):
        neighbours = list(run)
        numbers = [block[0].partition(":")[0] for block in neighbours]
        if is_allocation is not None:
            neighbours.sort(key=lambda block: block[1:])
        for number, (head, *values) in zip(numbers, neighbours, strict=True):
            yield f"{number}:{head.partition(':')[2]}" if is_allocation is not None else head
            yield from values


def _size_and_kind(block: list[str]) -> str | None:
    """What follows the number of an allocation; None for other lines."""
    match = _ALLOCATION.match(block[0])
    return match[1] if match is not None else None


def _place(line: str) -> tuple[int, int, str]:
    match = _VALUE.match(line)
    assert match is not None
    offset, size = (int(number.replace(",", "")) for number in match.groups())
    return offset, size, line


def _thunk_lines(lines: list[str], reading_nothing: frozenset[str]) -> Iterator[str]:
    names = "|".join(map(re.escape, sorted(reading_nothing))) or "(?!)"
    pattern = re.compile(rf" *kCustomKernel (?:{names}) ")
    lines = list(_sorted_runs(lines, pattern))
    kernels = Numbering()
    ids = Numbering()

    def kernel(match: re.Match[str]) -> str:
        return match[1] + kernels.numbered(match[2], _KERNEL_NUMBERS.sub("", match[2]))

    def async_id(match: re.Match[str]) -> str:
        return f"async_id={ids.numbered(match[1], 'pair')}"

    for line in lines:
        yield _ASYNC_ID.sub(async_id, _KERNEL.sub(kernel, line))
