"""Inductor's plans as records for `--json`. What a dump does not hold is None."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from xlapipe.inductor.inductor_plan import InductorArgument, InductorOutput, InductorPlan
from xlapipe.inductor.layouts import sum_if_known
from xlapipe.inductor.reader import InductorDump
from xlapipe.report.records import fields_of, named

COMPILER = "torch inductor"


def inductor_figures(dump: InductorDump) -> dict[str, Any]:
    """The JSON of `xlapipe show`; bytes are ints.

    With one graph its figures are at the top, as for a dump of XLA's; `graphs` has all of them.
    """
    graphs = [graph_figures(plan) for plan in dump.plans]
    if len(graphs) == 1:
        return {**graphs[0], "graphs": graphs}
    return {"compiler": COMPILER, "totals": sequence_totals(dump.plans), "graphs": graphs}


def sequence_totals(plans: Sequence[InductorPlan]) -> dict[str, Any]:
    """Totals of all graphs called once, in the order of `plans`.

    `own_peak_bytes` is what they hold at their worst beyond the arguments of the first ones: each
    graph's own, and what the graphs before it left.
    """
    held = peak = 0
    for plan in plans:
        peak = max(peak, held + plan.totals.own_peak_bytes)
        held += plan.totals.end_bytes
    firsts = [plan.totals.argument_bytes for plan in plans if plan.kind != "backward"]
    return {
        "own_peak_bytes": peak,
        "argument_bytes": sum_if_known(firsts) if firsts else None,
        "output_bytes": sum(
            plan.totals.output_bytes - (plan.totals.saved_bytes or 0) for plan in plans
        ),
        "unknown_allocations": sum(plan.totals.unknown_allocations for plan in plans),
        "end_bytes": held,
    }


def graph_figures(plan: InductorPlan) -> dict[str, Any]:
    totals = plan.totals
    return {
        "compiler": COMPILER,
        "file": plan.where,
        "graph": plan.graph,
        "kind": plan.kind,
        "exact": plan.exact,
        "basis": plan.basis,
        "notes": plan.notes,
        "totals": {**asdict(totals), "parameter_bytes": totals.argument_bytes},
        "own_peak": {
            "position": plan.peak_position,
            "kernel": plan.peak_kernel,
            "line": plan.peak_line,
            "lower_bound": bool(totals.unknown_allocations),
            "freed_argument_bytes": plan.freed_at_peak_bytes,
            "held": [allocation.index for allocation in plan.held_at_peak],
        },
        "arguments": [_with_layout(argument) for argument in plan.arguments],
        "outputs": [_with_layout(output) for output in plan.outputs],
        "allocations": _allocations(plan),
        "aliases": [named(alias, "parameter_number", "output_index") for alias in plan.aliases],
        "kernels": plan.kernels,
        "kernel_counts": plan.kernel_counts,
        "gemms": plan.gemms,
        "collectives": plan.collectives,
        "unknown": plan.unknown,
        "findings": plan.findings,
        "thunks": None,
        "resized_storages": plan.resized_storages,
    }


def _allocations(plan: InductorPlan) -> list[dict[str, Any]]:
    alive = {live.name: live for live in plan.live_ranges}
    return [
        {
            **named(allocation, "index", "size_bytes", "kinds", "parameter_number", "color"),
            **fields_of(life),
            "values": [
                {
                    **fields_of(value),
                    "start": alive[value.name].start if value.name in alive else None,
                    "end": alive[value.name].end if value.name in alive else None,
                }
                for value in allocation.values
            ],
        }
        for allocation, life in zip(plan.allocations, plan.lifetimes, strict=True)
    ]


def _with_layout(tensor: InductorArgument | InductorOutput) -> dict[str, Any]:
    """The fields of an argument or output, with those of its layout among them."""
    figures = fields_of(tensor)
    layout = figures.pop("layout")
    return {**figures, **named(layout, "dtype", "shape", "strides", "device")}
