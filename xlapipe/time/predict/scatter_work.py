"""Time that the L2 cache takes for the updates of a scatter.

XLA launches one thread per update, or per group of up to four updates that are adjacent in a row.
The L2 cache coalesces the updates that a warp issues together into one access per sector. A thread
adds 32-bit floats and integers with one atomic instruction. Where LLVM emits none, as for complex
numbers, it runs a compare-and-swap loop: it reads, computes, writes if no other update came
between, and otherwise retries. 16-bit adds, for which PTX has an instruction, take as long.
"""

import math
from dataclasses import dataclass
from math import gcd, log2
from typing import NamedTuple

import numpy as np

from xlapipe.plans import Computation, Instruction, Shape, opcodes
from xlapipe.time.predict.arrays import first_array, minor_to_major
from xlapipe.time.predict.fusion import SHORT_TYPES, Fusion
from xlapipe.time.predict.gpu import THREADS, THREADS_OF_A_WARP, Gpu
from xlapipe.time.predict.index_values import Array, unknown_values
from xlapipe.time.predict.operand_places import element_bytes, raveled, unravelled
from xlapipe.time.predict.scatter_indices import ScatterIndices
from xlapipe.time.predict.work import Updates

_SECTOR_BYTES = 32
# Number of warps sampled, and the most updates per thread.
_WARPS, _MOST_OF_A_THREAD = 6, 8
_GOLDEN = (5**0.5 - 1) / 2
_EULER = 0.5772
_FLOATS, _LARGEST = ("f32", "f64"), ("maximum", "minimum")
_COMPLEX = ("c64", "c128")
# Opcodes that pass an update to the scatter within the same thread.
_SAME_THREAD = opcodes.RESHAPES | {"broadcast", "transpose", "copy"}


def updates_of(scatter: Instruction, fusion: Fusion, threads: int) -> Updates:
    added, indices = _added(scatter, fusion, threads), ScatterIndices(scatter, fusion)
    costs, chosen = fusion.gpu.features.scatters, indices.rows_of_a_constant()
    of_constant, most = 0.0, math.inf
    if chosen:
        share = costs.gradient_share if added.uses_compare_and_swap else 1.0
        of_constant = chosen * added.meeting_seconds(chosen) * share
    if added.element in SHORT_TYPES and indices.are_of_positions():
        if added.row <= costs.heads:
            most = added.rows * costs.position_seconds
        elif added.updates_per_element > 1:
            share = indices.share_of_one_place()
            there = added.rows * share
            of_constant = there * added.meeting_seconds(there, share) * costs.gradient_share
    return Updates(
        seconds=max(added.seconds(), of_constant),
        several_of_a_place=added.updates_per_element > 1,
        tried=added.uses_compare_and_swap,
        rows_of_a_constant=chosen,
        most_seconds=most,
    )


@dataclass(frozen=True, slots=True)
class _Added:
    """A scatter's updates, and how they are combined with the array.

    Attributes:
      element: type of the elements.
      elements: elements of all updates.
      row: elements of a row.
      table_bytes: bytes of the array that is updated.
      updates_per_element: updates per element of that array, if spread evenly.
      updates_per_thread: elements that a thread adds.
      sectors: sector accesses that the L2 cache receives for all elements.
      combine: opcode that combines; `parameter` if an update replaces the stored value.
      uses_compare_and_swap: whether threads retry, instead of one atomic instruction.
      gpu: that runs it.
    """

    element: str
    elements: int
    row: int
    table_bytes: int
    updates_per_element: float
    updates_per_thread: int
    sectors: float
    combine: str
    uses_compare_and_swap: bool
    gpu: Gpu

    @property
    def rows(self) -> float:
        return self.elements / self.row

    def seconds(self) -> float:
        """Seconds of the scatter if its updates are spread evenly."""
        if not self.uses_compare_and_swap:
            of_sector = self.sectors / max(1.0, self.table_bytes / _SECTOR_BYTES)
            costs = self.gpu.features.scatters
            of_element = self.updates_per_element * costs.element_seconds
            busy = max(of_sector * costs.sector_seconds, of_element)
            return max(self._passing(), busy)
        if self.updates_per_element <= 1:
            return self._passing()
        places = self.elements / self.row / self.updates_per_element
        return self._passing() + (self.updates_per_element - 1) * self._waiting(places)

    def meeting_seconds(self, rows: float, share: float = 1.0) -> float:
        """Seconds per row if rows, this share of the resident ones, contend for one index."""
        if not self.uses_compare_and_swap:
            return self.gpu.features.scatters.meeting_seconds if self.combine == "add" else 0.0
        at_once = min(rows, self._rows_at_once() * share)
        # Contention falls towards the end: the last rows wait for fewer others.
        others = at_once * (1 - at_once / max(1.0, 2 * rows))
        return self._all_try(at_once) + others * self.gpu.features.scatters.waiting_in_one_seconds

    def _passing(self) -> float:
        """Seconds in which the L2 cache receives all sectors, without contention."""
        largest, costs = self.combine in _LARGEST, self.gpu.features.scatters
        share = log2(max(1.0, min(self.elements / self.sectors, 8.0))) / 3
        if self.uses_compare_and_swap or (largest and self.element in _FLOATS):
            alone = self.elements < 1.2 * self.sectors
            update_seconds = costs.tried_seconds if alone else costs.tried_together_seconds
            seconds = self.sectors * update_seconds
        else:
            far = self.table_bytes > self.gpu.l2_bytes
            one, eight = costs.far_added_seconds if far else costs.added_seconds
            seconds = self.sectors * (one + (eight - one) * share)
        if not largest or self.updates_per_element <= 1:
            return seconds
        # About ln n plus Euler's constant of n values in random order are larger than all before.
        larger = min(1.0, (math.log(self.updates_per_element) + _EULER) / self.updates_per_element)
        one, eight = costs.read_seconds
        return larger * seconds + (1 - larger) * self.sectors * (one + (eight - one) * share)

    def _waiting(self, places: float) -> float:
        """Seconds per further compare-and-swap of a destination, with rows spread over `places`."""
        rows, costs = self._rows_at_once(), self.gpu.features.scatters
        # A warp contributes at most one competing update per destination at a time.
        there = min(rows / places, rows * self.row / self.updates_per_thread / THREADS_OF_A_WARP)
        several = self.updates_per_thread > 1
        waiting = costs.waiting_of_several_seconds if several else costs.waiting_seconds
        update_seconds = self._all_try(rows) * there / (1 + there) + there * waiting
        return update_seconds * (
            costs.word_factor if self.element in SHORT_TYPES and not several else 1.0
        )

    def _rows_at_once(self) -> float:
        """Rows whose threads are resident at the same time."""
        threads = self.gpu.multiprocessors * THREADS
        return min(self.elements, threads * self.updates_per_thread) / self.row

    def _all_try(self, rows: float) -> float:
        """Seconds until the threads of this number of rows have each tried once."""
        costs = self.gpu.features.scatters
        alone = self.updates_per_thread == 1
        share = self.sectors / self.elements if alone else 1 / costs.tried_at_once
        return rows * self.row / self.updates_per_thread * share * costs.tried_together_seconds


def _added(scatter: Instruction, fusion: Fusion, threads: int) -> _Added:
    body, gpu = fusion.body, fusion.gpu
    element, _, elements = first_array(body.by_name[scatter.operands[-1]].shape)
    rows = rows_of(scatter, body)
    row = rows.elements
    together = gcd(row, 4) if not threads else max(1, round(elements / threads))
    together = together if together <= _MOST_OF_A_THREAD else 1
    combiner = fusion.module.computations[scatter.called_computations[0]]
    combine = combiner.by_name[combiner.root].opcode
    replaced = combine == "parameter" or scatter.unique_indices
    tried = not replaced and element in (*SHORT_TYPES, *_COMPLEX)
    if not replaced and element in _FLOATS and combine not in _LARGEST:
        tried = combine != "add" or _last(scatter, body) == "negate"
    at_once = element == "f32" and combine == "add" and not tried
    sectors = float(elements)  # each complex number has its own compare-and-swap
    if element not in _COMPLEX:
        sectors *= _sectors_of_an_update(scatter, body, together, at_once, row)
    return _Added(
        element,
        max(1, elements),
        row,
        rows.table_bytes,
        rows.accesses,
        together,
        max(1.0, sectors),
        combine,
        tried,
        gpu,
    )


def _last(scatter: Instruction, body: Computation) -> str:
    """The opcode of the instruction that computes the updates."""
    instruction = body.by_name[scatter.operands[-1]]
    while instruction.opcode in _SAME_THREAD and instruction.operands:
        instruction = body.by_name[instruction.operands[0]]
    return instruction.opcode


def _sectors_of_an_update(
    scatter: Instruction, body: Computation, together: int, at_once: bool, row: int
) -> float:
    """Sector accesses of the L2 cache per update: less than 1 where a warp's updates coalesce.

    With `at_once`, one instruction can add a thread's updates if they are adjacent in memory.
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
        # Count each sector of a warp once.
        sectors = sectors.reshape(len(sectors), 1, -1)
    sectors = np.sort(sectors, -1)
    distinct = (sectors[..., 1:] != sectors[..., :-1]).sum() + sectors[..., 0].size
    return float(distinct / sectors.size)


def _sectors(updates: Shape, table: Shape, together: int) -> Array:
    """Sectors that sampled warps update, int64[warps, updates of a thread, threads]."""
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
        # Indices are unknown: assume random ones in dimensions that an update does not fill.
        start = unknown_values("s32", at[0], number) % (room + 1)
        places.append(np.minimum(part + start, whole - 1))
    sectors = raveled(places, table) * element_bytes(table) // _SECTOR_BYTES
    return sectors.reshape(place.shape)


class ScatterRows(NamedTuple):
    """The rows of a gather or scatter: elements of each, and bytes of the array and of all."""

    elements: int
    table_bytes: int
    moved_bytes: int

    @property
    def accesses(self) -> float:
        """Accesses of each element of the array, if spread evenly."""
        return self.moved_bytes / max(self.table_bytes, 1)


def rows_of(instruction: Instruction, body: Computation) -> ScatterRows:
    """The rows of a gather or scatter in a fusion's body."""
    is_scatter = instruction.opcode == "scatter"
    index = body.by_name[instruction.operands[len(instruction.operands) // 2 if is_scatter else 1]]
    table = body.by_name[instruction.operands[0]]
    _, dims, elements = first_array(index.shape)
    if len(dims) > 1 and dims[-1] <= 4:
        elements //= dims[-1]
    moved = body.by_name[instruction.operands[-1]] if is_scatter else instruction
    of_row = max(1, first_array(moved.shape).elements // max(elements, 1))
    return ScatterRows(of_row, table.shape.size_bytes or 0, moved.shape.size_bytes or 0)
