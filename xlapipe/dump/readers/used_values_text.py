"""Parse `Used values:` of a buffer-assignment text: the instructions that define values.

They replace the module if there is no HLO text. They do not include fusion bodies and instructions
without a separate value (bitcasts, get-tuple-elements).
"""

import re
from collections.abc import Iterable

from xlapipe.dump.readers.hlo_instruction import InstructionParser
from xlapipe.dump.readers.source_text import COPY_AGAIN, LineReader, SourceText, shown
from xlapipe.plans import BufferAllocation, Computation, HloModule, Instruction
from xlapipe.plans.call_chains import CallChains

_HEADING = "Used values:"
_VALUE = re.compile(r"<\d+ ([^\s{}<>@]+(?:\{[\d,]*\})?)(?: \(phi\))? @-?\d+>")
_FROM = " from instruction: "
_LIVE_RANGES = "HloLiveRange"

COMPUTATION = "used values"
"""Name of the one computation that contains the instructions."""


def parse_used_values(
    source: SourceText, allocations: Iterable[BufferAllocation]
) -> HloModule | None:
    """The module in the section; None if there is no section."""
    if _HEADING not in source.lines:
        return None
    lines = LineReader(source, source.lines.index(_HEADING) + 1)
    parser = InstructionParser(lines, CallChains())
    instructions: dict[str, Instruction] = {}
    values: set[str] = set()
    pending: str | None = None
    while (line := lines.following) is not None and not line.startswith(_LIVE_RANGES):
        lines.number += 1
        if line.startswith("<"):
            match = _VALUE.fullmatch(line)
            if match is None or pending is not None:
                lines.fail_at("`<id name @color>` after the previous instruction")
            pending = match[1]
            values.add(pending)
        elif line.startswith(_FROM):
            if pending is None:
                lines.fail_at("`<id name @color>` before its instruction")
            name = pending.partition("{")[0]
            text, next_value = _split_next_value(line[len(_FROM) :])
            if name not in instructions:
                instruction, _ = parser.parse(text)
                if instruction.name != name:
                    lines.fail(f"instruction {name}", shown(instruction.name))
                instructions[name] = instruction
            pending = next_value
            values.update([next_value] if next_value else [])
        elif line and not (line in (" positions:", " uses:") or line.startswith("  ")):
            lines.fail_at("a line of `Used values:`")
    if pending is not None:
        expected = f"`{_FROM.strip()} …` of {pending}"
        lines.fail(expected, "the end of the section", COPY_AGAIN)
    for allocation in allocations:
        for value in allocation.values:
            if value.name not in values:
                lines.fail(f"value {value.name} among the used values", "none", COPY_AGAIN)
    computation = Computation(COMPUTATION, tuple(instructions.values()), root="")
    return HloModule(name="", computations={COMPUTATION: computation}, entry=None, complete=False)


def _split_next_value(text: str) -> tuple[str, str | None]:
    """The instruction's text, and the name of the value that follows it on the same line, if any.

    Up to jaxlib 0.4 there is no line end after the instruction of a phi.
    """
    start = text.rfind("<")
    match = _VALUE.fullmatch(text, start) if start > 0 else None
    return (text[:start], match[1]) if match else (text, None)
