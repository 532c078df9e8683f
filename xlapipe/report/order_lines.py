"""Temp in XLA's order and in an order that needs less, as data and as lines of text."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from xlapipe.plans.temp_order.instruction_order import OrderShare
from xlapipe.report.cells import Cell
from xlapipe.report.records import named
from xlapipe.report.text_table import Table
from xlapipe.report.units import exact

_MAX_SOURCES = 15


def order_figures(share: OrderShare | None) -> dict[str, Any] | None:
    """The value of the key `order` in the JSON of `xlapipe show --order`."""
    if share is None:
        return None
    return {
        **named(share, "planned_bytes", "least_bytes", "held_bytes", "bound_bytes"),
        "sources": [
            {"source": source, "planned_bytes": planned, "least_bytes": least}
            for source, planned, least in _sources(share)
        ],
    }


def order_lines(share: OrderShare | None) -> Iterator[str]:
    """Totals, and the source lines whose values are held only by the order."""
    if share is None:
        yield "order: unknown, because the dump has no complete HLO module"
        return
    if not share.held_bytes:
        yield (
            f"order: {exact(share.planned_bytes)} of temporary values at the peak; no order that "
            f"was tried needs less, and none can need less than {exact(share.bound_bytes)}"
        )
        return
    yield (
        f"order: {exact(share.held_bytes)} of temp are held only by the order of instructions: "
        f"{exact(share.planned_bytes)} at the peak of XLA's order, {exact(share.least_bytes)} in "
        f"another order of the same instructions; no order can need less than "
        f"{exact(share.bound_bytes)}"
    )
    columns: Mapping[str, Callable[[tuple[str, int, int]], Cell]] = {
        "XLA's order, B": lambda row: row[1],
        "best order, B": lambda row: row[2],
        "held, B": lambda row: row[1] - row[2],
        "source line": lambda row: row[0],
    }
    yield from Table.of("", _sources(share), columns).first(_MAX_SOURCES).lines()


def _sources(share: OrderShare) -> list[tuple[str, int, int]]:
    """(source line, bytes in XLA's order, bytes in the best order), most held bytes first."""
    planned, least = share.planned_by_source, share.least_by_source
    rows = [
        (source, planned.get(source, 0), least.get(source, 0)) for source in {**planned, **least}
    ]
    return sorted(rows, key=lambda row: (row[2] - row[1], row[0]))
