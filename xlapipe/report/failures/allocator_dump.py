"""The dump of XLA's BFC allocator on a GPU.

Source of the texts: xla/tsl/framework/bfc_allocator.cc (`AllocateRawInternal`, `DumpMemoryLog`)
and xla/tsl/framework/allocator.cc (`AllocatorStats::DebugString`). Older versions of XLA write the
sum of the regions into `total_region_allocated_bytes_`, newer ones into `pool size`.
"""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from xlapipe.report.failures.sizes import ROUNDED, SIZE, LoggedSize, parse_size

_HEAD = re.compile(
    rf"Allocator \((?P<name>[^)]*)\) ran out of memory trying to allocate (?P<size>{SIZE})"
    r"(?: \(rounded to (?P<rounded>\d+)\))?"
)
_TOLERATED = "The caller indicates that this is not a failure"
_STATISTIC = r"\b{}:\s+(?P<size>\d[\d.]*\s?(?:[KMGT]i?B|B)?)"
_CHUNK = re.compile(r"\b(?P<state>InUse|Free ?) at \S+ of size (?P<size>\d+)")
_SUMMARY = re.compile(r"\b(?P<count>\d+) Chunks of size (?P<size>\d+) totalling")
_REGION = re.compile(r"Next region of size (?P<size>\d+)")
_POOL = re.compile(rf"(?:total_region_allocated_bytes_: |pool size )(?P<size>{SIZE})")
_LARGEST = re.compile(rf"largest free chunk usable by \S+ end (?P<size>{SIZE})")
# The pool in a hundred characters: in use, free, and lost by rounding.
_PICTURE = re.compile(r"(?<![*_x])[*_x]{100}(?![*_x])")
_NO_POOL = "<allocator contains no memory>"
_IN_USE_TOTAL = re.compile(rf"Sum Total of in-use chunks: (?P<size>{SIZE})")


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """Chunks in use that have the same size."""

    count: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class AllocatorDump:
    """What an allocator printed about one failed allocation.

    Attributes:
      start: offset of the first character in the log.
      head: its first line.
      name: name of the allocator, e.g. `GPU_0_bfc`.
      requested: exact if the allocator printed a rounded size, which is a multiple of 256.
      tolerated: whether the caller continues without this allocation.
      limit_bytes: the most that the allocator may take from the device.
      held_bytes: bytes in use.
      pool_bytes: what the allocator has taken from the device.
      largest_free: the largest contiguous free chunk.
      in_use: chunks in use by size, most bytes first.
      picture: the pool in a hundred characters: `*` in use, `_` free, `x` lost by rounding. By
        default XLA logs only this of the dump; the rest has the level INFO.
    """

    start: int
    head: str
    name: str
    requested: LoggedSize
    tolerated: bool
    limit_bytes: int | None = None
    held_bytes: int | None = None
    pool_bytes: int | None = None
    largest_free: LoggedSize | None = None
    in_use: tuple[ChunkGroup, ...] = ()
    picture: str | None = None

    @property
    def free_pieces(self) -> tuple[int, ...]:
        """Hundredths of the pool that each free piece of the picture has, largest first."""
        return tuple(sorted(map(len, re.findall("_+", self.picture or "")), reverse=True))

    @property
    def free_in_pool(self) -> LoggedSize | None:
        """What the allocator has taken from the device, and is not in use."""
        if self.pool_bytes is None or self.held_bytes is None:
            return None
        return LoggedSize(self.pool_bytes - self.held_bytes)

    @property
    def device(self) -> str | None:
        """`GPU_0` of `GPU_0_bfc`; `host` if the allocator's memory is the host's."""
        if "host" in self.name:
            return "host"
        match = re.match(r"(?:GPU|gpu)_\d+", self.name)
        return match[0].upper() if match is not None else None


def read_allocator_dumps(text: str) -> tuple[AllocatorDump, ...]:
    """Every dump of an allocator in `text`, in order."""
    heads = list(_HEAD.finditer(text))
    starts = [*(head.start() for head in heads), len(text)]
    return tuple(
        _dump(head, text[start:end])
        for head, (start, end) in zip(heads, pairwise(starts), strict=True)
    )


def _dump(head: re.Match[str], text: str) -> AllocatorDump:
    rounded = head["rounded"]
    first_line = text.split("\n", 1)[0]
    in_use, free = _chunks(text)
    held = _statistic("InUse", text) or _size_in(_IN_USE_TOTAL, text)
    in_chunks = sum(group.count * group.size_bytes for group in in_use)
    if held is not None and 0 < abs(held - in_chunks) <= held * ROUNDED:
        held = in_chunks  # the statistics are rounded to two decimals
    if held is None and _NO_POOL in text:
        held = 0
    picture = _PICTURE.search(text)
    largest = max(free) if free else _size_in(_LARGEST, text)
    regions = [int(region["size"]) for region in _REGION.finditer(text)]
    pool = 0 if _NO_POOL in text else sum(regions) if regions else _size_in(_POOL, text)
    return AllocatorDump(
        start=head.start(),
        head=" ".join(first_line.split()),
        name=head["name"],
        requested=LoggedSize(int(rounded)) if rounded else parse_size(head["size"]),
        tolerated=_TOLERATED in first_line,
        limit_bytes=_statistic("Limit", text),
        held_bytes=held,
        pool_bytes=pool,
        largest_free=LoggedSize(largest) if largest is not None else None,
        in_use=in_use,
        picture=picture[0] if picture is not None else None,
    )


def _statistic(name: str, text: str) -> int | None:
    return _size_in(re.compile(_STATISTIC.format(name)), text)


def _size_in(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return parse_size(match["size"]).size_bytes if match is not None else None


def _chunks(text: str) -> tuple[tuple[ChunkGroup, ...], list[int]]:
    """Chunks in use by size, and the sizes of the free ones."""
    counts: Counter[int] = Counter()
    free = []
    for chunk in _CHUNK.finditer(text):
        if chunk["state"] == "InUse":
            counts[int(chunk["size"])] += 1
        else:
            free.append(int(chunk["size"]))
    if not counts:
        for group in _SUMMARY.finditer(text):
            counts[int(group["size"])] += int(group["count"])
    groups = (ChunkGroup(count, size) for size, count in counts.items())
    return tuple(sorted(groups, key=lambda group: -group.count * group.size_bytes)), free
