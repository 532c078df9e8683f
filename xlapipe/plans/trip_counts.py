"""Trip counts of while loops whose counter starts, steps and ends at constants.

XLA for TPUs does not record trip counts. It keeps the loops of `scan` and `fori_loop` in this form:
an element of the carry is the counter, the condition compares it with a constant, and the body adds
a constant to it.
"""

from dataclasses import dataclass
from functools import cached_property

from xlapipe.plans.dataflow import Dataflow, Path, Value, dataflow_of
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.opcodes import COPIES, RESHAPES

# Operations that leave a scalar's value as it is.
_SAME_VALUE = RESHAPES | COPIES
_MIRRORED = {"GE": "LE", "GT": "LT", "LE": "GE", "LT": "GT"}


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

    def _bounds(self, loop: Instruction) -> tuple[Path, str, int] | None:
        """The counter's element of the carry, the comparison with the limit, and the limit."""
        condition = self._called(loop, 1)
        compare = condition.by_name[condition.root]
        if compare.comparison is None:
            return None
        direction = compare.comparison
        counter, limit = self._operands(condition, compare)
        if _carry_index(counter) is None:
            counter, limit = limit, counter
            direction = _MIRRORED.get(direction, direction)
        index, value = _carry_index(counter), self._constant(limit)
        return (index, direction, value) if index is not None and value is not None else None

    def _step(self, loop: Instruction, counter: Path) -> int | None:
        """What one trip adds to the counter."""
        updated = self._element_of_root(self._called(loop, 0), counter)
        if updated.instruction.opcode != "add":
            return None
        old, added = self._operands(updated.computation, updated.instruction)
        if _carry_index(old) is None:
            old, added = added, old
        return self._constant(added) if _carry_index(old) == counter else None

    def _constant(self, value: Value) -> int | None:
        """The integer that `value` always is, also if the carry hands it on unchanged."""
        for _ in self.module.computations:
            if _carry_index(value) is None:
                return value.instruction.integer
            carried = self._before_loop(value)
            if carried is None:
                return None
            value = carried
        return None

    def _before_loop(self, value: Value) -> Value | None:
        """What an element of the carry, which no trip changes, was before the loop."""
        site = self._loop_of(value.computation)
        body = self._called(site[1], 0) if site is not None else None
        if site is None or body is None:
            return None
        updated = self._element_of_root(body, value.path)
        if updated is None or _carry_index(updated) != value.path:
            return None
        return self._carried(*site, value.path)

    def _element_of_carry(
        self, computation: Computation, loop: Instruction, index: Path
    ) -> int | None:
        start = self._carried(computation, loop, index)
        return self._constant(start) if start is not None else None

    def _carried(self, computation: Computation, loop: Instruction, index: Path) -> Value | None:
        """The element of the carry that the loop starts with."""
        return self._operand(computation, loop, 0, index) if len(loop.operands) == 1 else None

    def _element_of_root(self, body: Computation, index: Path) -> Value:
        root = Value(body, body.by_name[body.root], index)
        return self._dataflow.definition(root, _SAME_VALUE)

    def _operands(self, computation: Computation, instruction: Instruction) -> list[Value]:
        """Both operands of a comparison or a sum."""
        values = [self._operand(computation, instruction, position) for position in (0, 1)]
        unknown = Value(computation, instruction, ())
        return [unknown if value is None else value for value in values]

    def _operand(
        self, computation: Computation, instruction: Instruction, position: int, path: Path = ()
    ) -> Value | None:
        """What computes an operand, or the element at `path` of it, across copies."""
        value = self._dataflow.operand(Value(computation, instruction, path), position)
        return self._dataflow.definition(value, _SAME_VALUE) if value is not None else None

    def _called(self, loop: Instruction, position: int) -> Computation:
        """The body (0) or the condition (1)."""
        return self.module.computations[loop.called_computations[position]]

    @cached_property
    def _dataflow(self) -> Dataflow:
        return dataflow_of(self.module)

    def _loop_of(self, computation: Computation) -> tuple[Computation, Instruction] | None:
        """The loop that runs a computation as its body or condition, if only one does."""
        callers = self._dataflow.callers(computation)
        if len(callers) != 1 or callers[0][1].opcode != "while":
            return None
        return callers[0][:2]


def _carry_index(value: Value) -> Path | None:
    """Which element of the computation's parameter a value is; None if it is not one."""
    return value.path if value.instruction.opcode == "parameter" and value.path else None


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
