"""Inductor's plans as plain data for `--json`. What a dump does not hold is None."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.inductor.layouts import Layout
from xlapipe.inductor.reader import InductorDump
from xlapipe.plans.hlo import SourceLine

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
        "argument_bytes": _sum(firsts) if firsts else None,
        "output_bytes": sum(
            plan.totals.output_bytes - (plan.totals.saved_bytes or 0) for plan in plans
        ),
        "unknown_allocations": sum(plan.totals.unknown_allocations for plan in plans),
        "end_bytes": held,
    }


def graph_figures(plan: InductorPlan) -> dict[str, Any]:
    """One graph."""
    totals = plan.totals
    return {
        "compiler": COMPILER,
        "file": plan.where,
        "graph": plan.graph,
        "kind": str(plan.kind) if plan.kind is not None else None,
        "exact": plan.exact,
        "basis": plan.basis,
        "notes": list(plan.notes),
        "totals": {**asdict(totals), "parameter_bytes": totals.argument_bytes},
        "own_peak": {
            "position": plan.peak_position,
            "kernel": _kernel_at(plan, plan.peak_position),
            "line": plan.peak_line,
            "lower_bound": bool(totals.unknown_allocations),
            "freed_argument_bytes": plan.freed_at_peak_bytes,
            "held": [allocation.index for allocation in plan.held_at_peak],
        },
        "measured": _measured(plan),
        "arguments": [
            {
                "number": argument.number,
                "name": argument.name,
                **_layout(argument.layout),
                "size_bytes": argument.size_bytes,
                "given_away": argument.given_away,
                "mutated": argument.mutated,
                "allocation": argument.allocation,
            }
            for argument in plan.arguments
        ],
        "outputs": [
            {
                "index": output.index,
                "name": output.name,
                **_layout(output.layout),
                "size_bytes": output.size_bytes,
                "allocation": output.allocation,
                "argument": output.argument,
                "saved": output.saved,
            }
            for output in plan.outputs
        ],
        "allocations": _allocations(plan),
        "aliases": [
            {
                "parameter_number": alias.parameter_number,
                "output_index": list(alias.output_index)
                if alias.output_index is not None
                else None,
            }
            for alias in plan.aliases
        ],
        "reuses": [{"value": new, "in_place_of": old} for new, old in plan.reuses],
        "kernels": [
            {
                "position": kernel.position,
                "kind": str(kernel.kind),
                "name": kernel.name,
                "node": kernel.node,
                "reads": list(kernel.reads),
                "writes": list(kernel.writes),
                "origins": list(kernel.origins),
                "line": kernel.line,
                "source": _text(kernel.source),
            }
            for kernel in plan.kernels
        ],
        "kernel_counts": dict(plan.kernel_counts),
        "gemms": [
            {
                "instruction": gemm.instruction,
                "backend": str(gemm.backend),
                "shapes": [shape.text for shape in gemm.shapes],
                "op_name": gemm.op_name,
                "source": _text(gemm.source),
                "fast_accumulation": gemm.fast_accumulation,
            }
            for gemm in plan.gemms
        ],
        "collectives": [
            {**asdict(collective), "source": _text(collective.source)}
            for collective in plan.collectives
        ],
        "unknown": [asdict(unknown) for unknown in plan.unknown],
        "findings": inductor_findings(plan),
        "thunks": None,
        "inductor": {
            **asdict(plan.only),
            "weak_dependencies": [list(pair) for pair in plan.only.weak_dependencies],
            "mutations": [list(pair) for pair in plan.only.mutations],
        },
    }


def inductor_findings(plan: InductorPlan) -> list[dict[str, Any]]:
    """Findings of one graph, in the order of its kernels."""
    return [
        {
            "kind": str(finding.kind),
            "node": finding.node,
            "size_bytes": finding.size_bytes,
            "detail": finding.detail,
            "line": finding.line,
            "source": _text(finding.source),
        }
        for finding in plan.findings
    ]


def _allocations(plan: InductorPlan) -> list[dict[str, Any]]:
    alive = {live.name: live for live in plan.live_ranges}
    return [
        {
            "index": allocation.index,
            "size_bytes": allocation.size_bytes,
            "kinds": [str(kind) for kind in allocation.kinds],
            "parameter_number": allocation.parameter_number,
            "color": allocation.color,
            "start": life.start,
            "end": life.end,
            "held_at_peak": life.held_at_peak,
            "held_at_end": life.held_at_end,
            "line": life.line,
            "freed_line": life.freed_line,
            "values": [
                {
                    "name": value.name,
                    "offset_bytes": value.offset_bytes,
                    "size_bytes": value.size_bytes,
                    "shape": value.shape.text,
                    "start": alive[value.name].start if value.name in alive else None,
                    "end": alive[value.name].end if value.name in alive else None,
                }
                for value in allocation.values
            ],
        }
        for allocation, life in zip(plan.allocations, plan.lifetimes, strict=True)
    ]


def _measured(plan: InductorPlan) -> dict[str, Any] | None:
    if plan.measured is None:
        return None
    end = plan.measured.end_bytes
    return {
        "own_peak_bytes": plan.measured.own_peak_bytes,
        "end_bytes": end,
        "unexplained_peak_bytes": plan.remainder_bytes,
        "unexplained_end_bytes": None if end is None else end - plan.totals.end_bytes,
        "file": plan.measured.where,
    }


def _kernel_at(plan: InductorPlan, position: int | None) -> str | None:
    if position is None or position >= len(plan.kernels):
        return None
    return plan.kernels[position].name


def _layout(layout: Layout | None) -> dict[str, Any]:
    if layout is None:
        return {"dtype": None, "shape": None, "strides": None, "device": None}
    return {
        "dtype": layout.dtype,
        "shape": list(layout.shape),
        "strides": list(layout.strides),
        "device": layout.device,
    }


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return sum(size or 0 for size in known) if None not in known else None


def _text(source: SourceLine | None) -> str | None:
    return None if source is None else str(source)
