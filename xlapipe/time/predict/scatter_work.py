"""How the L2 cache gets the updates of a scatter, and how long it takes for them.

XLA launches a thread for each update, or for up to four that are next to each other in a row. Of
the updates that a warp makes at once, the L2 cache takes those of one sector together. A thread
adds floats of 32 bits and integers with an atomic instruction. Where LLVM makes none, as of complex
numbers, it reads, computes, and writes if no other update came between, or tries again; adds of 16
bits, for which PTX has an instruction, take as long.
"""

import math
from dataclasses import dataclass, replace
from math import gcd, log2

import numpy as np

from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.shapes import Shape
from xlapipe.time.predict.arrays import first_array, minor_to_major
from xlapipe.time.predict.gpu import THREADS, THREADS_OF_A_WARP, Gpu
from xlapipe.time.predict.index_values import Array, unknown_values
from xlapipe.time.predict.operand_places import element_bytes, raveled, unravelled
from xlapipe.time.predict.scatter_indices import (
    are_of_positions,
    rows_of_a_constant,
    share_of_one_place,
)
from xlapipe.time.predict.work import Updates

_SECTOR_BYTES = 32
# Warps that are followed, and updates of a thread at most.
_WARPS, _MOST_OF_A_THREAD = 6, 8
_GOLDEN = (5**0.5 - 1) / 2
# Seconds that the L2 cache takes for the updates of a sector at once, of an array that it holds and
# of one that it does not: of one element, and of all eight.
_ADDED, _FAR = (10e-12, 13e-12), (56e-12, 26e-12)
# Of those that are tried: of one element, and of several.
_TRIED, _TRIED_TOGETHER = 29e-12, 37e-12
# Of an update that is no larger than what is there.
_READ, _EULER = (5e-12, 20e-12), 0.5772
# Until a sector, and an element, takes the next update.
_SECTOR_SECONDS, _ELEMENT_SECONDS = 7e-9, 1.8e-9
# A row that meets another one in its place, as an H200 took with rows of 64 elements.
_MEETING_SECONDS = 20e-9
# Each further tried update of one place takes so long for each other one that tries there: of a
# thread with one update, of one with several, and if there is no other place. In that time, all
# threads try: of those with several updates, so many elements reach a sector together. Two elements
# of 16 bits are tried as one word, by so much longer if they have a thread each. As an H100 took
# for 72 scatters: half of them within 10 %, nine of ten within a factor of 2.
_WAITING, _WAITING_OF_SEVERAL, _WAITING_IN_ONE = 2e-9, 5e-9, 16e-9
_TRIED_AT_ONCE, _OF_A_WORD = 2.5, 2.5
# Gradients are smaller than a calibration's random numbers beside what is there, and change it less
# often: rows of a constant take so much as long, in four steps of the zoos 0.5 to 0.7; and a row of
# a bias by distance, which has an element for each head, at most so long, in two steps 16 to 47 ns.
_OF_GRADIENTS, _POSITION_SECONDS, _HEADS = 0.65, 40e-9, 32
_SHORT_TYPES, _FLOATS, _LARGEST = ("bf16", "f16"), ("f32", "f64"), ("maximum", "minimum")
_COMPLEX = ("c64", "c128")
# What an update passes on the way to the scatter, in the same thread.
_SAME_THREAD = opcodes.RESHAPES | {"broadcast", "transpose", "copy"}


def updates_of(
    scatter: Instruction,
    inner: Instruction,
    body: Computation,
    scope: Computation,
    module: HloModule,
    threads: int,
    gpu: Gpu,
) -> Updates:
    """The updates of a scatter in a fusion's body.

    Args:
      inner: the fusion, in `scope`.
      threads: of its launch; 0 if unknown.
    """
    added = _added(scatter, body, module, threads, gpu)
    negated = added.tried and added.combine == "add" and added.element in _FLOATS
    index = body.by_name[scatter.operands[len(scatter.operands) // 2]].shape
    several = len(index.dims) > 1 and index.dims[-1] > 1
    chosen = rows_of_a_constant(scatter, inner, body, scope, module)
    updates = Updates(
        seconds=added.seconds(),
        rows=0.0 if several or scatter.unique_indices else added.rows,
        several_of_a_place=added.of_place > 1,
        tried=added.tried,
        negated=negated,
        rows_of_a_constant=chosen,
        meeting_seconds=0.0,
    )
    meeting = added.meeting_seconds(chosen or updates.meeting_rows)
    of_constant = chosen * meeting * (_OF_GRADIENTS if added.tried else 1.0)
    most = math.inf
    if added.element in _SHORT_TYPES and are_of_positions(scatter, inner, body, scope, module):
        if added.row <= _HEADS:
            most = added.rows * _POSITION_SECONDS
        elif added.of_place > 1:
            share = share_of_one_place(scatter, inner, body, scope, module)
            rows = added.rows * share
            of_constant = rows * added.meeting_seconds(rows, share) * _OF_GRADIENTS
    return replace(
        updates,
        seconds=max(updates.seconds, of_constant),
        meeting_seconds=meeting,
        most_seconds=most,
    )


@dataclass(frozen=True, slots=True)
class _Added:
    """What a scatter adds, or otherwise combines, and how.

    Attributes:
      element: type of the elements.
      elements: of all updates.
      row: elements of a row.
      table_bytes: of the array that they are added to.
      of_place: updates of each of its elements, if spread evenly.
      together: elements of a thread.
      sectors: that the L2 cache gets for all elements.
      combine: opcode that combines; `parameter` if an update replaces what is there.
      tried: whether threads try until no other update came between.
      gpu: that runs it.
    """

    element: str
    elements: int
    row: int
    table_bytes: int
    of_place: float
    together: int
    sectors: float
    combine: str
    tried: bool
    gpu: Gpu

    @property
    def rows(self) -> float:
        """Of all updates."""
        return self.elements / self.row

    def seconds(self) -> float:
        """If the updates are spread evenly."""
        if not self.tried:
            of_sector = self.sectors / max(1.0, self.table_bytes / _SECTOR_BYTES)
            busy = max(of_sector * _SECTOR_SECONDS, self.of_place * _ELEMENT_SECONDS)
            return max(self._passing(), busy)
        if self.of_place <= 1:
            return self._passing()
        places = self.elements / self.row / self.of_place
        return self._passing() + (self.of_place - 1) * self._waiting(places)

    def meeting_seconds(self, rows: float, share: float = 1.0) -> float:
        """Of each of some rows that meet in one place.

        Args:
          share: of the rows that threads have at the same time.
        """
        if not self.tried:
            return _MEETING_SECONDS if self.combine == "add" else 0.0
        at_once = min(rows, self._rows_at_once() * share)
        # The last ones wait for fewer and fewer others.
        others = at_once * (1 - at_once / max(1.0, 2 * rows))
        return self._all_try(at_once) + others * _WAITING_IN_ONE

    def _passing(self) -> float:
        """Until the L2 cache has had all sectors."""
        largest = self.combine in _LARGEST
        share = log2(max(1.0, min(self.elements / self.sectors, 8.0))) / 3
        if self.tried or (largest and self.element in _FLOATS):
            alone = self.elements < 1.2 * self.sectors
            seconds = self.sectors * (_TRIED if alone else _TRIED_TOGETHER)
        else:
            one, eight = _FAR if self.table_bytes > self.gpu.l2_bytes else _ADDED
            seconds = self.sectors * (one + (eight - one) * share)
        if not largest or self.of_place <= 1:
            return seconds
        # Of n in random order, about ln n and Euler's constant are larger than all before.
        larger = min(1.0, (math.log(self.of_place) + _EULER) / self.of_place)
        one, eight = _READ
        return larger * seconds + (1 - larger) * self.sectors * (one + (eight - one) * share)

    def _waiting(self, places: float) -> float:
        """Of each further update of a place that is tried, where rows are spread over some."""
        rows = self._rows_at_once()
        # Of a warp's, one place has one at a time.
        there = min(rows / places, rows * self.row / self.together / THREADS_OF_A_WARP)
        several = self.together > 1
        waiting = there * (_WAITING_OF_SEVERAL if several else _WAITING)
        each = self._all_try(rows) * there / (1 + there) + waiting
        return each * (_OF_A_WORD if self.element in _SHORT_TYPES and not several else 1.0)

    def _rows_at_once(self) -> float:
        """Rows that threads have at the same time."""
        return min(self.elements, self.gpu.multiprocessors * THREADS * self.together) / self.row

    def _all_try(self, rows: float) -> float:
        """Until the threads of some rows have tried once."""
        share = self.sectors / self.elements if self.together == 1 else 1 / _TRIED_AT_ONCE
        return rows * self.row / self.together * share * _TRIED_TOGETHER


def _added(
    scatter: Instruction, body: Computation, module: HloModule, threads: int, gpu: Gpu
) -> _Added:
    element, _, elements = first_array(body.by_name[scatter.operands[-1]].shape)
    row, table_bytes, moved = rows_of(scatter, body)
    together = gcd(row, 4) if not threads else max(1, round(elements / threads))
    together = together if together <= _MOST_OF_A_THREAD else 1
    combiner = module.computations[scatter.called_computations[0]]
    combine = combiner.by_name[combiner.root].opcode
    replaced = combine == "parameter" or scatter.unique_indices
    tried = not replaced and element in (*_SHORT_TYPES, *_COMPLEX)
    if not replaced and element in _FLOATS and combine not in _LARGEST:
        tried = combine != "add" or _last(scatter, body) == "negate"
    at_once = element == "f32" and combine == "add" and not tried
    sectors = float(elements)  # complex numbers are tried one by one
    if element not in _COMPLEX:
        sectors *= _sectors_of_an_update(scatter, body, together, at_once, row)
    return _Added(
        element,
        max(1, elements),
        row,
        table_bytes,
        moved / max(table_bytes, 1),
        together,
        max(1.0, sectors),
        combine,
        tried,
        gpu,
    )


def _last(scatter: Instruction, body: Computation) -> str:
    """The opcode of what computes the updates."""
    instruction = body.by_name[scatter.operands[-1]]
    while instruction.opcode in _SAME_THREAD and instruction.operands:
        instruction = body.by_name[instruction.operands[0]]
    return instruction.opcode


def _sectors_of_an_update(
    scatter: Instruction, body: Computation, together: int, at_once: bool, row: int
) -> float:
    """Sectors that the L2 cache gets for each update: less than 1 where it gets several at once.

    Args:
      together: updates of a thread.
      at_once: whether one instruction can add them, if they are next to each other in memory.
    """
    count = len(scatter.operands) // 2
    table, index, updates = (
        body.by_name[scatter.operands[number]].shape.arrays[:1] for number in (0, count, -1)
    )
    if not table or not index or not updates or not updates[0].elements:
        return 1.0
    if len(updates[0].dims) != len(table[0].dims) + 1 or not table[0].dims:
        return 1 / min(row, _SECTOR_BYTES // element_bytes(table[0]))
    sectors = _sectors(updates[0], table[0], together)
    minor = minor_to_major(table[0])[0]
    aligned = minor == len(table[0].dims) - 1 and not table[0].dims[-1] % together
    if at_once and aligned and not updates[0].dims[-1] % together:
        # Of the sectors of a warp, each counts once.
        sectors = sectors.reshape(len(sectors), 1, -1)
    sectors = np.sort(sectors, -1)
    distinct = (sectors[..., 1:] != sectors[..., :-1]).sum() + sectors[..., 0].size
    return float(distinct / sectors.size)


def _sectors(updates: Shape, table: Shape, together: int) -> Array:
    """Sectors of some warps' updates, int64[warps, updates of a thread, threads]."""
    of_warp = THREADS_OF_A_WARP * together
    warps = max(1, updates.elements // of_warp)
    chosen = sorted({int((n * _GOLDEN + 0.3) % 1 * warps) for n in range(_WARPS)})
    place = np.asarray(chosen, np.int64)[:, None, None] * of_warp
    place = place + np.arange(together)[:, None] + together * np.arange(THREADS_OF_A_WARP)
    at = unravelled(np.minimum(place.ravel(), updates.elements - 1), updates)
    places = []
    for number, (part, size, whole) in enumerate(
        zip(at[1:], updates.dims[1:], table.dims, strict=True)
    ):
        room = max(0, whole - size)
        # Nobody knows the indices, which are of the dimensions that an update does not fill.
        start = unknown_values("s32", at[0], number) % (room + 1)
        places.append(np.minimum(part + start, whole - 1))
    sectors = raveled(places, table) * element_bytes(table) // _SECTOR_BYTES
    return sectors.reshape(place.shape)


def rows_of(instruction: Instruction, body: Computation) -> tuple[int, int, int]:
    """Elements of each row, bytes of the array addressed, and bytes gathered or scattered."""
    count = len(instruction.operands) // 2 if instruction.opcode == "scatter" else 1
    index = body.by_name[instruction.operands[count]]
    table = body.by_name[instruction.operands[0]]
    _, dims, elements = first_array(index.shape)
    if len(dims) > 1 and dims[-1] <= 4:
        elements //= dims[-1]
    is_scatter = instruction.opcode == "scatter"
    moved = body.by_name[instruction.operands[-1]] if is_scatter else instruction
    rows = first_array(moved.shape)[2] // max(elements, 1)
    return max(1, rows), table.shape.size_bytes or 0, moved.shape.size_bytes or 0
