"""FX graphs as torch prints them: `fx_graph_readable.py`, and AOT graphs in a log.

They name what IR and wrapper code do not: the lines of the program, and the dtypes of arguments.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from xlapipe.inductor.expressions import Dimension, dimensions
from xlapipe.inductor.ir.values import split_list
from xlapipe.inductor.layouts import Layout, contiguous_strides, dtype_name
from xlapipe.inductor.text_lines import TextLines
from xlapipe.plans.hlo import SourceLine

_DEFINITION = re.compile(r"\s*def forward\(self, ?(?P<parameters>.*)\):\s*(?:#.*)?")
_TYPED = re.compile(r'(?P<name>\w+): ?"(?P<type>[^"]*)"')
_FILE = re.compile(r"\s*# File: (?P<file>.*):(?P<line>\d{1,9}) in \S*, code:")
_NO_FILE = re.compile(r"\s*# No stacktrace found")
_NODE = re.compile(
    r'\s*(?P<name>\w+)(?:: ?"(?P<type>[^"]*)")? = (?P<target>[\w.]+)\((?P<arguments>.*?)\)(?:;|$)'
)
_TENSOR = re.compile(
    r"(?P<dtype>[a-z]\w*)\[(?P<shape>[^\[\]]*)\](?:\[(?P<strides>[^\[\]]*)\])?(?P<device>[a-z]*(?::\d+)?)"
)
_RETURN = re.compile(r"\s*return ")
_NO_SYMBOLS: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class FxNode:
    """One call of a graph that comes from a known line of the program."""

    name: str
    target: str
    source: SourceLine


@dataclass(frozen=True)
class FxGraph:
    """One graph, with the layouts of its arguments that are tensors by name."""

    placeholders: Mapping[str, Layout]
    nodes: tuple[FxNode, ...]

    @cached_property
    def sources(self) -> Mapping[str, SourceLine]:
        """Lines of the program by node."""
        return {node.name: node.source for node in self.nodes}

    def source_of(self, names: Iterable[str], operators: Iterable[str]) -> SourceLine | None:
        """The line of the first of some nodes that has one; else that of an operator."""
        for name in names:
            if name in self.sources:
                return self.sources[name]
        for operator in operators:
            lines = {node.source for node in self.nodes if operator in node.target}
            if len(lines) == 1:
                return lines.pop()
        return None


def read_fx_graph(text: TextLines) -> FxGraph | None:
    """Reads a graph; None if the text has no `def forward(self, …)`.

    Lines that are not of a known form are skipped: nothing is counted from a graph.
    """
    lines = iter(text.lines)
    placeholders: dict[str, Layout] | None = None
    nodes: list[FxNode] = []
    source: SourceLine | None = None
    for line in lines:
        if placeholders is None:
            match = _DEFINITION.match(line)
            if match is not None:
                placeholders = dict(_placeholders(match["parameters"]))
        elif (match := _FILE.match(line)) is not None:
            source = SourceLine(match["file"], int(match["line"]))
        elif _NO_FILE.match(line) is not None:
            source = None
        elif _RETURN.match(line) is not None:
            break
        elif source is not None and (match := _NODE.match(line)) is not None:
            nodes.append(FxNode(match["name"], match["target"], source))
    return None if placeholders is None else FxGraph(placeholders, tuple(nodes))


def _layout(text: str) -> Layout | None:
    """The layout of `bf16[2048, 4096][4096, 1]cuda:0`; None for `Sym(s0)` and the like."""
    match = _TENSOR.fullmatch(text.strip())
    if match is None:
        return None
    shape = dimensions(split_list(match["shape"]), _NO_SYMBOLS)
    strides: tuple[Dimension, ...] = contiguous_strides(shape)
    if match["strides"] is not None:
        strides = dimensions(split_list(match["strides"]), _NO_SYMBOLS)
    if len(strides) != len(shape) or any(isinstance(n, int) and n < 0 for n in (*shape, *strides)):
        return None
    return Layout(dtype_name(match["dtype"]), shape, strides, match["device"] or "cuda")


def _placeholders(text: str) -> Iterator[tuple[str, Layout]]:
    for match in _TYPED.finditer(text):
        layout = _layout(match["type"])
        if layout is not None:
            yield match["name"], layout
