"""The order of the outputs of fusions with several, which XLA chooses by hash tables.

In the canonical form, the outputs of a fusion of the entry are ordered by what they compute: in
the root of the fused computation, in its signature, in the shape of the fusion, in what reads the
outputs, and in the plan. A fusion whose tuple is passed on as a whole keeps its order.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from xlapipe.dump.normal_form.constant_values import rounded_constants
from xlapipe.dump.normal_form.module_text import (
    COMPUTATION,
    NAME,
    ComputationText,
    InstructionText,
)
from xlapipe.plans.shapes import split_bracket

# Texts of HLO have a comment with the index before every fifth element.
_COMMENT = re.compile(r"/\*index=\d+\*/")
_COMMENT_EVERY = 5
_CALLS = re.compile(r"\bcalls=(computation_\d+)\b")
_READ_WHOLE = r"%{name}(?![\w.\-#])"
_VALUE = re.compile(
    r"(?P<head>  @[\d,]+ [\d,]+ B )(?P<name>[\w.\-]+)\{(?P<index>\d*)\} (?P<shape>.*)"
)
_FUSION_LINE = re.compile(r"(?P<name>[\w.\-]+): (?P<kind>\w+) (?P<rest>\(.*)")

Orders = Mapping[str, tuple[int, ...]]


def output_orders(computations: Mapping[str, ComputationText]) -> Orders:
    """For each fusion of the entry with several outputs, their indices in canonical order."""
    entry = computations["ENTRY"].instructions
    text = "\n".join(line.text for line in entry)
    orders = {}
    for line in entry:
        called = _called_with_outputs(line)
        if called not in computations:
            continue
        reads = text.replace(f"  %{line.name} = ", "")
        whole = re.search(_READ_WHOLE.format(name=re.escape(line.name)), reads)
        keys = _output_keys(called, computations)
        order = tuple(sorted(range(len(keys)), key=lambda index: keys[index]))
        if whole is None and order != tuple(range(len(keys))):
            orders[line.name] = order
    return orders


def with_ordered_outputs(
    computations: Mapping[str, ComputationText], orders: Orders
) -> dict[str, ComputationText]:
    """The computations with the outputs of fusions in these orders."""
    ordered = dict(computations)
    entry = computations["ENTRY"]
    lines = []
    for line in entry.instructions:
        text, called = line.text, _called_with_outputs(line)
        if line.name in orders:
            order = orders[line.name]
            ordered[called] = _with_ordered_root(ordered[called], order)
            text = _with_ordered_group(text, text.index(" = (") + 3, order)
        lines.append(InstructionText.of(_with_new_indices(text, orders)))
    return ordered | {"ENTRY": replace(entry, instructions=lines)}


def _called_with_outputs(line: InstructionText) -> str:
    """The computation of a fusion with several outputs; empty for another instruction."""
    if line.opcode != "fusion" or line.is_root or not line.definition.startswith("("):
        return ""
    match = _CALLS.search(line.text)
    return match[1] if match is not None else ""


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


def _output_keys(name: str, computations: Mapping[str, ComputationText]) -> list[tuple[str, str]]:
    """A key of each output: its shape and opcode, and a digest of everything that computes it."""
    root = computations[name].root
    if root is None or root.opcode != "tuple":
        return []
    digests = _digests(name, computations, {})
    lines = {line.name: line for line in computations[name].instructions}
    return [(lines[output].definition.partition("(%")[0], digests[output]) for output in root.reads]


def _digests(
    name: str, computations: Mapping[str, ComputationText], known: dict[str, str]
) -> dict[str, str]:
    """A digest of each instruction of a computation, independent of names and of their order."""
    digests: dict[str, str] = {}
    for line in computations[name].instructions:
        definition = rounded_constants(line.definition)
        for called in COMPUTATION.findall(definition):
            if called in computations and called not in known:
                inner = _digests(called, computations, known)
                known[called] = list(inner.values())[-1] if inner else ""
        text = COMPUTATION.sub(lambda it: known.get(it[1], it[1]), _COMMENT.sub("", definition))
        text = NAME.sub(lambda it: digests.get(it[1], it[1]), text)
        digests[line.name] = hashlib.sha256(text.encode()).hexdigest()
    return digests


def _with_ordered_root(computation: ComputationText, order: Sequence[int]) -> ComputationText:
    lines = []
    for line in computation.instructions:
        if line.is_root:
            text = _with_ordered_group(line.text, line.operands_start - 1, order)
            text = _with_ordered_group(text, text.index(" = (") + 3, order)
            lines.append(InstructionText.of(text))
        else:
            lines.append(line)
    signature = computation.signature
    signature = _with_ordered_group(signature, signature.index("-> (") + 3, order)
    return replace(computation, signature=signature, instructions=lines)


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
    parts, end = split_bracket(text, start)
    elements = [_COMMENT.sub("", part).strip() for part in parts]
    if len(elements) != len(order):
        return text
    joined = ", ".join(
        f"/*index={position}*/{elements[index]}"
        if comments and position and position % _COMMENT_EVERY == 0
        else elements[index]
        for position, index in enumerate(order)
    )
    return f"{text[:start]}({joined}){text[end:]}"
