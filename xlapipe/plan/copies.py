"""Data that is only moved: copies, and fusions that slice, concatenate or transpose.

A donated buffer may be aliased and still be copied in full elsewhere; the module header does not
tell. A dynamic-update-slice whose result lies where its operand lay is an update in place, and
no copy.
"""

from collections.abc import Iterable, Iterator
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
      read_from: indices of the allocations in which operands lie. Where an operand is an
        element of a tuple, all elements of its shape count, since HLO text may not tell which.
    """

    instruction: str
    copied_bytes: int
    value: str
    allocation: int
    op_name: str | None
    source: SourceLine | None
    read_from: tuple[int, ...] = ()


def find_copies(plan: Plan) -> tuple[Copy, ...]:
    """Every copy of `plan`, largest first. Empty if the dump holds no HLO."""
    if plan.module is None:
        return ()
    values = _values_by_instruction(plan)
    dataflow = Dataflow(plan.module)
    found: list[Copy] = []
    for computation, instruction in plan.module.scheduled():
        whole = only_moves(dataflow, instruction)
        moved = frozenset[str]() if whole else _moved_outputs(dataflow, instruction)
        if not whole and not moved:
            continue
        read = list(_operand_slices(computation, instruction, values))
        updates = _updates(dataflow, instruction)
        origins = list(_read_from(dataflow, computation, instruction, values))
        found.extend(
            Copy(
                instruction.name,
                value.size_bytes,
                value.name,
                allocation.index,
                instruction.op_name,
                plan.nearest_source(instruction.name) or _source(plan, origins),
                tuple(sorted({index for index, _ in origins})),
            )
            for allocation, value in values.get(instruction.name, ())
            if (whole or value.name in moved)
            and not value.shape.startswith("(")
            and not _in_place((allocation, value), read, updates=updates)
        )
    return tuple(sorted(found, key=lambda copy: (-copy.copied_bytes, copy.value)))


def _read_from(
    dataflow: Dataflow,
    computation: Computation,
    instruction: Instruction,
    values: dict[str, list["_Slice"]],
) -> Iterator[tuple[int, str]]:
    """Allocation and instruction of each operand's value, found by its name and shape."""
    shapes: dict[int, str] = {}
    if instruction.opcode == "copy":
        shapes[0] = _array(instruction.shape)
    for called in instruction.called_computations:
        body = dataflow.module.computations.get(called)
        for inner in body.instructions if body is not None else ():
            if inner.parameter_number is not None:
                shapes[inner.parameter_number] = _array(inner.shape)
    for number, operand in enumerate(instruction.operands):
        pending, seen = [(computation, operand, shapes.get(number))], set[tuple[str, str]]()
        while pending:
            scope, name, shape = pending.pop()
            if (scope.name, name) in seen:
                continue
            seen.add((scope.name, name))
            found = [
                (allocation.index, value.instruction)
                for allocation, value in values.get(name, ())
                if shape is None or _array(value.shape) == shape
            ]
            yield from found
            made_by = scope.by_name.get(name)
            if found or made_by is None:
                continue
            if shape is not None and made_by.shape[0] != "(" and _array(made_by.shape) != shape:
                continue  # another element of the tuple
            if made_by.opcode == "async-start":
                bodies = map(dataflow.module.computations.get, made_by.called_computations)
                pending += [(body, body.root, shape) for body in bodies if body is not None]
            elif made_by.opcode in _NAMES_ANOTHER:
                inner_shape = None if made_by.opcode == "bitcast" else shape
                pending += [(scope, each, inner_shape) for each in made_by.operands]


def _source(plan: Plan, origins: list[tuple[int, str]]) -> SourceLine | None:
    found = (plan.nearest_source(instruction) for _, instruction in origins)
    return next((source for source in found if source is not None), None)


# Opcodes whose result lies where an operand lies.
_NAMES_ANOTHER = frozenset(
    {"async-done", "async-update", "bitcast", "copy-done", "get-tuple-element", "tuple"}
)


def _array(shape: str) -> str:
    """Element type and dimensions, ones left out.

    >>> _array("bf16[1,8,128]{2,1,0}")
    'bf16[8,128]'
    """
    kind, _, rest = shape.partition("[")
    dims = [dim for dim in rest.partition("]")[0].split(",") if dim != "1"]
    return f"{kind}[{','.join(dims)}]"


def only_moves(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether an instruction moves data, and computes nothing from it."""
    if instruction.opcode in _MOVES:
        return True
    return instruction.opcode == "fusion" and _moves_alone(
        site.instruction for site in dataflow.body(instruction)
    )


def _moves_alone(instructions: Iterable[Instruction]) -> bool:
    """Whether there is a move among them, and nothing that works on the data."""
    moves = False
    for instruction in instructions:
        if instruction.opcode in _MOVES:
            moves = True
        elif instruction.opcode in _INDEX_ARITHMETIC and _is_integer(instruction.shape):
            continue
        elif instruction.opcode not in _WITHOUT_WORK:
            return False
    return moves


def _moved_outputs(dataflow: Dataflow, fusion: Instruction) -> frozenset[str]:
    """Values of a fusion of several outputs that are moved only, beside others that are computed.

    XLA fuses a copy with arithmetic that reads the same operand.
    """
    bodies = [dataflow.module.computations.get(name) for name in fusion.called_computations]
    if fusion.opcode != "fusion" or len(bodies) != 1 or bodies[0] is None:
        return frozenset()
    body = bodies[0]
    root = body.by_name[body.root]
    if root.opcode != "tuple":
        return frozenset()
    return frozenset(
        f"{fusion.name}{{{index}}}"
        for index, name in enumerate(root.operands)
        if _moves_alone(_feeding(body, name))
    )


def _feeding(body: Computation, name: str) -> Iterator[Instruction]:
    """The instruction `name` and all of `body` that it is computed from."""
    pending, seen = [name], set[str]()
    while pending:
        current = pending.pop()
        if current in seen or current not in body.by_name:
            continue
        seen.add(current)
        yield body.by_name[current]
        pending.extend(body.by_name[current].operands)


def _updates(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether the instruction updates rows of an operand, which XLA then lets it write over."""
    opcodes = {site.instruction.opcode for site in dataflow.body(instruction)}
    return bool((opcodes | {instruction.opcode}) & {"dynamic-update-slice", "scatter"})


def _in_place(written: "_Slice", read: list["_Slice"], *, updates: bool) -> bool:
    """Whether what is written is an operand, where it lies.

    Which element of a tuple is read is not kept: the text of jaxlib 0.11 names no
    get-tuple-element. An update lies at its operand, so that one fitting element is enough. What
    only copies may as well come from another element of the same shape, as in a loop that hands
    a cache on from one place of its carry to the next.
    """
    if updates and not read:
        return True
    elements = [source for source in read if "{" in source[1].name]
    whole = [source for source in read if "{" not in source[1].name]
    alike = [source for source in elements if source[1].shape == written[1].shape]
    if any(_place(written) == _place(source) for source in (*whole, *(alike if updates else ()))):
        return True
    return bool(alike) and all(_place(written) == _place(source) for source in alike)


def _place(slice_: "_Slice") -> tuple[int, int]:
    allocation, value = slice_
    return allocation.index, value.offset_bytes


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
