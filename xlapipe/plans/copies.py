"""Find copies: copy instructions, and fusions that only slice, concatenate or transpose.

A donated buffer may be aliased and still be copied in full to other memory; the module header
does not show that. A dynamic-update-slice whose result has the same memory as its operand is an
update in place, not a copy.

A copy of memory that was never written is wasted work, and undefined data in the result. Such
memory comes from XLA's `AllocateBuffer`, to which `jax.lax.empty` compiles. It is meant to be
written in place; copying it first is a mistake.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from xlapipe.devices.platforms import platform_named
from xlapipe.plans import opcodes
from xlapipe.plans.dataflow import Dataflow, Path, Value, dataflow_of
from xlapipe.plans.hlo import Computation, Instruction, SourceLine
from xlapipe.plans.loops import executions
from xlapipe.plans.memory_spaces import MemorySpace, is_on_chip, space_of
from xlapipe.plans.once import once_per_object
from xlapipe.plans.origins import address_of, origins_of
from xlapipe.plans.plan import Placed, Plan

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
class CopiedValue:
    """A value that a copy reads.

    Attributes:
      value: XLA's name of what it lists at its place in memory.
      parameter_number: the entry parameter that it is, or of which it is an update in place; None
        for other values.
    """

    value: str
    allocation: int
    copied_bytes: int
    is_whole: bool
    parameter_number: int | None


@dataclass(frozen=True, slots=True)
class Copy:
    """A value that is written only by moving data.

    Attributes:
      sources: the values that it has its data from, without indices; those in unknown memory are
        left out.
      updates: whether it writes a buffer with other elements in some places.
      reorders: whether the elements are in another order: it transposes, or changes the layout.
      read_color, written_color: XLA's numbers of the memory spaces, from the layouts.
      times: how often a step writes it; None if that is unknown.
    """

    instruction: str
    copied_bytes: int
    value: str
    allocation: int
    op_name: str | None
    source: SourceLine | None
    sources: tuple[CopiedValue, ...]
    updates: bool
    reorders: bool
    read_color: int
    written_color: int
    times: int | None = 1

    @property
    def of_step_bytes(self) -> int:
        """What a step copies, in a loop of unknown length once."""
        return self.copied_bytes * (1 if self.times is None else self.times)

    @property
    def trips_text(self) -> str:
        """` × 100 trips`; empty for a copy that runs once."""
        if self.times is None:
            return " × an unknown number of trips"
        return f" × {self.times:,} trips" if self.times > 1 else ""

    @property
    def read_from(self) -> tuple[int, ...]:
        """Indices of the allocations that are read, in order."""
        return tuple(sorted({source.allocation for source in self.sources}))

    @property
    def is_whole(self) -> bool:
        """Whether it writes one whole value once more, in the same or another order."""
        return len(self.sources) == 1 and self.sources[0].is_whole

    def bytes_of_parameter(self, number: int | None) -> int:
        """Bytes of an entry parameter that are copied to another allocation."""
        copied = (
            source.copied_bytes
            for source in self.sources
            if source.allocation != self.allocation
            and source.parameter_number is not None
            and source.parameter_number == number
        )
        return max(copied, default=0)


class Move(NamedTuple):
    """A value that is brought into the chip's own memory, or back, and not changed on the way."""

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
def copies_by_value(plan: Plan) -> Mapping[str, Copy]:
    """The copies of `find_copies` by the name of the value that is written."""
    return {copy.value: copy for copy in find_copies(plan)}


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
    dataflow = dataflow_of(plan.module)
    copies: list[Copy] = []
    for computation, instruction in plan.module.scheduled():
        for path, elements in _moved(dataflow, instruction):
            written = Value(computation, instruction, path)
            place = plan.place_of(written)
            if place is None or place[1].name != written.name or place[1].shape.is_tuple:
                continue
            copy = _copy(plan, dataflow, written, place, elements)
            if copy is not None:
                copies.append(copy)
    return tuple(sorted(copies, key=lambda copy: (-copy.copied_bytes, copy.value)))


def _copy(
    plan: Plan, dataflow: Dataflow, written: Value, place: Placed, elements: Mapping[int, int]
) -> Copy | None:
    """The copy that writes a value; None if the value has the memory of an operand.

    Args:
      elements: how many elements of each operand are moved, by the operand's position.
    """
    allocation, value = place
    instruction = written.instruction
    whole = Value(written.computation, instruction)
    operands = {
        position: operand
        for position in sorted(elements, key=lambda position: -elements[position])
        if (operand := dataflow.operand(whole, position)) is not None
    }
    places = {position: plan.place_of(operand) for position, operand in operands.items()}
    known = {
        position: known_place for position, known_place in places.items() if known_place is not None
    }
    in_place = any(address_of(place) == address_of(known_place) for known_place in known.values())
    # Without the bodies of loops, the memory of what an update changes is not known.
    updates = _has(dataflow, written, opcodes.UPDATES)
    if in_place or (not known and updates):
        return None
    sources = tuple(
        CopiedValue(
            known_place[1].name,
            known_place[0].index,
            copied_bytes,
            copied_bytes == known_place[1].size_bytes,
            origins_of(plan).parameter_number(operands[position]),
        )
        for position, known_place in known.items()
        for copied_bytes in [min(_bytes(operands[position], elements[position]), value.size_bytes)]
    )
    shapes = [operand.shape for operand in operands.values()]
    names = (value.name, *(known_place[1].name for known_place in known.values()))
    return Copy(
        instruction.name,
        value.size_bytes,
        value.name,
        allocation.index,
        instruction.op_name,
        next(filter(None, map(plan.nearest_source, names)), None),
        sources,
        updates,
        _has(dataflow, written, frozenset({"transpose"})) or _changes_layout(dataflow, written),
        (shapes or [value.shape])[0].memory_space,
        value.shape.memory_space,
        executions(dataflow.module).get(written.computation.name, 1),
    )


def _bytes(operand: Value, elements: int) -> int:
    return (operand.shape.size_bytes or 0) * elements // (operand.shape.elements or 1)


def _moved(
    dataflow: Dataflow, instruction: Instruction
) -> Iterator[tuple[Path, Mapping[int, int]]]:
    """The elements of an instruction's result that are only moved; others are computed.

    XLA fuses a copy with arithmetic that reads the same operand.

    Yields:
      The index of the element, and how many elements of each operand it has, by position.
    """
    if instruction.opcode in opcodes.MOVES:
        result: Path = (0,) if instruction.opcode == "copy-start" else ()
        elements = instruction.shape.at(result).elements
        yield result, dict.fromkeys(_data_operands(instruction), elements)
        return
    starts = instruction.opcode == "async-start" and instruction.shape.is_tiled
    if instruction.opcode != "fusion" and not starts:
        return
    for name in instruction.called_computations[:1]:
        body = dataflow.module.computations.get(name)
        if body is None or body.opcodes.isdisjoint(opcodes.MOVES | opcodes.RUNS_ONCE | {"fusion"}):
            continue
        root = body.by_name[body.root]
        for index, output in enumerate(root.operands if root.opcode == "tuple" else (root.name,)):
            if output in body.by_name and _moves_alone(_feeding(dataflow, body, output)):
                path = (index,) if root.opcode == "tuple" else ()
                yield ((1, *path) if starts else path), _parameter_sources(body, output)


def _parameter_sources(body: Computation, output: str) -> dict[int, int]:
    """How many elements of each parameter of a computation `output` has, by its number."""
    elements = {output: body.by_name[output].shape.elements}
    for instruction in reversed(body.instructions):
        moved = elements.get(instruction.name, 0)
        for position in _data_operands(instruction) if moved else ():
            name = instruction.operands[position]
            operand = body.by_name.get(name)
            if operand is not None:
                most = min(moved, operand.shape.elements)
                elements[name] = max(elements.get(name, 0), most)
    return {
        number: elements[parameter.name]
        for number, parameter in body.parameters.items()
        if number is not None and parameter.name in elements
    }


def _data_operands(instruction: Instruction) -> range | list[int]:
    """Positions of the operands of a move whose elements are in its result, not its indices."""
    count = len(instruction.operands)
    match instruction.opcode:
        case "dynamic-slice":
            return range(min(count, 1))
        case "dynamic-update-slice":
            return range(min(count, 2))
        case "scatter":  # of n operands: those, the indices, and n updates
            return [position for position in range(count) if 2 * position + 1 != count]
        case "select":
            return range(1, count)
        case "clamp" | "compare":
            return range(0)
    return range(count)


def only_moves(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether an instruction moves data and computes nothing from it."""
    if instruction.opcode in opcodes.MOVES:
        return True
    return instruction.opcode == "fusion" and _moves_alone(
        inner.instruction for inner in dataflow.body(instruction)
    )


def _moves_alone(instructions: Iterable[Instruction]) -> bool:
    """Whether the instructions contain a move, and no computation on the data."""
    moves = False
    for instruction in instructions:
        if instruction.opcode in opcodes.MOVES:
            moves = True
        elif instruction.opcode in _INDEX_ARITHMETIC and instruction.shape.element in _INTEGERS:
            continue
        elif instruction.opcode not in _NO_ARITHMETIC:
            return False
    return moves


def _feeding(dataflow: Dataflow, body: Computation, name: str) -> Iterator[Instruction]:
    """The instruction `name` of `body`, all that it is computed from, and what these call."""
    pending, seen = [name], set[str]()
    while pending:
        current = pending.pop()
        if current in seen or current not in body.by_name:
            continue
        seen.add(current)
        instruction = body.by_name[current]
        yield instruction
        yield from (inner.instruction for inner in dataflow.body(instruction))
        pending.extend(instruction.operands)


def _has(dataflow: Dataflow, value: Value, opcode: frozenset[str]) -> bool:
    """Whether the instruction that writes `value`, or its body, has one of the opcodes."""
    inside = {inner.instruction.opcode for inner in dataflow.body(value.instruction)}
    return not opcode.isdisjoint(inside | {value.instruction.opcode})


def _changes_layout(dataflow: Dataflow, value: Value) -> bool:
    """Whether a copy has its dimensions in another order in memory than its operand."""
    for inner in (value, *dataflow.body(value.instruction)):
        operand = dataflow.operand(inner, 0)
        if inner.instruction.opcode in opcodes.COPIES and operand is not None:
            shapes = inner.instruction.shape, operand.shape
            written, read = ([array.order for array in shape.arrays[:1]] for shape in shapes)
            if written != read:
                return True
    return False


# Opcodes that write the elements of their operand unchanged, or converted, to new memory.
_REWRITES = opcodes.EXTENDS | {"convert"}


class UndefinedCopy(NamedTuple):
    """An instruction that writes undefined data of a buffer to other memory."""

    instruction: str
    buffer: str
    size_bytes: int
    op_name: str | None
    source: SourceLine | None


def undefined_copies(plan: Plan) -> tuple[UndefinedCopy, ...] | None:
    """Every copy of undefined data, in schedule order; None without a complete HLO module."""
    if plan.module is None or not plan.module.complete:
        return None
    return tuple(_find(plan, dataflow_of(plan.module)))


def _find(plan: Plan, dataflow: Dataflow) -> Iterator[UndefinedCopy]:
    copied_bytes = {copy.instruction: copy.copied_bytes for copy in find_copies(plan)}
    for computation, instruction in dataflow.module.scheduled():
        name = instruction.name
        if name not in copied_bytes and not _rewrites(dataflow, instruction):
            continue
        sizes = (value.size_bytes for _, value in plan.values_of_instruction.get(name, ()))
        size_bytes = copied_bytes.get(name) or max(sizes, default=0)
        for operand in dataflow.operands(Value(computation, instruction)):
            buffer = dataflow.definition(operand).instruction
            if buffer.custom_call_target == opcodes.ALLOCATE_BUFFER:
                source = plan.nearest_source(name) or plan.nearest_source(buffer.name)
                yield UndefinedCopy(name, buffer.name, size_bytes, instruction.op_name, source)


def _rewrites(dataflow: Dataflow, instruction: Instruction) -> bool:
    """Whether the instruction only writes the data of an operand to other memory."""
    if instruction.opcode in _REWRITES:
        return True
    if instruction.opcode != "fusion" or only_moves(dataflow, instruction):
        return False  # a move to other memory is in `find_copies`; one in place is not a copy
    inside = {inner.instruction.opcode for inner in dataflow.body(instruction)}
    allowed = _REWRITES | opcodes.RENAMES | {"copy", "parameter"}
    return bool(inside & _REWRITES) and inside <= allowed
