"""Trip counts of while loops whose counter starts, steps and ends at constants.

XLA for TPUs does not record trip counts. It keeps the loops of `scan` and `fori_loop` in this form:
an element of the carry is the counter, the condition compares it with a constant, and the body adds
a constant to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plan.hlo import Computation, HloModule, Instruction

# Operations that leave a scalar's value as it is.
_SAME_VALUE = frozenset({"bitcast", "copy", "copy-done", "copy-start", "reshape"})
_MIRRORED = {"GE": "LE", "GT": "LT", "LE": "GE", "LT": "GT"}


@dataclass(frozen=True)
class _Value:
    """An instruction's value, or an element of it if it is a tuple."""

    computation: Computation
    instruction: Instruction
    index: tuple[int, ...]

    @property
    def carry_index(self) -> tuple[int, ...] | None:
        """Which element of the computation's parameter it is; None if it is none of them."""
        return self.index if self.instruction.opcode == "parameter" and self.index else None


@dataclass(frozen=True)
class TripCounts:
    """Trip counts of the loops of a complete module, from its counters."""

    module: HloModule

    def of(self, computation: Computation, loop: Instruction) -> int | None:
        """The trips of a while instruction of `computation`; None unless all parts are constant."""
        bounds = self._bounds(loop)
        if bounds is None:
            return None
        counter, direction, limit = bounds
        start = self._element_of_carry(computation, loop, counter)
        step = self._step(loop, counter)
        if start is None or step is None:
            return None
        return _trips(start, step, direction, limit)

    def _bounds(self, loop: Instruction) -> tuple[tuple[int, ...], str, int] | None:
        """The counter's element of the carry, the comparison with the limit, and the limit."""
        condition = self._called(loop, 1)
        if condition is None:
            return None
        compare = condition.by_name[condition.root]
        if compare.comparison is None or len(compare.operands) != 2:
            return None
        direction = compare.comparison
        counter, limit = self._operands(condition, compare)
        if counter.carry_index is None:
            counter, limit = limit, counter
            direction = _MIRRORED.get(direction, direction)
        value = self._constant(limit)
        if counter.carry_index is None or value is None:
            return None
        return counter.carry_index, direction, value

    def _step(self, loop: Instruction, counter: tuple[int, ...]) -> int | None:
        """What one trip adds to the counter."""
        body = self._called(loop, 0)
        updated = self._element_of_root(body, counter) if body is not None else None
        if updated is None or updated.instruction.opcode != "add":
            return None
        old, added = self._operands(updated.computation, updated.instruction)
        if old.carry_index is None:
            old, added = added, old
        return self._constant(added) if old.carry_index == counter else None

    def _constant(self, value: _Value) -> int | None:
        """The integer that `value` always is, also if the carry hands it on unchanged."""
        for _ in self.module.computations:
            if value.carry_index is None:
                return value.instruction.integer
            carried = self._before_loop(value)
            if carried is None:
                return None
            value = carried
        return None

    def _before_loop(self, value: _Value) -> _Value | None:
        """What an element of the carry, which no trip changes, was before the loop."""
        site = self._loop_of.get(value.computation.name)
        body = self._called(site[1], 0) if site is not None else None
        if site is None or body is None:
            return None
        updated = self._element_of_root(body, value.index)
        if updated is None or updated.carry_index != value.index:
            return None
        return self._carried(*site, value.index)

    def _element_of_carry(
        self, computation: Computation, loop: Instruction, index: tuple[int, ...]
    ) -> int | None:
        start = self._carried(computation, loop, index)
        return self._constant(start) if start is not None else None

    def _carried(
        self, computation: Computation, loop: Instruction, index: tuple[int, ...]
    ) -> _Value | None:
        """The element of the carry that the loop starts with."""
        if len(loop.operands) != 1:
            return None
        carry = self._follow(computation, loop.operands[0], ())
        return self._element(carry, index) if carry is not None else None

    def _element_of_root(self, body: Computation, index: tuple[int, ...]) -> _Value | None:
        root = self._follow(body, body.root, ())
        return self._element(root, index) if root is not None else None

    def _element(self, value: _Value, index: tuple[int, ...]) -> _Value | None:
        """An element of the tuple that `value` is."""
        instruction = value.instruction
        if instruction.opcode != "tuple":
            return _Value(value.computation, instruction, (*value.index, *index))
        if len(index) != 1 or index[0] >= len(instruction.operands):
            return None
        return self._operand(value.computation, instruction, index[0])

    def _operands(self, computation: Computation, instruction: Instruction) -> list[_Value]:
        """Both operands of a comparison or a sum."""
        values = [self._operand(computation, instruction, position) for position in (0, 1)]
        unknown = _Value(computation, instruction, ())
        return [unknown if value is None else value for value in values]

    def _operand(
        self, computation: Computation, instruction: Instruction, position: int
    ) -> _Value | None:
        if position >= len(instruction.operands):
            return None
        indices = instruction.operand_indices
        index = indices[position] if position < len(indices) else ()
        return self._follow(computation, instruction.operands[position], index)

    def _follow(self, computation: Computation, name: str, index: tuple[int, ...]) -> _Value | None:
        """The instruction that computes a value, across copies of it."""
        for _ in computation.instructions:
            instruction = computation.by_name.get(name)
            if instruction is None:
                return None
            if instruction.opcode not in _SAME_VALUE or not instruction.operands:
                return _Value(computation, instruction, index)
            name = instruction.operands[0]
            index = (
                *(instruction.operand_indices[0] if instruction.operand_indices else ()),
                *index,
            )
        return None

    def _called(self, loop: Instruction, position: int) -> Computation | None:
        """The body (0) or the condition (1)."""
        if len(loop.called_computations) != 2:
            return None
        return self.module.computations.get(loop.called_computations[position])

    @cached_property
    def _loop_of(self) -> dict[str, tuple[Computation, Instruction]]:
        """The loop that runs a computation as its body or condition, if only one does."""
        return dict(self._only_loops())

    def _only_loops(self) -> Iterator[tuple[str, tuple[Computation, Instruction]]]:
        sites: dict[str, list[tuple[Computation, Instruction]]] = {}
        for computation, instruction in self.module.instructions():
            for called in instruction.called_computations:
                sites.setdefault(called, []).append((computation, instruction))
        for called, callers in sites.items():
            if len(callers) == 1 and callers[0][1].opcode == "while":
                yield called, callers[0]


def _trips(start: int, step: int, direction: str, limit: int) -> int | None:
    """How often a counter from `start` satisfies the comparison with `limit`; None for no end."""
    if direction in ("GT", "GE"):
        start, step, limit = -start, -step, -limit
        direction = _MIRRORED[direction]
    if direction not in ("LT", "LE"):
        return None
    end = limit + (direction == "LE")
    if start >= end:
        return 0
    return -((start - end) // step) if step > 0 else None
