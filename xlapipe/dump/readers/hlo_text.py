"""Parse HLO text: `*after_optimizations.txt`, a module as XLA prints it."""

import re
from dataclasses import dataclass

from xlapipe.dump.readers.canonical_hlo import in_call_order, without_tuple_elements
from xlapipe.dump.readers.hlo_header import Donor, parse_header
from xlapipe.dump.readers.hlo_instruction import InstructionParser
from xlapipe.dump.readers.source_lines import SourceLines
from xlapipe.dump.readers.source_text import COPY_AGAIN, DUMP_AGAIN_OR_REPORT, SourceText, shown
from xlapipe.plans import Computation, HloModule, InputOutputAlias, Instruction
from xlapipe.plans.call_chains import CallChains

_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s%{}()]+) ")


@dataclass(frozen=True)
class ParsedModule:
    """A module, and the aliases and buffer donors of its header."""

    module: HloModule
    aliases: tuple[InputOutputAlias, ...]
    buffer_donors: tuple[Donor, ...]


def parse_hlo(source: SourceText, source_lines: SourceLines | None = None) -> ParsedModule:
    """Parse a whole HLO text.

    Args:
      source_lines: source lines of the instructions, if the text has none.

    Raises:
      DumpError: the text has another form, or ends before the entry computation does.
    """
    header, position = parse_header(source)
    known_frames = None if source_lines is None else source_lines.frame_of
    chains = CallChains(header.frames) if source_lines is None else source_lines.chains
    parser = InstructionParser(source, chains, known_frames)
    lines = source.lines
    computations: dict[str, Computation] = {}
    entry: str | None = None
    while position < len(lines):
        line = lines[position]
        if not line.strip():
            position += 1
            continue
        match = _COMPUTATION.match(line)
        if match is None or not line.endswith("{"):
            source.fail_at(position + 1, "a computation `%name (…) -> shape {`")
        name = match[2]
        if name in computations:
            source.fail(
                position + 1,
                "distinct names of computations",
                f"{shown(name)} twice",
                DUMP_AGAIN_OR_REPORT,
            )
        if match[1]:
            if entry is not None:
                source.fail(position + 1, "one ENTRY", "a second one", DUMP_AGAIN_OR_REPORT)
            entry = name
        computations[name], position = _parse_computation(source, parser, name, position)
    if entry is None:
        source.fail(len(lines), "an ENTRY computation", "none", COPY_AGAIN)
    return ParsedModule(
        HloModule(
            header.name,
            in_call_order(computations, entry),
            entry,
            chains=CallChains(chains.frames, parser.frame_of),
        ),
        header.aliases,
        header.buffer_donors,
    )


def _parse_computation(
    source: SourceText, parser: InstructionParser, name: str, position: int
) -> tuple[Computation, int]:
    """The computation whose heading is line `position` (from 0), and the position after it."""
    lines, heading = source.lines, position + 1
    instructions: list[Instruction] = []
    root: str | None = None
    position += 1
    while position < len(lines) and not lines[position].startswith("}"):
        instruction, is_root = parser.parse(lines[position], position + 1)
        if is_root:
            if root is not None:
                source.fail(
                    position + 1, "one ROOT in a computation", "a second one", DUMP_AGAIN_OR_REPORT
                )
            root = instruction.name
        instructions.append(instruction)
        position += 1
    if position == len(lines):
        source.fail(
            position, f"`}}` at the end of computation {name}", "the end of the file", COPY_AGAIN
        )
    if root is None:
        source.fail(heading, f"a ROOT in computation {name}", "none", DUMP_AGAIN_OR_REPORT)
    known = {instruction.name for instruction in instructions}
    if len(known) != len(instructions):
        source.fail(
            heading, f"distinct names in computation {name}", "one twice", DUMP_AGAIN_OR_REPORT
        )
    for offset, instruction in enumerate(instructions):
        if not known.issuperset(instruction.operands):
            source.fail_at(heading + offset + 1, f"operands from computation {name}")
    return Computation(name, without_tuple_elements(instructions, root), root), position + 1
