"""Bytes that one kernel reads and writes in device memory.

Bytes as touched, not as shaped: see `elements`. An update whose result has the same memory as the
updated operand is done in place: it writes only the update. What a Pallas kernel addresses in an
operand that it updates in place is unknown.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from xlapipe.devices.platforms import platform_named
from xlapipe.plans import Computation, HloModule, Instruction, Plan, Shape
from xlapipe.plans.buffers import value_name
from xlapipe.plans.dataflow import Value, dataflow_of, operand_index
from xlapipe.plans.kernel_code import KernelCode
from xlapipe.plans.leaf_writes import Update, update_of
from xlapipe.time.cost.elements import ElementCounts, size_of
from xlapipe.time.cost.library_calls import library_call

# A loop carries its values in place.
_IN_PLACE = frozenset({"while"})


@dataclass(frozen=True, slots=True)
class Access:
    """A read of an operand, or a write of a result.

    Attributes:
      memory: of the array; see `MemoryOf`.
      size_bytes: bytes that are read or written.
      whole_bytes: bytes of the array.
    """

    memory: Hashable
    size_bytes: int
    whole_bytes: int


@dataclass(frozen=True, slots=True)
class Touched:
    """What a kernel touches in one launch.

    Attributes:
      unknown_bytes: the most that it may touch beyond `reads` and `writes`.
    """

    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    unknown_bytes: int = 0

    @property
    def read_bytes(self) -> int:
        return sum(read.size_bytes for read in self.reads)

    @property
    def written_bytes(self) -> int:
        return sum(write.size_bytes for write in self.writes)

    def of_total(self, total_bytes: int) -> "Touched":
        """The same accesses with this number of bytes in total.

        Writes are kept whole if the bytes are enough for them. The rest are reads of each operand
        in proportion to its size; bytes beyond all operands are repeated reads.
        """
        writes = _scaled(self.writes, total_bytes)
        rest_bytes = total_bytes - sum(write.size_bytes for write in writes)
        reads = _scaled(self.reads, rest_bytes)
        again_bytes = rest_bytes - sum(read.size_bytes for read in reads)
        return Touched((*reads, Access("again", again_bytes, again_bytes)), writes)


def _scaled(accesses: tuple[Access, ...], most_bytes: int) -> tuple[Access, ...]:
    """The same accesses scaled in proportion to at most this number of bytes in total."""
    whole_bytes = sum(access.size_bytes for access in accesses)
    if whole_bytes <= most_bytes:
        return accesses
    return tuple(
        replace(access, size_bytes=access.size_bytes * most_bytes // whole_bytes)
        for access in accesses
    )


class MemoryOf:
    """The memory of operands and results of one plan: allocation and offset.

    Across bitcasts, tuples, loops and calls.
    """

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self._plan = plan
        self._dataflow = dataflow_of(module)

    @cached_property
    def _address_of_value(self) -> Mapping[str, tuple[int, int]]:
        return {
            value.name: (allocation.index, value.offset_bytes)
            for allocation in self._plan.allocations
            for value in allocation.values
        }

    def operand(self, scope: Computation, instruction: Instruction, position: int) -> Hashable:
        """The memory of an operand: (allocation, offset), or a name if the dump lacks it."""
        path = operand_index(instruction, position)
        operand = scope.by_name.get(instruction.operands[position])
        if operand is None:
            return (instruction.operands[position], path)
        value = read = Value(scope, operand, path)
        for value in self._dataflow.steps_to_definition(read, _IN_PLACE, into_loops=True):
            if (address := self._address_of_value.get(value.name)) is not None:
                return address
        return (value.instruction.name, value.path)

    def result(self, instruction: Instruction, path: tuple[int, ...]) -> Hashable:
        """The memory of the result, or of an element of it."""
        address = self._address_of_value.get(value_name(instruction.name, path))
        return address if address is not None else (instruction.name, path)


class TouchedBytes:
    """`Touched` of each instruction of one plan."""

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self._module = module
        self._chip_spaces = platform_named(plan.platform).chip_spaces
        self._counts = ElementCounts(module)
        self._memory = MemoryOf(plan, module)

    def of(self, instruction: Instruction, scope: Computation) -> Touched:
        if instruction.opcode == "custom-call":
            return self._custom_call(instruction, scope)
        updates = dict(self._updates(instruction, scope))
        in_place = frozenset(update.instruction.name for update in updates.values())
        sizes = self._counts.of_operands(instruction, scope, in_place)
        reads = self._reads(instruction, scope, sizes)
        writes = []
        for path, shape in self._written(instruction, scope):
            if shape.memory_space in self._chip_spaces:
                continue
            whole_bytes = size_of(shape)
            written = updates[path].inserted_bytes if path in updates else whole_bytes
            memory = self._memory.result(instruction, path)
            writes.append(Access(memory, min(written, whole_bytes), whole_bytes))
        return Touched(reads, tuple(writes))

    def _reads(
        self, instruction: Instruction, scope: Computation, sizes: tuple[int, ...]
    ) -> tuple[Access, ...]:
        """The reads: operands in the same memory are one read, and the whole is counted once."""
        reads: dict[Hashable, Access] = {}
        for position, read_bytes in enumerate(sizes):
            operand = scope.by_name.get(instruction.operands[position])
            if operand is None or not read_bytes:
                continue
            shape = operand.shape.at(operand_index(instruction, position))
            if shape.memory_space in self._chip_spaces:
                continue
            memory = self._memory.operand(scope, instruction, position)
            whole_bytes = size_of(shape)
            earlier = reads.get(memory, Access(memory, 0, 0))
            whole_bytes = max(whole_bytes, earlier.whole_bytes)
            together = min(read_bytes + earlier.size_bytes, whole_bytes)
            reads[memory] = Access(memory, together, whole_bytes)
        return tuple(reads.values())

    def _custom_call(self, instruction: Instruction, scope: Computation) -> Touched:
        sizes = self._counts.of_operands(instruction, scope)
        reads = self._reads(instruction, scope, sizes)
        library = library_call(instruction, scope, self._module) is not None
        writes = [
            Access(self._memory.result(instruction, path), size_bytes, size_bytes)
            for path, shape in self._written(instruction, scope)
            if (size_bytes := size_of(shape)) and shape.memory_space not in self._chip_spaces
        ]
        if library:
            return Touched(reads, tuple(writes))
        in_place = {write.memory for write in writes} & {read.memory for read in reads}
        unknown = [item.size_bytes for item in (*reads, *writes) if item.memory in in_place]
        return Touched(
            tuple(read for read in reads if read.memory not in in_place),
            tuple(write for write in writes if write.memory not in in_place),
            sum(unknown),
        )

    def _written(
        self, instruction: Instruction, scope: Computation
    ) -> list[tuple[tuple[int, ...], Shape]]:
        """The results, without the scratch memory that libraries get as the last one."""
        results = list(_results(instruction))
        if len(results) > 1 and library_call(instruction, scope, self._module) is not None:
            results.pop()
        return results

    def of_code(self, instruction: Instruction, scope: Computation, code: KernelCode) -> Touched:
        """What a Pallas kernel touches by its own code: of each array at most what it loads or
        stores. Where data decide on that, the whole counts, unless it is updated in place.
        """
        results = [self._memory.result(instruction, path) for path, _ in _results(instruction)]
        given = range(len(code.operand_bytes))
        operands = [self._memory.operand(scope, instruction, position) for position in given]
        in_place = set(results) & set(operands)
        sizes = [
            tuple(
                whole_bytes
                if code.undecided and part and memory not in in_place
                else min(whole_bytes, part)
                for part in parts
            )
            for memory, parts, whole_bytes in zip(
                (*operands, *results),
                zip(code.loaded_bytes, code.stored_bytes, strict=True),
                (*code.operand_bytes, *code.result_bytes),
                strict=True,
            )
        ]
        reads = self._reads(instruction, scope, tuple(sizes[position][0] for position in given))
        loads, writes = [], []
        for memory, (loaded, stored), whole_bytes in zip(
            results, sizes[len(operands) :], code.result_bytes, strict=True
        ):
            loads += [Access(memory, loaded, whole_bytes)] if loaded else []
            writes += [Access(memory, stored, whole_bytes)] if stored else []
        return Touched((*reads, *loads), tuple(writes))

    def _updates(
        self, instruction: Instruction, scope: Computation
    ) -> Iterator[tuple[tuple[int, ...], Update]]:
        """The updates that make results in place, by path of the result."""
        for path, _ in _results(instruction):
            update = update_of(self._module, scope, instruction, path)
            if update is None or update.position >= len(instruction.operands):
                continue
            updated = self._memory.operand(scope, instruction, update.position)
            if self._memory.result(instruction, path) == updated:
                yield path, update


def _results(instruction: Instruction) -> Iterator[tuple[tuple[int, ...], Shape]]:
    """Path and shape of each array of the result."""
    shape = instruction.shape
    if not shape.is_tuple:
        yield (), shape
        return
    arrays = shape.arrays
    if instruction.opcode == "copy-start":
        arrays = arrays[:1]  # the others are its operand and a handle
    nested = any(part.is_tuple for part in shape.parts)
    # Nested tuples are results of async starts only, whose kernels are those that they wrap.
    yield from (
        ((index,), array)
        for index, array in enumerate(arrays)
        if not nested or array.size_bytes is not None
    )
