"""A comparison of two compilers as a page, and as the records of its JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from xlapipe.differences.compilers.comparison import CompilerComparison
from xlapipe.differences.compilers.compiler_side import CompilerSide
from xlapipe.differences.compilers.tensor_leaves import LeafPair, Match, MatchedLeaves
from xlapipe.report import cells
from xlapipe.report.pages import Page, Section, Table
from xlapipe.report.records import named
from xlapipe.report.units import exact


def comparison_page(comparison: CompilerComparison) -> Page:
    title = f"{comparison.inductor.name} (torch Inductor) beside {comparison.xla.name} (XLA)"
    lines = tuple(_sentences(comparison))
    section = Section("side by side", lines, (_figures(comparison),))
    return Page(title, "torch Inductor and XLA", (section,))


def comparison_figures(comparison: CompilerComparison) -> dict[str, Any]:
    """The JSON of `xlapipe diff`; bytes are ints, what a dump does not hold is None."""
    return {
        "same_interface": comparison.same_interface,
        "inductor": asdict(comparison.inductor),
        "xla": asdict(comparison.xla),
        "arguments": _matched(comparison.arguments),
        "outputs": _matched(comparison.outputs),
        "kept_by_xla_bytes": comparison.kept_by_xla,
        "sentences": list(_sentences(comparison)),
    }


def _matched(leaves: MatchedLeaves) -> dict[str, Any]:
    return {
        **named(leaves, "same", "same_order", "matched"),
        "pairs": [asdict(pair) for pair in leaves.pairs],
    }


def _sentences(comparison: CompilerComparison) -> Iterator[str]:
    """What matches, what does not, and how exact the figures are."""
    yield _interface_line(comparison)
    for what, leaves in (("arguments", comparison.arguments), ("outputs", comparison.outputs)):
        if leaves.differing:
            yield f"{what} that do not match: {_differing(leaves)}"
        if not leaves.same_order:
            yield f"{what} that match are in another order"
    if comparison.kept_by_xla is not None:
        yield (
            f"kept for the backward pass: {exact(comparison.inductor.kept_bytes or 0)} by "
            f"Inductor; XLA's further outputs are {exact(comparison.kept_by_xla)}"
        )
    yield f"Inductor's figures: {comparison.inductor.basis}"
    if comparison.inductor.unknown_calls:
        yield (
            f"{comparison.inductor.unknown_calls} of Inductor's calls allocate bytes that its dump "
            "does not state: its peak is a lower bound"
        )
    yield from comparison.inductor.notes


def _interface_line(comparison: CompilerComparison) -> str:
    arguments, outputs = comparison.arguments, comparison.outputs
    if comparison.same_interface:
        return (
            "all arguments and outputs match by dtype and shape; that both compute the same is not "
            "in the dumps"
        )
    return (
        f"not shown to be the same program: {_share(arguments)} arguments and {_share(outputs)} "
        "outputs match by dtype and shape"
    )


def _share(leaves: MatchedLeaves) -> str:
    return f"{leaves.matched} of {len(leaves.pairs)}"


def _differing(leaves: MatchedLeaves) -> str:
    texts = [_difference(pair) for pair in leaves.differing[:8]]
    more = len(leaves.differing) - len(texts)
    return "; ".join(texts) + (f"; and {more} more (--json lists all)" if more else "")


def _difference(pair: LeafPair) -> str:
    if pair.inductor is None or pair.xla is None:
        leaf = pair.inductor or pair.xla
        assert leaf is not None
        return f"{leaf.name} {leaf.type_text} ({pair.match})"
    if pair.match == Match.SAME_BYTES:
        return f"{pair.inductor.name} of unknown shape, with the bytes of {pair.xla.name}"
    return (
        f"{pair.inductor.name} {pair.inductor.type_text} and "
        f"{pair.xla.name} {pair.xla.type_text} ({pair.match})"
    )


def _figures(comparison: CompilerComparison) -> Table:
    inductor, xla = comparison.inductor, comparison.xla
    sizes = (
        ("peak beyond arguments", inductor.own_peak_bytes, xla.own_peak_bytes),
        ("of it in use at once", inductor.in_use_bytes, xla.in_use_bytes),
        ("arguments", inductor.argument_bytes, xla.argument_bytes),
        ("outputs with memory of their own", inductor.output_bytes, xla.output_bytes),
        ("kept for the backward pass", inductor.kept_bytes, comparison.kept_by_xla),
        ("arguments reused or freed", inductor.reused_bytes, xla.reused_bytes),
    )
    rows = (
        *((name, cells.size(first), cells.size(second)) for name, first, second in sizes),
        ("launches", cells.known(inductor.launches), cells.known(xla.launches)),
        ("calls that hide bytes", inductor.unknown_calls, xla.unknown_calls),
        ("matrix products and convolutions", _products(inductor), _products(xla)),
        ("collectives, and their results", _exchanges(inductor), _exchanges(xla)),
    )
    return Table("bytes and launches", ("figure", "Inductor", "XLA"), rows)


def _products(side: CompilerSide) -> str:
    return ", ".join(f"{count} {backend}" for backend, count in side.products.items())


def _exchanges(side: CompilerSide) -> str:
    return ", ".join(
        f"{item.count} {item.kind} {cells.size(item.output_bytes)}" for item in side.exchanges
    )
