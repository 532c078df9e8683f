"""The grammar of `ir_pre_fusion.txt` and `ir_post_fusion.txt`, as torch 2.3 to 2.11 print it.

Nodes are separated by blank lines. A node is a header, `op1: SchedulerNode(ComputedBuffer)`, then
lines `op1.writes = …`, and for a loop a class with its body. Versions differ in this:

- up to torch 2.4 a node is named as its buffer, `buf1: …`, and has `buf1.users = […]` in place of
  `buf1.outputs = [` with one entry for each buffer;
- layouts, `buf1_layout = FixedLayout(…)`, are absent up to torch 2.3;
- a MemoryDep has three or four arguments, a StarDep one or two, a WeakDep one to three;
- the nodes inside a fused one are indented or not; up to torch 2.0 only their names are listed;
- the source of the Triton kernel follows (`op6 Triton code:`) or not.

A list may be in one line or in many. Attributes that xlapipe does not use are skipped.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xlapipe.dump.readers.source_text import shown
from xlapipe.inductor.ir.nodes import Dependency, IrBuffer, IrNode, User
from xlapipe.inductor.ir.values import IrValues, names
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.text_lines import TextLines

_HEADER = re.compile(r"(?P<name>[A-Za-z_]\w*): (?P<kind>[A-Z]\w*)\((?P<inner>[\w., ]*)\)")
_ATTRIBUTE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<key>(?:\.\w+)+)(?:\[\d+\])? ?=(?P<value>.*)")
_LAYOUT_LINE = re.compile(r"(?P<name>\w+)_layout ?=(?P<value>.*)")
_BODY = re.compile(r"class \w+?_loop_body\b.*:")
_TRITON = re.compile(r"\w+ Triton code:")
_BUFFER = re.compile(r"(?P<name>[A-Za-z_]\w*): (?P<kind>[A-Za-z_]\w*)")
# What TORCH_LOGS writes before a dump.
_TITLES = ("BEFORE FUSION", "AFTER FUSION")
_A_NODE = "the first line of a node, e.g. `op0: SchedulerNode(ComputedBuffer)`"


def is_ir_header(line: str) -> bool:
    """Whether a line is the first one of a node."""
    match = _HEADER.fullmatch(line)
    return match is not None and "SchedulerNode" in match["kind"]


def read_ir(text: TextLines) -> tuple[IrNode, ...]:
    """The nodes of a dump, the parts of fused ones inside them.

    Raises:
      DumpError: a line is not of the grammar above, a buffer is defined twice, or there is no
        node.
    """
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


@dataclass
class _Draft:
    """A node while its lines are read; None for what has no line yet."""

    name: str
    kind: str
    inner: str
    line: int
    writes: tuple[Dependency, ...] | None = None
    unmet: tuple[Dependency, ...] = ()
    met: tuple[Dependency, ...] = ()
    outputs: tuple[IrBuffer, ...] | None = None
    users: tuple[User, ...] | None = None
    aliases: tuple[str, ...] = ()
    mutations: tuple[str, ...] = ()
    kernel: str | None = None
    device: str | None = None
    iteration: str | None = None
    sizes: str | None = None
    parts: list[IrNode] = field(default_factory=list)
    part_names: tuple[str, ...] = ()
    layouts: dict[str, Layout] = field(default_factory=dict)
    body: TextLines | None = None
    triton: TextLines | None = None

    def buffers(self) -> tuple[IrBuffer, ...]:
        """Its outputs; up to torch 2.4, the buffers that have the names of nodes."""
        if self.outputs is not None:
            return self.outputs
        whole = self.kind.startswith(("Fused", "Foreach", "Grouped"))
        return tuple(map(self._old_buffer, self.part_names if whole else (self.name,)))

    def _old_buffer(self, name: str) -> IrBuffer:
        layout = self.layouts.get(name)
        return IrBuffer(
            name=name,
            kind=self.inner,
            layout_kind="FixedLayout" if layout is not None else None,
            layout=layout,
            aliases=self.aliases,
            mutations=self.mutations,
            users=self.users or (),
            line=self.line,
        )

    def finish(self, writes: tuple[Dependency, ...]) -> IrNode:
        return IrNode(
            name=self.name,
            kind=self.kind,
            inner=self.inner,
            line=self.line,
            writes=writes,
            unmet=self.unmet,
            met=self.met,
            outputs=self.buffers(),
            kernel=self.kernel,
            device=self.device,
            iteration=self.iteration,
            sizes=self.sizes,
            parts=tuple(self.parts),
            layouts=self.layouts,
            body=self.body,
            triton=self.triton,
        )


class _Reader:
    """Reads a dump line by line; `_at` is the index of the next line."""

    def __init__(self, text: TextLines) -> None:
        self._text = text
        # Without indentation, which only the extent of a loop's body depends on.
        self._lines = [line.strip() for line in text.lines]
        self._values = IrValues(text)
        self._at = 0

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
        start = self._at
        draft = _Draft(header["name"], header["kind"], header["inner"], self._text.number(start))
        self._at += 1
        while self._at < len(self._lines) and self._line_of(draft):
            pass
        if draft.writes is None:
            self._text.fail(start, f"a line `{draft.name}.writes = …` in this node", "none")
        return draft.finish(draft.writes)

    def _line_of(self, draft: _Draft) -> bool:
        """Reads the current line, and those that belong to it; False at the node's end."""
        line = self._lines[self._at]
        if not line:
            return False
        if (match := _ATTRIBUTE.fullmatch(line)) is not None:
            return self._attribute(draft, match)
        if (match := _LAYOUT_LINE.fullmatch(line)) is not None:
            at = self._at
            _, layout = self._values.layout(self._value(match["value"]), at)
            if layout is not None:
                draft.layouts[match["name"]] = layout
        elif _BODY.fullmatch(line) is not None:
            draft.body = self._indented()
        elif _TRITON.fullmatch(line) is not None:
            draft.triton = self._indented()
        elif _HEADER.fullmatch(line) is not None:
            return False
        elif self._at == len(self._lines) - 1:
            self._text.fail_at(self._at, f"a line of node {draft.name}")
        else:
            self._text.leave_out(self._at, f"a line of node {draft.name}", shown(line))
            self._at += 1
        return True

    def _attribute(self, draft: _Draft, match: re.Match[str]) -> bool:
        at, key = self._at, match["key"]
        if match["name"] != draft.name:
            if key == ".snodes":
                return False  # the next part of the fused node around this one
            self._text.fail_at(at, f"a line of node {draft.name}")
        if key == ".snodes" and not (match["value"].strip() or self._list_follows()):
            draft.parts.append(self._part())
            return True
        if key == ".outputs" and match["value"].strip() == "[":
            self._at += 1
            draft.outputs = tuple(self._outputs(draft.name))
            return True
        text, values = self._value(match["value"]), self._values
        match key:
            case ".writes":
                draft.writes = values.dependencies(text, at)
            case ".unmet_dependencies":
                draft.unmet = values.dependencies(text, at)
            case ".met_dependencies":
                draft.met = values.dependencies(text, at)
            case ".outputs":
                draft.outputs = ()
            case ".snodes":
                draft.part_names = names(text)
            case ".users":
                draft.users = values.users(text, at)
            case ".aliases":
                draft.aliases = names(text)
            case ".mutations":
                draft.mutations = names(text)
            case ".node.kernel":
                draft.kernel = None if text == "None" else text
            case ".group.device":
                draft.device = text
            case ".group.iteration":
                draft.iteration = text
            case ".sizes":
                draft.sizes = text
        return True

    def _list_follows(self) -> bool:
        """Whether the next line begins a list."""
        return self._at + 1 < len(self._lines) and self._lines[self._at + 1].startswith("[")

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
        self._at += 1
        kind: str | None = None
        layout: Layout | None = None
        aliases: tuple[str, ...] = ()
        mutations: tuple[str, ...] = ()
        users: tuple[User, ...] = ()
        while self._at < len(self._lines):
            at = self._at
            match = _ATTRIBUTE.fullmatch(self._lines[at])
            if match is None or match["name"] != name:
                break
            text = self._value(match["value"])
            match match["key"]:
                case ".layout":
                    kind, layout = self._values.layout(text, at)
                case ".users":
                    users = self._values.users(text, at)
                case ".aliases":
                    aliases = names(text)
                case ".mutations":
                    mutations = names(text)
        return IrBuffer(name, header["kind"], kind, layout, aliases, mutations, users, line)

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
