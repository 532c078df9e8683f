"""What a plan states about a scatter's indices: one constant, or computed from positions alone.

The gradient of an embedding adds all tokens that were replaced with the mask token to one row. In
the gradient of a relative-position bias, as in T5, indices follow from positions.
"""

from collections.abc import Iterator

import numpy as np

from xlapipe.plans import Instruction, opcodes
from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.time.predict.arrays import first_array
from xlapipe.time.predict.fusion import Fusion
from xlapipe.time.predict.gpu import THREADS_OF_A_WARP
from xlapipe.time.predict.operand_places import unravelled
from xlapipe.time.predict.thread_places import ThreadPlaces

# Assumed share of rows with the constant, where a select chooses a constant or an argument as the
# index: if the caller supplies the mask, as for BERT; and if random numbers choose with a share
# that the plan lacks, as in text diffusion, where the share is itself random.
_SHARE_OF_GIVEN, _SHARE_OF_RANDOM = 0.15, 0.5
# Opcodes that pass on elements of their operands, all or some.
_SAME_VALUE = opcodes.RESHAPES | {"broadcast", "convert", "copy", "transpose"}
_HANDS_ON = _SAME_VALUE | {"concatenate", "dynamic-slice", "pad", "select", "slice"}
# Opcodes of random number generation, and of what the step computes otherwise.
_RANDOM, _COMPUTED = "xor", frozenset({"fusion", "custom-call"})
_MOST_FOLLOWED = 4000
# Most rows that are examined; of more rows, this number at equal distances.
_ROWS_LOOKED_AT = 1 << 16


class ScatterIndices:
    """The indices of a scatter in a fusion's body."""

    def __init__(self, scatter: Instruction, fusion: Fusion) -> None:
        self._scatter, self._fusion = scatter, fusion
        self._module, self._flow = fusion.module, dataflow_of(fusion.module)
        self._index = fusion.body.by_name[scatter.operands[len(scatter.operands) // 2]]

    @property
    def several(self) -> bool:
        """Whether each row has several."""
        dims = self._index.shape.dims
        return len(dims) > 1 and dims[-1] > 1

    def rows_of_a_constant(self) -> float:
        """Rows that share a constant index, if a select chooses it or an argument for each row.

        Where indices are computed, as those of tokens that experts take, few are replaced.
        """
        table = first_array(self._fusion.body.by_name[self._scatter.operands[0]].shape).dims
        _, index, rows = first_array(self._index.shape)
        if self._scatter.unique_indices or not table or (len(index) > 1 and index[-1] > 1):
            return 0.0
        most = 0.0
        # With each value, the share of the rows that have it.
        values, seen = [(self._origin(Value(self._fusion.body, self._index)), 1.0)], set()
        while values:
            value, share = values.pop()
            if value.key in seen or value.instruction.opcode != "select":
                continue
            seen.add(value.key)
            chooses, *chosen = self._operands(value)
            known = self._known_share(chooses)
            integers = [item.instruction.integer for item in chosen]
            constant = [number is not None and 0 <= number < table[0] for number in integers]
            if not any(constant):
                shares = (1.0, 1.0) if known is None else (known, 1 - known)
                values += [(item, share * part) for item, part in zip(chosen, shares, strict=True)]
            elif any(map(self._is_handed_on, chosen)):
                if known is None:
                    random = self._is_computed_from(chooses, _COMPUTED | {_RANDOM})
                    known = _SHARE_OF_RANDOM if random else _SHARE_OF_GIVEN
                elif not constant[0]:
                    known = 1 - known
                most = max(most, rows * share * known)
        return most

    def are_of_positions(self) -> bool:
        """Whether they are computed from constants and positions alone."""
        value = Value(self._fusion.body, self._index)
        return not self._is_computed_from(value, _COMPUTED | {"parameter"})

    def share_of_one_place(self) -> float:
        """The share of the rows with the most frequent index, if it follows from positions."""
        index = self._index.shape.arrays[0]
        rows = index.elements
        if not rows or self.several:
            return 0.0
        looked_at = min(_ROWS_LOOKED_AT, -(-rows // THREADS_OF_A_WARP) * THREADS_OF_A_WARP)
        place = np.arange(looked_at, dtype=np.int64) * max(1, rows // looked_at)
        threads = ThreadPlaces(self._fusion, 1)
        at = threads.places(unravelled(np.minimum(place, rows - 1), index), place < rows)
        values = np.sort(threads.value(threads.body, self._index.name, at)[at.active])
        starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
        return float(np.diff(starts, append=len(values)).max() / len(values))

    def _origin(self, value: Value) -> Value:
        """The value with the same elements that an instruction computes, also in other fusions."""
        while True:
            value = self._flow.definition(value, _SAME_VALUE)
            if value.instruction.opcode != "fusion":
                return value
            body = self._module.computations[value.instruction.called_computations[0]]
            value = Value(body, body.by_name[body.root], value.path)

    def _operands(self, value: Value) -> list[Value]:
        """The origin of each operand."""
        numbers = range(len(value.instruction.operands))
        operands = (self._flow.operand(value._replace(path=()), number) for number in numbers)
        return [self._origin(operand) for operand in operands if operand is not None]

    def _followed(self, value: Value) -> Iterator[Value]:
        """All values that a value is computed from."""
        values, seen = [self._origin(value)], set[object]()
        while values and len(seen) < _MOST_FOLLOWED:
            value = values.pop()
            if value.key not in seen:
                seen.add(value.key)
                yield value
                values += self._operands(value)

    def _is_computed_from(self, value: Value, names: frozenset[str]) -> bool:
        return any(item.instruction.opcode in names for item in self._followed(value))

    def _is_handed_on(self, value: Value) -> bool:
        """Whether elements are passed on from an argument."""
        values = [value]
        for _ in range(_MOST_FOLLOWED):
            if not values:
                return False
            value = values.pop()
            if value.instruction.opcode == "parameter":
                return True
            if value.instruction.opcode in _HANDS_ON:
                values += self._operands(value)
        return False

    def _known_share(self, value: Value) -> float | None:
        """The share of a comparison of numbers between 0 and 1 with a constant; None of others."""
        instruction, operands = value.instruction, self._operands(value)
        if instruction.opcode == "and":
            known = map(self._known_share, operands)
            parts = [share for share in known if share is not None]
            return parts[0] * parts[-1] ** (len(parts) - 1) if parts else None
        if instruction.opcode == "not":
            share = self._known_share(operands[0])
            return None if share is None else 1 - share
        if instruction.opcode != "compare" or len(operands) != 2:
            return None
        first, second = (item.instruction.real for item in operands)
        limit = first if second is None else second
        if limit is None or not 0 < limit < 1:
            return None
        less = (instruction.comparison or "") in ("LT", "LE")
        return limit if less == (second is not None) else 1 - limit
