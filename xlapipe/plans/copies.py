"""Find copies: copy instructions, and fusions that only slice, concatenate or transpose.

A donated buffer may be aliased and still be copied in full to other memory; the module header
does not show that. A dynamic-update-slice whose result has the same memory as its operand is an
update in place, not a copy.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from xlapipe.plans import opcodes
from xlapipe.plans.buffers import BufferAllocation, LogicalBuffer, value_name
from xlapipe.plans.dataflow import Dataflow, dataflow_of, operand_index
from xlapipe.plans.hlo import Computation, Instruction, SourceLine
from xlapipe.plans.memory_spaces import MemorySpace, is_on_chip, space_of
from xlapipe.plans.once import once_per_object
from xlapipe.plans.plan import Plan
from xlapipe.plans.shapes import Shape
from xlapipe.platforms import platform_named

# Opcodes in a fusion that only moves data: these address elements, or choose among them.
_NO_ARITHMETIC = (
    opcodes.MOVES
    | opcodes.RENAMES
    | opcodes.RESHAPES
    | {"broadcast", "clamp", "compare", "constant", "iota", "parameter", "select"}
)
# Integer arithmetic computes indices; it does not change the data that is moved.
_INTEGERS = frozenset({"s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "pred"})
_INDEX_ARITHMETIC = frozenset({"add", "and", "convert", "multiply", "or", "subtract"})


@dataclass(frozen=True, slots=True)
class Copy:
    """A value that is written only by moving data.

    Attributes:
      copied_bytes: size of the value written.
      value: name of that value.
      read_from: indices of the allocations of the operands. For an operand that is an element of
        a tuple, all elements of the same shape count if the dump does not show which one.
      read_color, written_color: XLA's numbers of the memory spaces, from the layouts.
    """

    instruction: str
    copied_bytes: int
    value: str
    allocation: int
    op_name: str | None
    source: SourceLine | None
    read_from: tuple[int, ...]
    read_color: int
    written_color: int


@dataclass(frozen=True, slots=True)
class Move:
    """A value that is brought into the chip's own memory, or back, and not changed on the way.

    Attributes:
      copy: the instruction, bytes and allocations.
      source_space: the memory that it reads.
      target_space: the memory that it writes.
    """

    copy: Copy
    source_space: MemorySpace
    target_space: MemorySpace


@once_per_object
def find_copies(plan: Plan) -> tuple[Copy, ...]:
    """Every copy of `plan`, largest first; empty if the dump has no HLO.

    On a TPU, a value that moves between HBM and the chip's own memory is a `Move`, not a copy.
    """
    if not platform_named(plan.platform).has_chip_memory:
        return _written_by_moving(plan)
    return tuple(
        copy for copy in _written_by_moving(plan) if not any(map(is_on_chip, _spaces(plan, copy)))
    )


@once_per_object
def find_moves(plan: Plan) -> tuple[Move, ...]:
    """Every move between a TPU's own memory and HBM or host memory, largest first."""
    if not platform_named(plan.platform).has_chip_memory:
        return ()
    moves = []
    for copy in _written_by_moving(plan):
        source, target = _spaces(plan, copy)
        on_chip = is_on_chip(source) != is_on_chip(target)
        # A copy-start also writes four bytes with which its end is awaited.
        if on_chip and MemorySpace.OTHER not in (source, target):
            moves.append(Move(copy, source, target))
    return tuple(moves)


def _spaces(plan: Plan, copy: Copy) -> tuple[MemorySpace, MemorySpace]:
    """The memory that a copy reads, and the one that it writes."""
    platform = platform_named(plan.platform)
    return space_of(copy.read_color, platform), space_of(copy.written_color, platform)


def _written_by_moving(plan: Plan) -> tuple[Copy, ...]:
    """Every value that is written only by moving data, largest first."""
    if plan.module is None:
        return ()
    values = plan.values_of_instruction
    dataflow = dataflow_of(plan.module)
    copies: list[Copy] = []
    for computation, instruction in plan.module.scheduled():
        moves_all = only_moves(dataflow, instruction) or _slices_into_chip(dataflow, instruction)
        moved = frozenset[str]() if moves_all else _moved_outputs(dataflow, instruction)
        if not moves_all and not moved:
            continue
        read = list(_operand_slices(computation, instruction, values))
        updates = _updates(dataflow, instruction)
        origins = list(_read_from(dataflow, computation, instruction, values))
        copies.extend(
            Copy(
                instruction.name,
                value.size_bytes,
                value.name,
                allocation.index,
                instruction.op_name,
                plan.nearest_source(instruction.name) or _source(plan, origins),
                tuple(sorted({index for index, _ in origins})),
                _read_color(computation, instruction, value.shape),
                value.shape.memory_space,
            )
            for allocation, value in values.get(instruction.name, ())
            if (moves_all or value.name in moved)
            and not value.shape.is_tuple
            and not _in_place((allocation, value), read, updates=updates)
        )
    return tuple(sorted(copies, key=lambda copy: (-copy.copied_bytes, copy.value)))


def _read_from(
    dataflow: Dataflow,
    computation: Computation,
    instruction: Instruction,
    values: Mapping[str, list["_Slice"]],
) -> Iterator[tuple[int, str]]:
    """(allocation, instruction) of each operand's value, matched by name and shape."""
    shapes: dict[int, _Array] = {}
    if instruction.opcode == "copy":
        shapes[0] = _array(instruction.shape)
    for called in instruction.called_computations:
        body = dataflow.module.computations.get(called)
        for inner in body.instructions if body is not None else ():
            if inner.parameter_number is not None:
                shapes[inner.parameter_number] = _array(inner.shape)
    for number, operand in enumerate(instruction.operands):
        shape = shapes.get(number)
        element = _element_name(instruction, number)
        if exact := [item for item in values.get(operand, ()) if item[1].name == element]:
            yield from ((allocation.index, value.instruction) for allocation, value in exact)
            continue
        pending, seen = [(computation, operand, shape)], set[tuple[str, str]]()
        while pending:
            scope, name, shape = pending.pop()
            if (scope.name, name) in seen:
                continue
            seen.add((scope.name, name))
            origins = [
                (allocation.index, value.instruction)
                for allocation, value in values.get(name, ())
                if shape is None or _array(value.shape) == shape
            ]
            yield from origins
            producer = scope.by_name.get(name)
            if origins or producer is None:
                continue
            if (
                shape is not None
                and not producer.shape.is_tuple
                and _array(producer.shape) != shape
            ):
                continue  # another element of the tuple
            if producer.opcode == "async-start":
                bodies = map(dataflow.module.computations.get, producer.called_computations)
                pending += [(body, body.root, shape) for body in bodies if body is not None]
            elif producer.opcode in opcodes.FORWARDS:
                inner_shape = None if producer.opcode == "bitcast" else shape
                pending += [(scope, name, inner_shape) for name in producer.operands]


def _read_color(computation: Computation, instruction: Instruction, written: Shape) -> int:
    """The memory space of the operand with the dimensions of the written value, or of the first."""
    arrays = [
        array
        for number, name in enumerate(instruction.operands)
        if (operand := computation.by_name.get(name)) is not None
        for array in operand.shape.at(operand_index(instruction, number)).arrays
    ]
    same = [array for array in arrays if _array(array) == _array(written)]
    return (same or arrays or [written])[0].memory_space


def _element_name(instruction: Instruction, number: int) -> str | None:
    """XLA's name of the element of a tuple that is read, e.g. `fusion.1{2}`; None without one."""
    index = operand_index(instruction, number)
    return value_name(instruction.operands[number], index) if index else None


def _source(plan: Plan, origins: list[tuple[int, str]]) -> SourceLine | None:
    sources = (plan.nearest_source(instruction) for _, instruction in origins)
    return next((source for source in sources if source is not None), None)


_Array = tuple[str, tuple[int, ...]]


def _array(shape: Shape) -> _Array:
    """Element type and dimensions, without dimensions of size 1."""
    return shape.element, shape.dims_without_ones


def only_moves(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether an instruction moves data and computes nothing from it."""
    if instruction.opcode in opcodes.MOVES:
        return True
    return instruction.opcode == "fusion" and _moves_alone(
        site.instruction for site in dataflow.body(instruction)
    )


def _slices_into_chip(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether an instruction starts to bring a slice into a TPU's own memory."""
    return (
        instruction.opcode == "async-start"
        and instruction.shape.is_tiled
        and _moves_alone(site.instruction for site in dataflow.body(instruction))
    )


def _moves_alone(instructions: Iterable[Instruction]) -> bool:
    """Whether the instructions contain a move, and no computation on the data."""
    moves = False
    for instruction in instructions:
        if instruction.opcode in opcodes.MOVES:
            moves = True
        elif instruction.opcode in _INDEX_ARITHMETIC and _is_integer(instruction.shape):
            continue
        elif instruction.opcode not in _NO_ARITHMETIC:
            return False
    return moves


def _moved_outputs(dataflow: Dataflow, fusion: Instruction) -> frozenset[str]:
    """Names of a multi-output fusion's values that are only moved; others are computed.

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
    """The instruction `name` and all instructions of `body` that it is computed from."""
    pending, seen = [name], set[str]()
    while pending:
        current = pending.pop()
        if current in seen or current not in body.by_name:
            continue
        seen.add(current)
        yield body.by_name[current]
        pending.extend(body.by_name[current].operands)


def _updates(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether the instruction updates slices of an operand, which XLA may do in place."""
    inside = {site.instruction.opcode for site in dataflow.body(instruction)}
    return not opcodes.UPDATES.isdisjoint(inside | {instruction.opcode})


def _in_place(written: "_Slice", read: list["_Slice"], *, updates: bool) -> bool:
    """Whether the written value has the same memory as an operand.

    `read` does not show which element of a tuple is read, since the text of jaxlib 0.11 has no
    get-tuple-element. An update has the same memory as its operand, so one matching element is
    enough. A pure copy could come from any element of the same shape, e.g. in a loop that moves a
    cache from one position of its carry to another, so all of them have to match.
    """
    if updates and not read:
        return True
    tuple_elements = [source for source in read if "{" in source[1].name]
    whole_values = [source for source in read if "{" not in source[1].name]
    same_shape = [source for source in tuple_elements if source[1].shape == written[1].shape]
    sufficient = (*whole_values, *(same_shape if updates else ()))
    if any(_address(written) == _address(source) for source in sufficient):
        return True
    return bool(same_shape) and all(_address(written) == _address(source) for source in same_shape)


def _address(slice_: "_Slice") -> tuple[int, int]:
    """Allocation index and offset in bytes."""
    allocation, value = slice_
    return allocation.index, value.offset_bytes


def _is_integer(shape: Shape) -> bool:
    return shape.element in _INTEGERS


_Slice = tuple[BufferAllocation, LogicalBuffer]


def _operand_slices(
    computation: Computation, instruction: Instruction, values: Mapping[str, list[_Slice]]
) -> Iterator[_Slice]:
    """Memory of the operands; nothing for values that a loop or a call passes in."""
    pending, seen = list(instruction.operands), set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        yield from values.get(name, ())
        operand = computation.by_name.get(name)
        if operand is not None and operand.opcode in opcodes.FORWARDS:
            pending.extend(operand.operands)
