"""Data that is only moved: copies, and fusions that slice, concatenate or transpose.

A donated buffer may be aliased and still be copied in full elsewhere; the module header does not
tell. A dynamic-update-slice whose result lies where its operand lay is an update in place, and
no copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.plan.buffers import BufferAllocation, LogicalBuffer
from xlapipe.plan.dataflow import Dataflow
from xlapipe.plan.hlo import Computation, Instruction, SourceLine
from xlapipe.plan.plan import Plan

_MOVES = frozenset(
    {"concatenate", "copy", "copy-start", "dynamic-slice", "dynamic-update-slice", "reverse"}
    | {"scatter", "slice", "transpose"}
)
_WITHOUT_WORK = _MOVES | {
    "bitcast",
    "broadcast",
    "clamp",
    "compare",
    "constant",
    "get-tuple-element",
    "iota",
    "parameter",
    "reshape",
    "select",
    "tuple",
}
# Index arithmetic is no work on the data, as long as it is done on integers.
_INDEX_ARITHMETIC = frozenset({"add", "and", "convert", "multiply", "or", "subtract"})


@dataclass(frozen=True, slots=True)
class Copy:
    """A value written by moving data alone.

    Attributes:
      copied_bytes: size of the value written.
      value: name of that value.
    """

    instruction: str
    copied_bytes: int
    value: str
    allocation: int
    op_name: str | None
    source: SourceLine | None


def find_copies(plan: Plan) -> tuple[Copy, ...]:
    """Every copy of `plan`, largest first. Empty if the dump holds no HLO."""
    if plan.module is None:
        return ()
    values = _values_by_instruction(plan)
    dataflow = Dataflow(plan.module)
    found: list[Copy] = []
    for computation, instruction in plan.module.scheduled():
        if not _only_moves(dataflow, instruction):
            continue
        read = list(_operand_slices(computation, instruction, values))
        for allocation, value in values.get(instruction.name, ()):
            in_place = any(
                (allocation.index, value.offset_bytes) == (other.index, source.offset_bytes)
                for other, source in read
            ) or (not read and _updates(dataflow, instruction))
            if not in_place and not value.shape.startswith("("):
                found.append(
                    Copy(
                        instruction.name,
                        value.size_bytes,
                        value.name,
                        allocation.index,
                        instruction.op_name,
                        plan.nearest_source(instruction.name),
                    )
                )
    return tuple(sorted(found, key=lambda copy: (-copy.copied_bytes, copy.value)))


def _only_moves(dataflow: Dataflow, instruction: Instruction) -> bool:
    if instruction.opcode in _MOVES:
        return True
    if instruction.opcode != "fusion":
        return False
    moves = False
    for site in dataflow.body(instruction):
        inner = site.instruction
        if inner.opcode in _MOVES:
            moves = True
        elif inner.opcode in _INDEX_ARITHMETIC and _is_integer(inner.shape):
            continue
        elif inner.opcode not in _WITHOUT_WORK:
            return False
    return moves


def _updates(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether the root is an update of a loop-carried buffer, which lies at one place."""
    body = {site.instruction.opcode for site in dataflow.body(instruction)}
    return bool(body & {"dynamic-update-slice", "scatter"}) or instruction.opcode in (
        "dynamic-update-slice",
        "scatter",
    )


def _is_integer(shape: str) -> bool:
    return shape.startswith(("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "pred"))


_Slice = tuple[BufferAllocation, LogicalBuffer]


def _values_by_instruction(plan: Plan) -> dict[str, list[_Slice]]:
    values: dict[str, list[_Slice]] = {}
    for allocation in plan.allocations:
        for value in allocation.values:
            values.setdefault(value.instruction, []).append((allocation, value))
    return values


def _operand_slices(
    computation: Computation, instruction: Instruction, values: dict[str, list[_Slice]]
) -> Iterator[_Slice]:
    """Where the operands lie; nothing for what a loop or a call hands in."""
    pending, seen = list(instruction.operands), set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        yield from values.get(name, ())
        operand = computation.by_name.get(name)
        if operand is not None and operand.opcode in ("bitcast", "get-tuple-element", "tuple"):
            pending.extend(operand.operands)
