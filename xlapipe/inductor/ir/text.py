"""The grammar of `ir_pre_fusion.txt` and `ir_post_fusion.txt`, as torch 2.5 to 2.11 print it.

Nodes are separated by blank lines. A node is a header, `op1: SchedulerNode(ComputedBuffer)`, then
lines `op1.writes = …`, and for a loop a class with its body. Versions differ in this:

- layouts, `buf1_layout = FixedLayout(…)`, are printed or not;
- a MemoryDep has three or four arguments, a StarDep one or two, a WeakDep one to three;
- the nodes inside a fused one are indented or not;
- the source of the Triton kernel follows (`op6 Triton code:`) or not.

A list may be in one line or in many. Attributes that xlapipe does not use are skipped.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.ir.nodes import IrBuffer, IrNode
from xlapipe.inductor.ir.values import IrValues, names
from xlapipe.inductor.text_lines import TextLines

_HEADER = re.compile(r"(?P<name>[A-Za-z_]\w*): (?P<kind>[A-Z]\w*)\((?P<inner>[\w., ]*)\)")
_ATTRIBUTE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<key>(?:\.\w+)+)(?:\[\d+\])? ?=(?P<value>.*)")
_LAYOUT_LINE = re.compile(r"(?P<name>\w+)_layout ?=(?P<value>.*)")
_BODY = re.compile(r"class \w+?_loop_body\b.*:")
_TRITON = re.compile(r"\w+ Triton code:")
_BUFFER = re.compile(r"(?P<name>[A-Za-z_]\w*): (?P<kind>[A-Za-z_]\w*)")
# What TORCH_LOGS writes before a dump.
_TITLES = ("BEFORE FUSION", "AFTER FUSION")
# The field that an attribute is read into, and what reads it from its text and line.
_Reading = tuple[str, Callable[[str, int], Any]]
_A_NODE = "the first line of a node, e.g. `op0: SchedulerNode(ComputedBuffer)`"


def is_ir_header(line: str) -> bool:
    """Whether a line is the first one of a node."""
    match = _HEADER.fullmatch(line)
    return match is not None and "SchedulerNode" in match["kind"]


def read_ir(text: TextLines) -> tuple[IrNode, ...]:
    """The nodes of a dump, the parts of fused ones inside them."""
    nodes = tuple(_Reader(text).nodes())
    if not nodes:
        text.fail(0, _A_NODE, "no node in the file")
    _check_definitions(text, nodes)
    return nodes


def _check_definitions(text: TextLines, nodes: Sequence[IrNode]) -> None:
    lines: dict[str, int] = {}
    for node in nodes:
        for leaf in node.leaves:
            for buffer in leaf.outputs:
                if buffer.name in lines:
                    text.fail(
                        text.numbers.index(buffer.line),
                        f"one definition of {buffer.name}",
                        f"a second one, after that in line {lines[buffer.name]}",
                    )
                lines[buffer.name] = buffer.line


class _Reader:
    """Reads a dump line by line; `_at` is the index of the next line."""

    def __init__(self, text: TextLines) -> None:
        self._text = text
        # Without indentation, which only the extent of a loop's body depends on.
        self._lines = [line.strip() for line in text.lines]
        self._values = values = IrValues(text)
        self._at = 0
        self._buffer_readers: dict[str, _Reading] = {
            ".users": ("users", values.users),
            ".aliases": ("aliases", names),
            ".mutations": ("mutations", names),
            ".layout": ("layout", values.layout),
        }
        self._node_readers: dict[str, _Reading] = {
            ".writes": ("writes", values.dependencies),
            ".unmet_dependencies": ("unmet", values.dependencies),
            ".met_dependencies": ("met", values.dependencies),
            ".outputs": ("outputs", lambda text, at: ()),
            ".node.kernel": ("kernel", lambda text, at: None if text == "None" else text),
            ".group.device": ("device", lambda text, at: text),
        }

    def nodes(self) -> Iterator[IrNode]:
        """Every node outside fused nodes."""
        lines = self._lines
        while self._at < len(lines):
            line = lines[self._at]
            if not line or line in _TITLES or line.startswith("#"):
                self._at += 1
                continue
            header = _HEADER.fullmatch(line)
            if header is None:
                self._text.fail_at(self._at, _A_NODE)
            yield self._node(header)

    def _node(self, header: re.Match[str]) -> IrNode:
        """The node whose header is the current line."""
        start, name = self._at, header["name"]
        fields: dict[str, Any] = {}
        self._at += 1
        while self._at < len(self._lines) and self._line_of(name, fields):
            pass
        for key in ("writes", "outputs"):
            if key not in fields:
                self._text.fail(start, f"a line `{name}.{key} = …` in this node", "none")
        return IrNode(name, header["kind"], header["inner"], self._text.number(start), **fields)

    def _line_of(self, name: str, fields: dict[str, Any]) -> bool:
        """Reads the current line, and those that belong to it; False at the node's end."""
        line, at = self._lines[self._at], self._at
        if not line:
            return False
        if (match := _ATTRIBUTE.fullmatch(line)) is not None:
            return self._attribute(name, fields, match)
        if (match := _LAYOUT_LINE.fullmatch(line)) is not None:
            _, layout = self._values.layout(self._value(match["value"]), at)
            if layout is not None:
                fields.setdefault("layouts", {})[match["name"]] = layout
        elif _BODY.fullmatch(line) is not None:
            fields["body"] = self._indented()
        elif _TRITON.fullmatch(line) is not None:
            self._indented()
        elif _HEADER.fullmatch(line) is not None:
            return False
        elif at == len(self._lines) - 1:
            self._text.fail_at(at, f"a line of node {name}")
        else:
            self._text.leave_out(at, f"a line of node {name}", shown(line))
            self._at += 1
        return True

    def _attribute(self, name: str, fields: dict[str, Any], match: re.Match[str]) -> bool:
        key, value = match["key"], match["value"].strip()
        if match["name"] != name:
            if key == ".snodes":
                return False  # the next part of the fused node around this one
            self._text.fail_at(self._at, f"a line of node {name}")
        if key == ".snodes" and not value:
            fields["parts"] = (*fields.get("parts", ()), self._part())
        elif key == ".outputs" and value == "[":
            self._at += 1
            fields["outputs"] = tuple(self._outputs(name))
        else:
            self._read(self._node_readers, fields, match)
        return True

    def _read(
        self, readers: Mapping[str, _Reading], fields: dict[str, Any], match: re.Match[str]
    ) -> None:
        """Puts the value of an attribute into the field that it is read into, if any."""
        at = self._at
        text = self._value(match["value"])
        if match["key"] in readers:
            field, read = readers[match["key"]]
            fields[field] = read(text, at)

    def _part(self) -> IrNode:
        """The node after a line `op1_op2.snodes[0] =`."""
        self._at += 1
        header = None
        if self._at < len(self._lines):
            header = _HEADER.fullmatch(self._lines[self._at])
        if header is None:
            self._text.fail_at(self._at, _A_NODE)
        return self._node(header)

    def _outputs(self, node: str) -> Iterator[IrBuffer]:
        """The buffers between `op1.outputs = [` and `]`."""
        while self._at < len(self._lines) and self._lines[self._at] != "]":
            header = _BUFFER.fullmatch(self._lines[self._at])
            if header is None:
                self._text.fail_at(self._at, f"a buffer of {node}, or `]`")
            yield self._buffer(header)
        if self._at >= len(self._lines):
            self._text.fail_at(self._at, f"`]` after the outputs of {node}")
        self._at += 1

    def _buffer(self, header: re.Match[str]) -> IrBuffer:
        name, line = header["name"], self._text.number(self._at)
        fields: dict[str, Any] = {}
        self._at += 1
        while self._at < len(self._lines):
            match = _ATTRIBUTE.fullmatch(self._lines[self._at])
            if match is None or match["name"] != name:
                break
            self._read(self._buffer_readers, fields, match)
        return IrBuffer(name, header["kind"], line, *fields.pop("layout", (None, None)), **fields)

    def _value(self, first: str) -> str:
        """The value that begins in the current line, to the line that closes its brackets."""
        start = self._at
        self._at += 1
        pieces = [first.strip()]
        depth = _depth(pieces[0])
        while depth > 0 or not pieces[-1]:
            if self._at >= len(self._lines) or not self._lines[self._at]:
                self._text.fail_at(start, "a value whose brackets are closed")
            pieces.append(self._lines[self._at])
            depth += _depth(pieces[-1])
            self._at += 1
        return " ".join(pieces).strip()

    def _indented(self) -> TextLines:
        """Lines after the current one that are indented deeper, single blank ones among them."""
        lines = self._text.lines
        indent = _indent(lines[self._at])
        self._at += 1
        start = end = self._at
        while self._at < len(lines):
            if self._lines[self._at]:
                if _indent(lines[self._at]) <= indent:
                    break
                end = self._at + 1
            elif self._at > end:
                break
            self._at += 1
        self._at = end
        return self._text.part(start, end)


def _depth(text: str) -> int:
    opened = text.count("[") + text.count("(") + text.count("{")
    return opened - text.count("]") - text.count(")") - text.count("}")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
