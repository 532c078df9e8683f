"""One form for what the proto, the HLO text and `from instruction:` lines spell differently."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

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


def without_tuple_elements(
    instructions: Sequence[Instruction], root: str
) -> tuple[Instruction, ...]:
    """Leaves out every get-tuple-element but a root; its users name the tuple's maker instead.

    The HLO text of jaxlib 0.11 and later prints `%while.1#2` for an operand and no
    get-tuple-element, so that their names are not there to read.
    """
    maker: dict[str, str] = {}
    for instruction in instructions:
        if instruction.opcode == "get-tuple-element" and len(instruction.operands) == 1:
            maker[instruction.name] = instruction.operands[0]
    if not maker:
        return tuple(instructions)
    return tuple(
        _with_operands(instruction, [_resolve(name, maker) for name in instruction.operands])
        for instruction in instructions
        if instruction.name not in maker or instruction.name == root
    )


def _resolve(name: str, maker: dict[str, str]) -> str:
    """The end of the chain of get-tuple-elements that begins at `name`.

    Every link is made to lead to the end, so that no chain is followed twice. A circle, which no
    module has, ends at one of its own links.
    """
    chain: list[str] = []
    while (made_by := maker.get(name)) is not None and made_by != name:
        chain.append(name)
        maker[name] = name
        name = made_by
    for link in chain:
        maker[link] = name
    return name


def _with_operands(instruction: Instruction, operands: Iterable[str]) -> Instruction:
    resolved = tuple(operands)
    if resolved == instruction.operands:
        return instruction
    return Instruction(
        instruction.name,
        instruction.opcode,
        instruction.shape,
        resolved,
        instruction.parameter_number,
        instruction.called_computations,
        instruction.fusion_kind,
        instruction.custom_call_target,
        instruction.op_name,
        instruction.source,
        instruction.backend_config,
        instruction.collective,
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
