"""How many elements of its operands an instruction reads, given how many of its own are needed.

A gather, a slice and a dynamic-slice read what they address; an in-place update reads nothing of
what it updates. Fusion bodies are followed from the root to the parameters.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from xlapipe.plans import opcodes
from xlapipe.plans.dataflow import operand_index
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.shapes import Shape

# Every element of the result needs at most one element of each operand. (The other operands of a
# dynamic-slice are scalars.)
_ONE_FOR_ONE = (
    opcodes.ELEMENTWISE
    | opcodes.EXTENDS
    | opcodes.RESHAPES
    | opcodes.REARRANGES
    | {"copy", "opt-barrier"}
)


class Array(NamedTuple):
    """Elements and bytes of an array."""

    elements: int
    size_bytes: int


def array_of(shape: Shape) -> Array:
    """Elements and bytes of all arrays of a shape; (0, 0) if they have no static size."""
    return Array(shape.elements, shape.size_bytes or 0)


class ElementCounts:
    """Counter of the elements that are read, for the instructions of one module."""

    def __init__(self, module: HloModule) -> None:
        self._module = module

    def of_operands(
        self, instruction: Instruction, scope: Computation, in_place: Collection[str] = ()
    ) -> tuple[int, ...]:
        """Bytes that `instruction` reads of each operand when all of its result is needed.

        Args:
          scope: the computation that contains it.
          in_place: names of the updates in its body (or its own name) that are done in place.
        """
        needed = array_of(instruction.shape).elements
        counts = self._reads(instruction, scope.by_name, needed, in_place)
        return tuple(counts)

    def body_of(self, instruction: Instruction) -> Computation | None:
        """The computation that a fusion or call runs."""
        if instruction.opcode in opcodes.HAS_BODY:
            return self._module.computations[instruction.called_computations[0]]
        return None

    def combiner_reads(self, scatter: Instruction) -> bool:
        """Whether a scatter reads the old value, as when it adds; not if it only overwrites."""
        combiner = self._module.computations[scatter.called_computations[0]]
        return combiner.by_name[combiner.root].opcode != "parameter"

    def _parameters(
        self, body: Computation, needed: int, in_place: Collection[str]
    ) -> Mapping[int, int]:
        """Bytes that a body reads of each parameter, by number.

        Args:
          needed: elements of the root; those of a tuple are all needed.
        """
        elements: dict[str, int] = {body.root: needed}
        reads: dict[int, int] = {}
        for instruction in reversed(body.instructions):
            count = elements.get(instruction.name)
            if count is None:
                continue
            own = array_of(instruction.shape)
            count = min(count, own.elements)
            if instruction.parameter_number is not None:
                reads[instruction.parameter_number] = _bytes_of(count, own)
                continue
            # Most instructions: skipping the bytes of their operands saves a third of the time.
            if instruction.opcode in _ONE_FOR_ONE and not instruction.operand_indices:
                for name in instruction.operands:
                    shape = body.by_name[name].shape
                    elements[name] = elements.get(name, 0) + min(count, shape.elements)
                continue
            operand_bytes = self._reads(instruction, body.by_name, count, in_place)
            for name, size_bytes in zip(instruction.operands, operand_bytes, strict=True):
                operand = array_of(body.by_name[name].shape)
                elements[name] = elements.get(name, 0) + _elements_of(size_bytes, operand)
        return reads

    def _reads(
        self,
        instruction: Instruction,
        by_name: Mapping[str, Instruction],
        needed: int,
        in_place: Collection[str],
    ) -> list[int]:
        """Bytes that `instruction` reads of each operand if `needed` of its elements are needed."""
        opcode = instruction.opcode
        operands = [
            _operand_array(by_name, instruction, k) for k in range(len(instruction.operands))
        ]
        if opcode in _ONE_FOR_ONE:
            return [_bytes_of(needed, array) for array in operands]
        if opcode == "gather":
            table, *indices = operands
            return [_bytes_of(needed, table), *(array.size_bytes for array in indices)]
        if opcode == "dynamic-update-slice":
            return self._update(instruction, operands, needed, in_place)
        if opcode == "scatter":
            return self._scatter(instruction, operands, in_place)
        if opcode == "reduce":
            result = array_of(instruction.shape).elements
            return [_bytes_of(needed, array._replace(elements=result)) for array in operands]
        if opcode == "bitcast-convert":
            own = array_of(instruction.shape)
            return [min(_bytes_of(needed, own), array.size_bytes) for array in operands]
        body = self.body_of(instruction)
        if body is not None:
            reads = self._parameters(body, needed, in_place)
            return [
                min(reads.get(number, 0), array.size_bytes) for number, array in enumerate(operands)
            ]
        return [array.size_bytes for array in operands]

    def _update(
        self,
        instruction: Instruction,
        operands: list[Array],
        needed: int,
        in_place: Collection[str],
    ) -> list[int]:
        updated, update, *indices = operands
        kept = 0 if instruction.name in in_place else max(0, needed - update.elements)
        return [
            _bytes_of(kept, updated),
            _bytes_of(needed, update),
            *(array.size_bytes for array in indices),
        ]

    def _scatter(
        self, instruction: Instruction, operands: list[Array], in_place: Collection[str]
    ) -> list[int]:
        """Operands of a scatter: n arrays, the indices, n updates."""
        count = len(operands) // 2
        sizes = [array.size_bytes for array in operands]
        if instruction.name in in_place:
            updates = sizes[count + 1 :]
            reads_old = self.combiner_reads(instruction)
            sizes[:count] = [
                min(size, update) if reads_old else 0
                for size, update in zip(sizes[:count], updates, strict=True)
            ]
        return sizes


def _operand_array(
    by_name: Mapping[str, Instruction], instruction: Instruction, position: int
) -> Array:
    """The array that an operand is, or the element of a tuple that it names."""
    operand = by_name[instruction.operands[position]]
    return array_of(operand.shape.at(operand_index(instruction, position)))


def _bytes_of(elements: int, array: Array) -> int:
    """Bytes of this number of elements of an array, at most all of them."""
    if elements >= array.elements:
        return array.size_bytes
    return -(-array.size_bytes * elements // array.elements)


def _elements_of(size_bytes: int, array: Array) -> int:
    if size_bytes >= array.size_bytes:
        return array.elements
    return -(-array.elements * size_bytes // array.size_bytes)
