"""The text of a module, cut into computations and instructions: XLA's own and the normal form.

Both have one grammar, which `xlapipe.dump.readers` knows. In the normal form names of computations
are `computation_1` and the like, without `%`, and the entry is called `ENTRY`.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xlapipe.dump.readers.hlo_header import TABLES
from xlapipe.dump.readers.hlo_syntax import bracket_end, instruction_head

NAME = re.compile(r"%([\w.\-]+)")
"""The name of an instruction, where it is defined or read."""

COMPUTATION = re.compile(r"\b(computation_\d+)\b")
"""The name of a computation in normal form."""

_HEADING = re.compile(r"(?P<entry>ENTRY )?(?:%?(?P<name>[^\s(]+) )?(?P<signature>\(.*)\{$")
_METADATA = ", metadata="


@dataclass(frozen=True, eq=False)
class InstructionText:
    """The line of an instruction; name and opcode are empty for a line of another form."""

    text: str
    name: str = ""
    opcode: str = ""
    is_root: bool = False
    operands_start: int = 0

    @classmethod
    def of(cls, text: str) -> "InstructionText":
        """Reads a line."""
        head = instruction_head(text)
        if head is None:
            return cls(text)
        return cls(text, head.name, head.opcode, head.is_root, head.operands_start)

    @property
    def definition(self) -> str:
        """Its shape, opcode, operands and attributes."""
        return self.text.partition(" = ")[2]

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of its operands."""
        return tuple(NAME.findall(self.text, self.operands_start))


@dataclass(frozen=True)
class ComputationText:
    """A computation; `signature` is what follows its name in the heading, up to the bracket."""

    name: str
    is_entry: bool
    signature: str
    instructions: Sequence[InstructionText]

    @property
    def root(self) -> InstructionText | None:
        """The instruction that the computation returns."""
        return next((line for line in self.instructions if line.is_root), None)


def read_module_text(text: str) -> tuple[str, dict[str, ComputationText]]:
    """The first line of a module, and its computations by name.

    Tables of stack frames and `metadata={…}` are left out.
    """
    header = ""
    computations: dict[str, ComputationText] = {}
    instructions: list[InstructionText] = []
    for line in _without_tables(text.splitlines()):
        if line.startswith("  "):
            instructions.append(InstructionText.of(_without_metadata(line)))
        elif line.startswith("HloModule"):
            header = line
        elif (match := _HEADING.match(line)) is not None:
            name, is_entry = match["name"] or "ENTRY", match["entry"] is not None
            instructions = []
            computations[name] = ComputationText(name, is_entry, match["signature"], instructions)
    return header, computations


def names_by_calls(
    ordered: Mapping[str, Sequence[InstructionText]],
    entry: str,
    called_in: Callable[[str], Iterable[str]],
) -> dict[str, str]:
    """New names of the computations: the entry first, the others in the order of the calls.

    Args:
      called_in: names of the computations that an instruction's text names.
    """
    names: dict[str, str] = {}
    pending = deque([entry])
    while pending:
        name = pending.popleft()
        if name in names or name not in ordered:
            continue
        names[name] = f"computation_{len(names)}" if names else "ENTRY"
        for line in ordered[name]:
            pending += called_in(line.text)
    return names


def numbered(instructions: Iterable[InstructionText]) -> dict[str, str]:
    """Each instruction's place in the order, as its name."""
    return {line.name: str(number) for number, line in enumerate(instructions) if line.name}


def renamed(text: str, names: Mapping[str, str]) -> str:
    return NAME.sub(lambda match: f"%{names.get(match[1], match[1])}", text) if names else text


def _without_tables(lines: Iterable[str]) -> Iterator[str]:
    in_table = False
    for line in lines:
        in_table = line in TABLES or (in_table and (not line or line[0].isdigit()))
        if not in_table:
            yield line


def _without_metadata(line: str) -> str:
    start = line.find(f"{_METADATA}{{")
    if start < 0:
        return line
    end = bracket_end(line, start + len(_METADATA))
    return line[:start] + (line[end:] if end > 0 else "")
