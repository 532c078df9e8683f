"""Convert what XLA spells differently in proto, HLO text and used values to one form."""

from collections.abc import Iterator, Mapping, Sequence

from xlapipe.plans import Computation, Instruction
from xlapipe.plans.opcodes import STARTS, WAITS

# Opcodes with these endings that are not short spellings of async-start, -update or -done.
_OPCODES = STARTS | WAITS
_ASYNC = {"start": "async-start", "update": "async-update", "done": "async-done"}


def opcode_of(spelling: str) -> str:
    """XLA's opcode; XLA prints `fusion-start` for an `async-start` that wraps a fusion."""
    _, _, ending = spelling.rpartition("-")
    if ending not in _ASYNC or spelling in _OPCODES or spelling == "dynamic-update":
        return spelling
    return _ASYNC[ending]


_TupleElement = tuple[str, tuple[int, ...]]
"""Name of the instruction that makes a tuple, and the shape index of an element."""


def without_tuple_elements(
    instructions: Sequence[Instruction], root: str
) -> tuple[Instruction, ...]:
    """Remove every get-tuple-element except a root; its users name the tuple's producer instead.

    The HLO text of jaxlib 0.11 and later prints an operand as `%while.1#2` and no
    get-tuple-element, so the names of those instructions are unknown.
    """
    element_of: dict[str, _TupleElement] = {}
    for instruction in instructions:
        if instruction.opcode == "get-tuple-element" and len(instruction.operands) == 1:
            index = instruction.operand_indices
            element_of[instruction.name] = (instruction.operands[0], index[0] if index else ())
    if not element_of:
        return tuple(instructions)
    return tuple(
        _with_operands(instruction, element_of)
        for instruction in instructions
        if instruction.name not in element_of or instruction.name == root
    )


def _resolve(name: str, element_of: dict[str, _TupleElement]) -> _TupleElement:
    """Follow the chain of get-tuple-elements from `name` to the instruction that makes the tuple.

    Every link is changed to point to the end, so no chain is followed twice. A cycle, which only
    a damaged module has, ends at one of its links.
    """
    chain: list[_TupleElement] = []
    while (element := element_of.get(name)) is not None and element[0] != name:
        chain.append((name, element[1]))
        element_of[name] = (name, ())
        name = element[0]
    index: tuple[int, ...] = element[1] if element is not None else ()
    for link, step in reversed(chain):
        index = (*index, *step)
        element_of[link] = (name, index)
    return name, index


def _with_operands(instruction: Instruction, element_of: dict[str, _TupleElement]) -> Instruction:
    operands, indices = instruction.operands, instruction.operand_indices
    if not any(name in element_of for name in operands):
        return instruction
    resolved = [_resolve(name, element_of) for name in operands]
    paths = tuple(
        (*index, *(indices[position] if position < len(indices) else ()))
        for position, (_, index) in enumerate(resolved)
    )
    return instruction._replace(
        operands=tuple([name for name, _ in resolved]),
        operand_indices=paths if any(paths) else (),
    )


def in_call_order(computations: Mapping[str, Computation], entry: str) -> dict[str, Computation]:
    """Order computations: each one after those that it calls, in call order; the entry last.

    The proto and the text list them in different orders. Computations that the entry cannot reach
    come first, by name.
    """
    ordered: dict[str, Computation] = {}
    visited = {entry}
    path = [(entry, _calls(computations[entry]))]
    while path:
        name, calls = path[-1]
        called = next((c for c in calls if c not in visited and c in computations), None)
        if called is None:
            ordered[name] = computations[name]
            path.pop()
        else:
            visited.add(called)
            path.append((called, _calls(computations[called])))
    unreachable = sorted(computations.keys() - visited)
    return {name: computations[name] for name in unreachable} | ordered


def _calls(computation: Computation) -> Iterator[str]:
    return (
        called
        for instruction in computation.instructions
        for called in instruction.called_computations
    )
