"""The order of the outputs of fusions with several, which XLA chooses by hash tables.

In the canonical form, the outputs of a fusion of the entry are ordered by what they compute: in
the root of the fused computation, in its signature, in the shape of the fusion, in what reads the
outputs, and in the plan. A fusion whose tuple is passed on as a whole keeps its order.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

# Texts of HLO have a comment with the index before every fifth element.
_COMMENT = re.compile(r"/\*index=\d+\*/")
_COMMENT_EVERY = 5
_DEFINED = re.compile(r"  (?:ROOT )?%(?P<name>[\w.\-]+) = (?P<rest>.*)")
_FUSION = re.compile(
    r"  %(?P<name>[\w.\-]+) = \(.* fusion\(.*\bcalls=(?P<called>computation_\d+)\b"
)
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(computation_\d+)\b")
_READ_WHOLE = r"%{name}(?![\w.\-#])"
_VALUE = re.compile(
    r"(?P<head>  @[\d,]+ [\d,]+ B )(?P<name>[\w.\-]+)\{(?P<index>\d*)\} (?P<shape>.*)"
)
_FUSION_LINE = re.compile(r"(?P<name>[\w.\-]+): (?P<kind>\w+) (?P<rest>\(.*)")


@dataclass(frozen=True)
class Computation:
    """A computation of a module in normal form.

    Attributes:
      lines: one for each instruction.
    """

    name: str
    signature: str
    lines: tuple[str, ...]


Orders = Mapping[str, tuple[int, ...]]


def output_orders(computations: Mapping[str, Computation]) -> Orders:
    """For each fusion of the entry with several outputs, their indices in canonical order."""
    entry = computations["ENTRY"].lines
    text = "\n".join(entry)
    orders = {}
    for line in entry:
        match = _FUSION.match(line)
        if match is None or match["called"] not in computations:
            continue
        definition = rf"  %{re.escape(match['name'])} = "
        reads = re.sub(definition, "", text)
        whole = re.search(_READ_WHOLE.format(name=re.escape(match["name"])), reads)
        keys = _output_keys(match["called"], computations)
        order = tuple(sorted(range(len(keys)), key=lambda index: keys[index]))
        if whole is None and order != tuple(range(len(keys))):
            orders[match["name"]] = order
    return orders


def with_ordered_outputs(
    computations: Mapping[str, Computation], orders: Orders
) -> dict[str, Computation]:
    """The computations with the outputs of fusions in these orders."""
    ordered = dict(computations)
    entry = computations["ENTRY"]
    lines = []
    for line in entry.lines:
        match = _FUSION.match(line)
        if match is not None and match["name"] in orders:
            order = orders[match["name"]]
            ordered[match["called"]] = _with_ordered_root(ordered[match["called"]], order)
            line = _with_ordered_group(line, line.index(" = (") + 3, order)  # noqa: PLW2901
        lines.append(_with_new_indices(line, orders))
    return ordered | {"ENTRY": replace(entry, lines=tuple(lines))}


def with_ordered_values(lines: Iterable[str], orders: Orders) -> Iterator[str]:
    """Lines of `[allocations]` and `[fusions]` of a plan's normal form, with the new indices."""
    for line in lines:
        value, fusion = _VALUE.match(line), _FUSION_LINE.match(line)
        if value is not None and value["name"] in orders:
            yield _with_ordered_value(value, orders[value["name"]])
        elif fusion is not None and fusion["name"] in orders:
            start = fusion.start("rest")
            yield _with_ordered_group(line, start, orders[fusion["name"]], comments=False)
        else:
            yield line


def _with_ordered_value(value: re.Match[str], order: Sequence[int]) -> str:
    name = f"{value['head']}{value['name']}"
    if value["index"]:
        return f"{name}{{{order.index(int(value['index']))}}} {value['shape']}"
    return f"{name}{{}} " + _with_ordered_group(value["shape"], 0, order, comments=False)


def _output_keys(name: str, computations: Mapping[str, Computation]) -> list[tuple[str, str]]:
    """A key of each output: its shape and opcode, and a digest of everything that computes it."""
    lines = computations[name].lines
    root = next((line for line in lines if line.startswith("  ROOT ")), "")
    if " tuple(" not in root:
        return []
    digests = _digests(name, computations, {})
    texts = {match["name"]: match["rest"] for line in lines if (match := _DEFINED.match(line))}
    outputs = _NAME.findall(root[root.index(" tuple(") :])
    return [(texts[output].partition("(%")[0], digests[output]) for output in outputs]


def _digests(
    name: str, computations: Mapping[str, Computation], known: dict[str, str]
) -> dict[str, str]:
    """A digest of each instruction of a computation, independent of names and of their order.

    Args:
      known: digests of the computations that are called, by name; added to.
    """
    digests: dict[str, str] = {}
    for line in computations[name].lines:
        match = _DEFINED.match(line)
        if match is None:
            continue
        for called in _CALLED.findall(match["rest"]):
            if called in computations and called not in known:
                inner = _digests(called, computations, known)
                known[called] = list(inner.values())[-1] if inner else ""
        text = _CALLED.sub(lambda it: known.get(it[1], it[1]), _COMMENT.sub("", match["rest"]))
        text = _NAME.sub(lambda it: digests.get(it[1], it[1]), text)
        digests[match["name"]] = hashlib.sha256(text.encode()).hexdigest()
    return digests


def _with_ordered_root(computation: Computation, order: Sequence[int]) -> Computation:
    lines = []
    for line in computation.lines:
        if line.startswith("  ROOT "):
            line = _with_ordered_group(line, line.index(" tuple(") + len(" tuple"), order)  # noqa: PLW2901
            line = _with_ordered_group(line, line.index(" = (") + 3, order)  # noqa: PLW2901
        lines.append(line)
    signature = computation.signature
    start = signature.index("-> (") + 3
    return replace(
        computation,
        signature=_with_ordered_group(signature, start, order),
        lines=tuple(lines),
    )


def _with_new_indices(line: str, orders: Orders) -> str:
    """A line whose readings of outputs have the new indices."""

    def renumbered(match: re.Match[str]) -> str:
        order = orders.get(match[1])
        return match[0] if order is None else f"%{match[1]}#{order.index(int(match[2]))}"

    return re.sub(r"%([\w.\-]+)#(\d+)", renumbered, line)


def _with_ordered_group(
    text: str, start: int, order: Sequence[int], *, comments: bool = True
) -> str:
    """The text with the elements of the group in brackets at `start` in another order."""
    elements, end = _elements(text, start)
    if len(elements) != len(order):
        return text
    joined = ", ".join(
        f"/*index={position}*/{elements[index]}"
        if comments and position and position % _COMMENT_EVERY == 0
        else elements[index]
        for position, index in enumerate(order)
    )
    return f"{text[:start]}({joined}){text[end:]}"


def _elements(text: str, start: int) -> tuple[list[str], int]:
    """The elements of a group in brackets, without comments, and the position after it."""
    depth, elements, first = 0, [], start + 1
    for position in range(start, len(text)):
        character = text[position]
        depth += (character in "({[") - (character in ")}]")
        if depth == 0 or (depth == 1 and character == ","):
            elements.append(_COMMENT.sub("", text[first:position]).strip())
            first = position + 1
        if depth == 0:
            return elements, position + 1
    return [], len(text)
