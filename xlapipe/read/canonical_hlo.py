"""One form for what the proto, the HLO text and `from instruction:` lines spell differently."""

from collections.abc import Iterator, Mapping, Sequence

from xlapipe.plan import Computation, Instruction

# Opcodes that end so without being the short spelling of an async-start, -update or -done.
_REAL = frozenset(
    {
        "all-gather-done",
        "all-gather-start",
        "all-reduce-done",
        "all-reduce-start",
        "async-done",
        "async-start",
        "async-update",
        "collective-permute-done",
        "collective-permute-start",
        "copy-done",
        "copy-start",
        "recv-done",
        "send-done",
    }
)
_ASYNC = {"start": "async-start", "update": "async-update", "done": "async-done"}


def opcode_of(spelling: str) -> str:
    """XLA's opcode: `fusion-start` is printed for an `async-start` that wraps a fusion."""
    _, _, ending = spelling.rpartition("-")
    if ending not in _ASYNC or spelling in _REAL or spelling == "dynamic-update":
        return spelling
    return _ASYNC[ending]


_Element = tuple[str, tuple[int, ...]]


def without_tuple_elements(
    instructions: Sequence[Instruction], root: str
) -> tuple[Instruction, ...]:
    """Leaves out every get-tuple-element but a root; its users name the tuple's maker instead.

    The HLO text of jaxlib 0.11 and later prints `%while.1#2` for an operand and no
    get-tuple-element, so that their names are not there to read.
    """
    maker: dict[str, _Element] = {}
    for instruction in instructions:
        if instruction.opcode == "get-tuple-element" and len(instruction.operands) == 1:
            index = instruction.operand_indices
            maker[instruction.name] = (instruction.operands[0], index[0] if index else ())
    if not maker:
        return tuple(instructions)
    return tuple(
        _with_operands(instruction, maker)
        for instruction in instructions
        if instruction.name not in maker or instruction.name == root
    )


def _resolve(name: str, maker: dict[str, _Element]) -> _Element:
    """The end of the chain of get-tuple-elements that begins at `name`, and the element's index.

    Every link is made to lead to the end, so that no chain is followed twice. A circle, which no
    module has, ends at one of its own links.
    """
    chain: list[_Element] = []
    while (made_by := maker.get(name)) is not None and made_by[0] != name:
        chain.append((name, made_by[1]))
        maker[name] = (name, ())
        name = made_by[0]
    index: tuple[int, ...] = made_by[1] if made_by is not None else ()
    for link, step in reversed(chain):
        index = (*index, *step)
        maker[link] = (name, index)
    return name, index


def _with_operands(instruction: Instruction, maker: dict[str, _Element]) -> Instruction:
    operands, indices = instruction.operands, instruction.operand_indices
    if not any(name in maker for name in operands):
        return instruction
    resolved = [_resolve(name, maker) for name in operands]
    paths = tuple(
        (*index, *(indices[position] if indices else ()))
        for position, (_, index) in enumerate(resolved)
    )
    return instruction._replace(
        operands=tuple([name for name, _ in resolved]),
        operand_indices=paths if any(paths) else (),
    )


def in_call_order(computations: Mapping[str, Computation], entry: str) -> dict[str, Computation]:
    """Every computation behind those it calls, in the order of the calls; the entry comes last.

    The proto and the text list them in different orders. What the entry does not lead to comes
    first, by name.
    """
    ordered: dict[str, Computation] = {}
    begun = {entry}
    path = [(entry, _calls(computations[entry]))]
    while path:
        name, calls = path[-1]
        called = next((c for c in calls if c not in begun and c in computations), None)
        if called is None:
            ordered[name] = computations[name]
            path.pop()
        else:
            begun.add(called)
            path.append((called, _calls(computations[called])))
    rest = sorted(computations.keys() - begun)
    return {name: computations[name] for name in rest} | ordered


def _calls(computation: Computation) -> Iterator[str]:
    return (
        called
        for instruction in computation.instructions
        for called in instruction.called_computations
    )
