"""Parse one instruction of HLO text.

    ROOT %dot.1 = f32[8,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, metadata={op_name="…"}

Operands are `%name`, `%name#1` (an element of a tuple, from jaxlib 0.11 on) or, up to 0.4,
`f32[8,8]{1,0} %name`.
"""

import re
from collections.abc import Mapping
from typing import TypedDict

from xlapipe.dump.readers.contraction import MAY_CONTRACT, contraction_of_text
from xlapipe.dump.readers.hlo_spellings import opcode_of
from xlapipe.dump.readers.hlo_syntax import (
    attribute_values,
    bracket_end,
    fields,
    instruction_head,
    unquote,
)
from xlapipe.dump.readers.instruction_attributes import (
    canonical_config,
    decode_at,
    integer_of_text,
    real_of_text,
    transfer_of_text,
)
from xlapipe.dump.readers.replica_groups import groups_of_text, pairs_of_text
from xlapipe.dump.readers.source_lines import source_line
from xlapipe.dump.readers.source_text import LineReader, shown, without_index_comments
from xlapipe.plans import Instruction, SourceLine
from xlapipe.plans.call_chains import CallChains
from xlapipe.plans.hlo import CollectiveGroups
from xlapipe.plans.opcodes import POINT_TO_POINT, WITH_GROUPS
from xlapipe.plans.shapes import shape_of, split_bracket

_ANNOTATED_OPERAND = re.compile(r"%([^\s,#%{}()]+)((?:#\d+)*)")
_CALLED = re.compile(r"[^\s,%{}]+")
_NO_OPERANDS = frozenset({"constant", "parameter"})

# Order of called computations by attribute: XLA stores a loop's body before its condition, but
# prints them the other way round.
_CALL_ORDER = (
    *("body", "condition", "true_computation", "false_computation", "branch_computations"),
    *("to_apply", "calls", "called_computations", "select", "scatter"),
)


class _Metadata(TypedDict):
    op_name: str | None
    source: SourceLine | None


class InstructionParser:
    """Parses the instructions of one file, with a cache of canonical backend configs.

    Args:
      known_frames: the frame of each instruction by name; None if the text has their numbers.
    """

    def __init__(
        self,
        lines: LineReader,
        chains: CallChains,
        known_frames: Mapping[str, int] | None = None,
    ) -> None:
        self._lines = lines
        self._chains = chains
        self._known_frames = known_frames
        self.frame_of: dict[str, int] = {}
        self._configs: dict[str, str] = {}

    def parse(self, text: str) -> tuple[Instruction, bool]:
        """The instruction in the text of the line read last, and whether it is the root."""
        text = without_index_comments(text)
        head = instruction_head(text)
        if head is None:
            self._lines.fail_at("an instruction `%name = shape opcode(…)`")
        operands_start = head.operands_start
        end = text.find(")", operands_start) + 1
        if not end or "(" in (inside := text[operands_start : end - 1]) or '"' in inside:
            end = bracket_end(text, operands_start - 1)
        if end < 0:
            self._lines.fail_at("a closing bracket after the operands")
        operands_text = text[operands_start : end - 1]
        opcode = opcode_of(head.opcode)
        attributes = self._attributes(text, end)
        operands, indices = ((), ()) if opcode in _NO_OPERANDS else _operands(operands_text)
        if opcode == "get-tuple-element":
            index = attributes.get("index", "")
            if not index.isdecimal() or indices:
                self._lines.fail_at("`index=N` of a get-tuple-element")
            indices = ((self._lines.int64(index, "an index"),),)
        shape = shape_of(text[head.shape_start : head.shape_end])
        instruction = Instruction(
            name=head.name,
            opcode=opcode,
            shape=shape,
            operands=operands,
            parameter_number=self._parameter(operands_text) if opcode == "parameter" else None,
            called_computations=_called(attributes),
            fusion_kind=attributes.get("kind") if opcode == "fusion" else None,
            custom_call_target=(
                unquote(attributes.get("custom_call_target", ""))
                if opcode == "custom-call"
                else None
            ),
            backend_config=attributes.get("backend_config", ""),
            collective=self._collective(opcode, attributes),
            operand_indices=indices,
            contraction=contraction_of_text(attributes) if opcode in MAY_CONTRACT else None,
            integer=(integer_of_text(shape, operands_text) if opcode == "constant" else None),
            real=real_of_text(shape, operands_text) if opcode == "constant" else None,
            comparison=attributes.get("direction") if opcode == "compare" else None,
            unique_indices=opcode == "scatter" and attributes.get("unique_indices") == "true",
            **self._metadata(head.name, attributes.get("metadata")),
        )
        return instruction, head.is_root

    def _attributes(self, text: str, end: int) -> dict[str, str]:
        attributes: dict[str, str] = {}
        config_start = text.find(", backend_config={", end)
        if config_start >= 0:
            # Nearly always the last attribute, and the same text in many lines.
            tail = text[config_start + len(", backend_config=") :]
            canonical = self._configs.get(tail)
            if canonical is None:
                decoded = decode_at(tail, 0)
                if decoded is not None and decoded[1] == len(tail):
                    canonical = self._configs[tail] = decoded[0]
            if canonical is not None and _read_attributes(text, end, config_start, attributes):
                attributes["backend_config"] = canonical
                return attributes
            attributes.clear()
        for name, start, stop in attribute_values(text, end):
            attributes[name] = text[start:stop]
            end = stop
        if end != len(text):
            self._lines.fail_at("attributes `, name=value` up to the end of the line")
        config_text = attributes.get("backend_config", "")
        if config_text.startswith('"'):
            config_text = unquote(config_text) or ""
        attributes["backend_config"] = canonical_config(config_text)
        return attributes

    def _collective(self, opcode: str, attributes: dict[str, str]) -> CollectiveGroups | None:
        if opcode in POINT_TO_POINT:
            return transfer_of_text(attributes.get("frontend_attributes", ""))
        if opcode not in WITH_GROUPS:
            return None
        groups_text = attributes.get("replica_groups", "{}")
        if "device_ids" in attributes:  # follows a comma, so it is parsed as another attribute
            groups_text += f", device_ids={attributes['device_ids']}"
        groups = groups_of_text(groups_text)
        pairs = pairs_of_text(attributes.get("source_target_pairs", "{}"))
        channel = attributes.get("channel_id", "0")
        if groups is None or pairs is None or not channel.isdecimal():
            self._lines.fail("replica groups", shown(groups_text))
        return CollectiveGroups(groups, pairs, self._lines.int64(channel, "a channel id") or None)

    def _parameter(self, text: str) -> int:
        if not text.isdecimal():
            self._lines.fail("the number of a parameter", shown(text))
        return self._lines.int64(text, "a parameter number")

    def _metadata(self, name: str, text: str | None) -> _Metadata:
        metadata = {} if text is None else fields(text)
        source: SourceLine | None = None
        frame = metadata.get("stack_frame_id", "0")
        if self._known_frames is not None:
            frame = str(self._known_frames.get(name, 0))
        line = metadata.get("source_line", "0")
        if not (frame.isdecimal() and line.isdecimal()):
            self._lines.fail_at("numbers for stack_frame_id and source_line")
        if frame != "0":
            frame_id = self._lines.int64(frame, "a frame id")
            self.frame_of[name] = frame_id
            source = source_line(self._chains, frame_id)
        if source is None and metadata.get("source_file"):
            source = SourceLine(metadata["source_file"], self._lines.int64(line, "a line number"))
        return {"op_name": metadata.get("op_name") or None, "source": source}


def _read_attributes(text: str, start: int, stop: int, attributes: dict[str, str]) -> bool:
    """Put the attributes from `start` into `attributes`; False if they do not end at `stop`."""
    end = start
    for name, value, value_end in attribute_values(text[:stop], start):
        attributes[name] = text[value:value_end]
        end = value_end
    return end == stop


def _operands(text: str) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Operands' names and tuple indices; no indices if all operands are whole values."""
    if "%" in text:
        operands = _ANNOTATED_OPERAND.findall(text)
    else:
        parts = (part.split()[-1] for part in split_bracket(f"({text})")[0] if part.split())
        operands = [(name, mark + index) for name, mark, index in (p.partition("#") for p in parts)]
    names = tuple([name for name, _ in operands])
    if "#" not in text:
        return names, ()
    # No tuple has a million elements; a damaged index may have any number of digits.
    return names, tuple(
        tuple(int(digits[-6:]) for digits in path.split("#")[1:]) for _, path in operands
    )


def _called(attributes: dict[str, str]) -> tuple[str, ...]:
    return tuple(
        called
        for name in _CALL_ORDER
        if name in attributes
        for called in _CALLED.findall(attributes[name])
    )
