"""Work of a fusion's threads, from a few sampled blocks that are followed through its body.

XLA's emitters compute an element's operands in the thread that needs them, wherever they are in
memory. Threads of a warp that take different branches wait for each other. How reads coalesce into
cache lines and sectors follows from the indices, which a plan states; indices that the program
computes from its data count as random.
"""

from math import prod

import numpy as np

from xlapipe.plans import Instruction, Shape, opcodes
from xlapipe.time.predict.arrays import updated_in_place
from xlapipe.time.predict.element_operations import FREE, ThreadWork, operations_of
from xlapipe.time.predict.fusion import Fusion
from xlapipe.time.predict.gpu import THREADS_OF_A_WARP
from xlapipe.time.predict.index_values import Array
from xlapipe.time.predict.operand_places import (
    element_bytes,
    has_interior,
    have_elements,
    joined_dimension,
    raveled,
    same_terms,
    terms_of,
    unravelled,
    window_of,
)
from xlapipe.time.predict.thread_places import (
    THREADS_OF_A_BLOCK,
    BoundComputation,
    Places,
    ThreadPlaces,
)

# Line of the L1 cache, which is read at once, and sector, the smallest transfer of the L2 cache.
_LINE_BYTES, _SECTOR_BYTES = 128, 32
# A warp's read counts as at least this number of lines.
_LEAST_LINES = 2
_L1_BYTES = 192 << 10
# Share of repeated reads of a sector by other blocks that miss the L1 cache; all miss if a sector
# has 32 elements, since too many blocks read one each.
_SHARE_AGAIN = 0.5
# A read in a branch of a loop starts after the one before it ends: from an array larger than the L1
# cache, it takes as long as this number of others, if a term that is followed stands for at least
# this number of terms.
_READ_APART, _LONG_SUM = 40.0, 32.0
# Number of blocks sampled; more if the body has branches.
_BLOCKS, _BLOCKS_IN_BRANCHES = 3, 12
_GOLDEN = (5**0.5 - 1) / 2
# XLA's emitters do not treat sums of fewer elements as reductions.
_LEAST_SUM = 16
# Limit of instructions that are followed: deeper nesting is undercounted.
_MOST_INSTRUCTIONS = 15000
# Operations of a pad with interior padding, and of a conversion from bfloat16 to float32.
_INTERIOR, _SHIFTED = 16.0, 1.0
_WEIGHED_BY_OPERANDS = frozenset({"concatenate", "convert"})
# Reads of an array: its parameter, and how often threads repeat the read.
_Read = tuple[str, float]


def followed(fusion: Fusion, *, tiled: bool, elements_of_a_thread: int) -> ThreadWork:
    """The work of all threads of a fusion."""
    return _Threads(fusion, tiled, max(1, elements_of_a_thread)).run()


class _Threads:
    def __init__(self, fusion: Fusion, tiled: bool, elements_of_a_thread: int) -> None:
        self._fusion = fusion
        self._module = fusion.module
        self._tiled = tiled
        self._unrolled = elements_of_a_thread
        self._at = ThreadPlaces(fusion, elements_of_a_thread)
        self._in_place = updated_in_place(fusion.body)
        self._branches = not fusion.body.opcodes.isdisjoint(opcodes.JOINS)
        self._seen: set[tuple[int, str, int, int]] = set()
        self._left, self._elements = _MOST_INSTRUCTIONS, 0.0
        self._roots: set[str] = set()
        # State of the domain that is being followed.
        self._scale = 1.0
        self._operations = self._reads_of_sums = np.zeros(0)
        self._lines = 0.0
        self._reads: dict[_Read, list[tuple[Array, Array]]] = {}
        self._pending: list[str] = []
        self._left_to_follow: list[tuple[BoundComputation, str, Places, float, float, bool]] = []

    def run(self) -> ThreadWork:
        body = self._at.body.computation
        root = body.by_name[body.root]
        names = list(root.operands) if root.opcode == "tuple" else [root.name]
        for name in names:
            self._pending += self._updates_of(body.by_name[name]) or [name]
        self._roots = set(self._pending)
        total = ThreadWork()
        done: set[str] = set()
        while self._pending:
            name = self._pending.pop(0)
            if name not in done:
                done.add(name)
                total = self._domain(name, total)
        return total._replace(elements=self._elements)

    def _domain(self, name: str, total: ThreadWork) -> ThreadWork:
        """Follow threads that each have elements of an instruction, in memory order."""
        arrays = self._at.body.computation.by_name[name].shape.arrays
        if not arrays or not arrays[0].elements:
            return total
        shape = arrays[0]
        of_block = THREADS_OF_A_BLOCK * self._unrolled
        blocks = -(-shape.elements // of_block)
        followed = _BLOCKS_IN_BRANCHES if self._branches else _BLOCKS
        # Sample blocks at distances without a period.
        chosen = sorted({int((n * _GOLDEN + 0.3) % 1 * blocks) for n in range(followed)})
        # Axes: block, element of a thread, thread.
        starts = np.asarray(chosen, dtype=np.int64)[:, None, None] * of_block
        element = np.arange(self._unrolled, dtype=np.int64)[None, :, None]
        thread = np.arange(THREADS_OF_A_BLOCK, dtype=np.int64)[None, None, :]
        place = (starts + thread * self._unrolled + element).ravel()
        active = place < shape.elements
        self._at.blocks = len(chosen)
        self._scale = shape.elements / max(1, int(active.sum()))
        warps = len(place) // THREADS_OF_A_WARP
        self._operations, self._reads_of_sums = np.zeros(warps), np.zeros(warps)
        self._lines, self._reads = 0.0, {}
        self._elements = max(self._elements, float(shape.elements))
        index = unravelled(np.minimum(place, shape.elements - 1), shape)
        at_root = name in self._roots
        at = self._at.places(index, active)
        self._left_to_follow = [(self._at.body, name, at, 1.0, 0.0, at_root)]
        while self._left_to_follow:
            self._follow(*self._left_to_follow.pop())
        scale = self._scale * THREADS_OF_A_WARP
        return ThreadWork(
            total.operations + scale * float(self._operations.sum()),
            total.longest_operations + self._longest(self._operations),
            0.0,
            total.longest_reads + self._longest(self._reads_of_sums),
            total.lines + self._scale * self._lines,
            total.sector_bytes + self._moved(),
        )

    def _longest(self, of_warps: Array) -> float:
        """The maximum over warps of the sum over a thread's elements."""
        return float(of_warps.reshape(self._at.blocks, self._unrolled, -1).sum(1).max(initial=0.0))

    def _moved(self) -> float:
        """Excess bytes of sectors of the L2 cache that blocks read."""
        moved: dict[_Read, float] = {}
        needed: dict[_Read, float] = {}
        for read, parts in self._reads.items():
            size_bytes = element_bytes(self._shape_of(read).arrays[0])
            of_all = read[1] * self._scale
            places, active = (
                np.hstack([part.reshape(self._at.blocks, -1) for part in parts_of_all])
                for parts_of_all in zip(*parts, strict=True)
            )
            for of_block, in_block in zip(places, active, strict=True):
                offsets = np.sort(of_block[in_block])
                sectors = _distinct(offsets // _SECTOR_BYTES)
                moved[read] = moved.get(read, 0.0) + of_all * sectors * _SECTOR_BYTES
                needed[read] = needed.get(read, 0.0) + of_all * _distinct(offsets) * size_bytes
        excess = 0.0
        for read, total in moved.items():
            size = self._shape_of(read).size_bytes or 1
            missed_share = max(0.0, 1 - _L1_BYTES / size)
            if element_bytes(self._shape_of(read).arrays[0]) > 1:
                missed_share *= _SHARE_AGAIN
            excess += max(0.0, min(size, total) - needed[read])
            excess += missed_share * max(0.0, total - size)
        return excess

    def _shape_of(self, read: _Read) -> Shape:
        return self._at.body.computation.by_name[read[0]].shape

    def _follow(
        self,
        frame: BoundComputation,
        name: str,
        at: Places,
        times: float,
        in_sum: float,
        at_root: bool,
    ) -> None:
        """Follow threads that need elements of an instruction."""
        key = (frame.number, name, at.key, at.branch)
        if key in self._seen or self._left <= 0:
            return
        self._seen.add(key)
        self._left -= 1
        instruction = frame.computation.by_name[name]
        opcode = instruction.opcode
        if opcode == "parameter":
            argument = frame.arguments.get(instruction.parameter_number or 0)
            if frame is self._at.body:
                if instruction.shape.arrays:
                    self._read(name, instruction.shape.arrays[0], at, times, in_sum)
            elif argument is not None:
                self._left_to_follow.append((*argument[:2], at, times, in_sum, at_root))
            return
        if opcode == "constant":
            return
        if opcode not in FREE:
            self._operations += at.warps * (self._weight(frame, instruction, at) * times)
        needed = at.threads * times * self._scale
        if instruction.shape.arrays:
            needed = min(needed, float(instruction.shape.arrays[0].elements))
            self._elements = max(self._elements, needed)
        if opcode in opcodes.HAS_BODY:
            inside = self._at.frame_of(frame, instruction)
            if inside is not None:
                root = inside.computation.root
                self._left_to_follow.append((inside, root, at, times, in_sum, at_root))
            return
        if at_root and opcode in _OWN_DOMAINS and self._own_domain(frame, instruction, at, times):
            return
        if opcode in opcodes.REDUCES:
            self._sum(frame, instruction, at, times, max(1.0, in_sum))
            return
        goes_on = at_root and opcode not in opcodes.READS_OTHER_INDICES
        for operand, places, _ in self._at.operands(frame, instruction, at):
            if places.threads:
                task = (frame, operand, places, times, in_sum, goes_on)
                self._left_to_follow.append(task)

    def _weight(self, frame: BoundComputation, instruction: Instruction, at: Places) -> float:
        """Operations for one element."""
        opcode, by_name = instruction.opcode, frame.computation.by_name
        weight = operations_of(instruction)
        if opcode == "reduce":
            return 0.0
        if opcode == "pad" and has_interior(instruction):
            return _INTERIOR
        if opcode in _WEIGHED_BY_OPERANDS:
            shapes = [a for name in instruction.operands for a in by_name[name].shape.arrays[:1]]
            if opcode == "convert":
                return _SHIFTED if shapes and shapes[0].element == "bf16" else weight
            if have_elements(shapes):
                # With one index in all threads, the compiler resolves the branch.
                part = at.index[joined_dimension(instruction.shape.arrays[0], shapes)]
                return weight if (part != part[0]).any() else 0.0
        return weight

    def _updates_of(self, instruction: Instruction) -> list[str]:
        """Operands of an in-place update that are divided among threads: update and indices."""
        operands = instruction.operands
        if len(operands) < 2 or instruction.opcode not in opcodes.UPDATES:
            return []
        if instruction.opcode == "scatter":
            return [operands[-1], operands[len(operands) // 2]]
        return [operands[1]] if instruction.name in self._in_place else []

    def _own_domain(
        self, frame: BoundComputation, instruction: Instruction, at: Places, times: float
    ) -> bool:
        """Whether blocks process its operands in tiles, or threads have elements of an update."""
        if frame is not self._at.body:
            return False
        body, operands = frame.computation, instruction.operands
        if instruction.opcode in opcodes.UPDATES:
            updates = self._updates_of(instruction)
            self._pending += updates
            return bool(updates)
        arrays = body.by_name[operands[0]].shape.arrays
        if not self._tiled or not arrays:
            return False
        if instruction.opcode == "reduce":
            if arrays[0].elements < _LEAST_SUM * instruction.shape.arrays[0].elements:
                return False
            terms = arrays[0].elements / max(1, instruction.shape.arrays[0].elements)
            self._operations += at.warps * (self._weight_of_sum(instruction) * terms * times)
        for operand in operands:
            shapes = body.by_name[operand].shape.arrays
            if shapes and shapes[0].elements > 1:
                self._pending.append(operand)
                if instruction.opcode == "reduce":
                    self._roots.add(operand)
        return True

    def _weight_of_sum(self, instruction: Instruction) -> float:
        """Operations that add one term."""
        name = next(iter(instruction.called_computations), "")
        adder = self._module.computations.get(name)
        of_adder = adder.instructions if adder is not None else ()
        weights = (operations_of(i) for i in of_adder if i.opcode not in FREE)
        return max(1.0, sum(weights))

    def _sum(
        self,
        frame: BoundComputation,
        instruction: Instruction,
        at: Places,
        times: float,
        same: float,
    ) -> None:
        """Follow sampled terms of a sum that each thread adds up."""
        body = frame.computation
        names = instruction.operands[: max(1, len(instruction.operands) // 2)]
        arrays = body.by_name[names[0]].shape.arrays
        if not have_elements(arrays[:1]):
            return
        terms = list(terms_of(instruction, arrays[0], at.index, len(at.active)))
        number = max(1, prod(window_of(instruction, arrays[0])))
        times_per_term = times * number / max(1, len(terms))
        weight = self._weight_of_sum(instruction)
        if len(terms) < number:
            same *= same_terms(instruction, arrays[0], THREADS_OF_A_BLOCK * self._unrolled)
        for index, inside in terms:
            places = self._at.places(index, at.active & inside)
            if not places.threads:
                continue
            self._operations += places.warps * (weight * times_per_term)
            self._left_to_follow += [
                (frame, name, places, times_per_term, same, False) for name in names
            ]

    def _read(self, name: str, shape: Shape, at: Places, times: float, in_sum: float) -> None:
        if in_sum:
            apart = at.branch and times >= _LONG_SUM and (shape.size_bytes or 0) > _L1_BYTES
            self._reads_of_sums += at.warps * (times * (_READ_APART if apart else 1.0))
        offset = raveled(at.index, shape) * element_bytes(shape)
        lines = np.where(at.active, offset // _LINE_BYTES, -1).reshape(-1, THREADS_OF_A_WARP)
        lines = np.sort(lines, 1)
        distinct = 1 + (lines[:, 1:] != lines[:, :-1]).sum(1) - (lines[:, 0] < 0)
        self._lines += times * float((np.maximum(distinct, _LEAST_LINES) * at.warps).sum())
        if (shape.size_bytes or 0) > _L1_BYTES:
            read = (name, times / max(1.0, in_sum))
            self._reads.setdefault(read, []).append((offset, at.active))


def _distinct(ordered: Array) -> int:
    """Number of different values of an array in order. `np.unique` first imports `numpy.ma`."""
    return min(1, len(ordered)) + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


# Opcodes at a fusion's root whose operands are divided among threads, or tiles of blocks.
_OWN_DOMAINS = frozenset({"dynamic-update-slice", "reduce", "scatter", "transpose"})
