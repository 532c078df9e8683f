"""Spellings of HLO that differ between the proto, the HLO text and `from instruction:` lines."""

from collections.abc import Iterable, Sequence

from xlapipe.plan import Instruction

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
    seen = 0
    while name in maker and seen <= len(maker):
        name = maker[name]
        seen += 1
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
    )
