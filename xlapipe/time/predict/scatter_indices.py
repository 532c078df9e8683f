"""What a plan states about a scatter's indices: one constant, or computed from positions alone.

The gradient of an embedding adds all tokens that were replaced with the mask token to one row. In
the gradient of a relative-position bias, as in T5, indices follow from positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.time.predict.arrays import first_array
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
# Opcode that marks random number generation.
_OF_RANDOM = "xor"
_MOST_FOLLOWED = 4000
# Most rows that are examined; of more rows, this number at equal distances.
_ROWS_LOOKED_AT = 1 << 16


@dataclass(frozen=True, slots=True)
class _Value:
    """An instruction's result, with the fusion and its computation if it is in a fusion's body."""

    body: Computation
    name: str
    fusion: Instruction | None = None
    scope: Computation | None = None

    @property
    def instruction(self) -> Instruction:
        return self.body.by_name[self.name]

    def operands(self) -> list["_Value"]:
        names = self.instruction.operands
        return [_Value(self.body, name, self.fusion, self.scope) for name in names]


def rows_of_a_constant(
    scatter: Instruction,
    fusion: Instruction,
    body: Computation,
    scope: Computation,
    module: HloModule,
) -> float:
    """Rows that share a constant index, if a select chooses it or an argument for each row.

    Where indices are computed, as those of tokens that experts take, few are replaced.

    Args:
      fusion: whose body has the scatter, in `scope`.
    """
    count = len(scatter.operands) // 2
    operands = [body.by_name[name].shape for name in (scatter.operands[0], scatter.operands[count])]
    (_, table, _), (_, index, rows) = map(first_array, operands)
    if scatter.unique_indices or not table or (len(index) > 1 and index[-1] > 1):
        return 0.0
    most = 0.0
    # With each value, the share of the rows that have it.
    values = [(_Value(body, scatter.operands[count], fusion, scope), 1.0)]
    seen = set[_Value]()
    while values:
        value, share = values.pop()
        value = _origin(value, module)
        if value in seen or value.instruction.opcode != "select":
            continue
        seen.add(value)
        chooses, *chosen = (_origin(item, module) for item in value.operands())
        known = _known_share(chooses, module)
        constant = [0 <= _integer(item) < table[0] for item in chosen]
        if not any(constant):
            shares = (1.0, 1.0) if known is None else (known, 1 - known)
            values += [(item, share * own) for item, own in zip(chosen, shares, strict=True)]
        elif any(_is_handed_on(item, module) for item in chosen):
            if known is None:
                random = _is_random(chooses, module)
                known = _SHARE_OF_RANDOM if random else _SHARE_OF_GIVEN
            elif not constant[0]:
                known = 1 - known
            most = max(most, rows * share * known)
    return most


def are_of_positions(
    scatter: Instruction,
    fusion: Instruction,
    body: Computation,
    scope: Computation,
    module: HloModule,
) -> bool:
    """Whether a scatter's indices are computed from constants and positions alone.

    Args:
      fusion: whose body has the scatter, in `scope`.
    """
    index = _Value(body, scatter.operands[len(scatter.operands) // 2], fusion, scope)
    return not any(
        value.instruction.opcode in ("parameter", "fusion", "custom-call")
        for value in _followed(index, module)
    )


def share_of_one_place(
    scatter: Instruction,
    fusion: Instruction,
    body: Computation,
    scope: Computation,
    module: HloModule,
) -> float:
    """The share of a scatter's rows with the most frequent index, if it follows from positions.

    Args:
      fusion: whose body has the scatter, in `scope`.
    """
    name = scatter.operands[len(scatter.operands) // 2]
    index = body.by_name[name].shape.arrays[0]
    rows = index.elements
    if not rows or (len(index.dims) > 1 and index.dims[-1] > 1):
        return 0.0
    looked_at = min(_ROWS_LOOKED_AT, -(-rows // THREADS_OF_A_WARP) * THREADS_OF_A_WARP)
    place = np.arange(looked_at, dtype=np.int64) * max(1, rows // looked_at)
    threads = ThreadPlaces(fusion, body, scope, module, 1)
    at = threads.places(unravelled(np.minimum(place, rows - 1), index), place < rows)
    values = np.sort(threads.value(threads.body, name, at, 0)[at.active])
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    return float(np.diff(starts, append=len(values)).max() / len(values))


def _origin(value: _Value, module: HloModule) -> _Value:
    """The instruction that computes a value's elements, also in another fusion."""
    while True:
        instruction, number = value.instruction, value.instruction.parameter_number
        if number is not None and value.fusion is not None and value.scope is not None:
            if number >= len(value.fusion.operands):
                return value
            element = (value.fusion.operand_indices or ((),) * (number + 1))[number]
            value = _Value(value.scope, value.fusion.operands[number])
            if value.instruction.opcode == "fusion":
                value = _result(value, element, module)
        elif instruction.opcode in _SAME_VALUE and instruction.operands:
            value = value.operands()[0]
        else:
            return value


def _result(value: _Value, element: tuple[int, ...], module: HloModule) -> _Value:
    """An element of what a fusion returns, in its body."""
    fusion = value.instruction
    body = module.computations[fusion.called_computations[0]]
    root = body.by_name[body.root]
    name = root.operands[element[0]] if element and root.opcode == "tuple" else root.name
    return _Value(body, name, fusion, value.body)


def _integer(value: _Value) -> int:
    """The integer that all elements equal; -1 if they do not or it is unknown."""
    return -1 if value.instruction.integer is None else value.instruction.integer


def _is_handed_on(value: _Value, module: HloModule) -> bool:
    """Whether elements are passed on from an argument."""
    values = [value]
    for _ in range(_MOST_FOLLOWED):
        if not values:
            return False
        value = _origin(values.pop(), module)
        if value.instruction.opcode == "parameter":
            return True
        if value.instruction.opcode in _HANDS_ON:
            values += value.operands()
    return False


def _known_share(value: _Value, module: HloModule) -> float | None:
    """The share of a comparison of numbers between 0 and 1 with a constant; None of others."""
    value = _origin(value, module)
    instruction = value.instruction
    operands = [_origin(item, module) for item in value.operands()]
    if instruction.opcode == "and":
        known = [_known_share(item, module) for item in operands]
        parts = [share for share in known if share is not None]
        return parts[0] * parts[-1] ** (len(parts) - 1) if parts else None
    if instruction.opcode == "not":
        share = _known_share(operands[0], module)
        return None if share is None else 1 - share
    if instruction.opcode != "compare" or len(operands) != 2:
        return None
    first, second = (item.instruction.real for item in operands)
    limit = first if second is None else second
    if limit is None or not 0 < limit < 1:
        return None
    less = (instruction.comparison or "") in ("LT", "LE")
    return limit if less == (second is not None) else 1 - limit


def _is_random(value: _Value, module: HloModule) -> bool:
    """Whether it is computed from random numbers, or from what the step computes otherwise."""
    return any(
        value.instruction.opcode in (_OF_RANDOM, "fusion", "custom-call")
        for value in _followed(value, module)
    )


def _followed(value: _Value, module: HloModule) -> Iterator[_Value]:
    """All values that a value is computed from, also in other fusions."""
    values, seen = [value], set[_Value]()
    while values and len(seen) < _MOST_FOLLOWED:
        value = _origin(values.pop(), module)
        if value not in seen:
            seen.add(value)
            yield value
            values += value.operands()
