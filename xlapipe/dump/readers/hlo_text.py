"""Parse HLO text: `*after_optimizations.txt`, a module as XLA prints it."""

import re
from dataclasses import dataclass

from xlapipe.dump.readers.hlo_header import Donor, parse_header
from xlapipe.dump.readers.hlo_instruction import InstructionParser
from xlapipe.dump.readers.hlo_spellings import in_call_order, without_tuple_elements
from xlapipe.dump.readers.source_lines import SourceLines
from xlapipe.dump.readers.source_text import (
    COPY_AGAIN,
    DUMP_AGAIN_OR_REPORT,
    LineReader,
    SourceText,
    shown,
)
from xlapipe.plans import Computation, HloModule, InputOutputAlias, Instruction
from xlapipe.plans.call_chains import CallChains

_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s%{}()]+) .*\{")


@dataclass(frozen=True)
class ParsedModule:
    """A module, and the aliases and buffer donors of its header."""

    module: HloModule
    aliases: tuple[InputOutputAlias, ...]
    buffer_donors: tuple[Donor, ...]


def parse_hlo(source: SourceText, source_lines: SourceLines | None = None) -> ParsedModule:
    lines = LineReader(source)
    header = parse_header(lines)
    known_frames = None if source_lines is None else source_lines.frame_of
    chains = CallChains(header.frames) if source_lines is None else source_lines.chains
    parser = InstructionParser(lines, chains, known_frames)
    computations: dict[str, Computation] = {}
    entry: str | None = None
    lines.skip_blank()
    while lines.following is not None:
        match = lines.expect(_COMPUTATION, "a computation `%name (…) -> shape {`")
        name = match[2]
        if name in computations:
            lines.fail("distinct names of computations", f"{shown(name)} twice")
        if match[1]:
            if entry is not None:
                lines.fail("one ENTRY", "a second one")
            entry = name
        computations[name] = _parse_computation(lines, parser, name)
        lines.skip_blank()
    if entry is None:
        source.fail(len(source.lines), "an ENTRY computation", "none", COPY_AGAIN)
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


def _parse_computation(lines: LineReader, parser: InstructionParser, name: str) -> Computation:
    """The computation whose heading was read last."""
    heading = lines.number
    instructions: list[Instruction] = []
    root: str | None = None
    while (line := lines.following) is not None and not line.startswith("}"):
        lines.number += 1
        instruction, is_root = parser.parse(line)
        if is_root:
            if root is not None:
                lines.fail("one ROOT in a computation", "a second one")
            root = instruction.name
        instructions.append(instruction)
    if lines.following is None:
        expected = f"`}}` at the end of computation {name}"
        lines.fail(expected, "the end of the file", COPY_AGAIN)
    lines.number += 1
    source, known = lines.source, {instruction.name for instruction in instructions}
    if root is None:
        source.fail(heading, f"a ROOT in computation {name}", "none", DUMP_AGAIN_OR_REPORT)
    if len(known) != len(instructions):
        expected = f"distinct names in computation {name}"
        source.fail(heading, expected, "one twice", DUMP_AGAIN_OR_REPORT)
    for number, instruction in enumerate(instructions, start=heading + 1):
        if not known.issuperset(instruction.operands):
            source.fail_at(number, f"operands from computation {name}")
    return Computation(name, without_tuple_elements(instructions, root), root)
