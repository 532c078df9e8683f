"""The JSON of `xlapipe report`. Bytes are ints."""

from collections import Counter
from typing import Any

from xlapipe.dump.opened import Opened
from xlapipe.plans import Plan
from xlapipe.plans.copies import Copy, find_copies
from xlapipe.plans.peak import peak_of
from xlapipe.report.aliasing import alias_groups, own_outputs
from xlapipe.report.plan_figures import figures_of
from xlapipe.report.records import named


def dump_data(dump: Opened) -> dict[str, Any]:
    """The sections of one dump; `figures` is the JSON of `xlapipe show`."""
    peak, copies = peak_of(dump.program), known_copies(dump.plan)
    names = ("position", "instruction", "occupied_bytes", "idle_bytes", "groups", "by_source")
    return {
        "name": dump.name,
        "figures": figures_of(dump),
        "peak": named(peak, *names),
        "arenas": peak.arenas,
        "aliasing": alias_groups(dump),
        "outputs_of_their_own": own_outputs(dump),
        "copies": copies and [named(copy, *_OF_A_COPY) for copy in copies],
        "fusions": fusion_rows(dump.plan),
    }


_OF_A_COPY = ("instruction", "value", "copied_bytes", "allocation", "op_name", "source")


def known_copies(plan: Plan) -> tuple[Copy, ...] | None:
    """Copies, largest first; None if the dump does not contain the bodies of fusions."""
    return find_copies(plan) if plan.module is not None and plan.module.complete else None


def fusion_rows(plan: Plan) -> list[dict[str, Any]]:
    """The fusions that are not inside another one, in scheduled order, with what they write."""
    written_bytes: Counter[str] = Counter()
    for allocation in plan.allocations:
        for value in allocation.values:
            if not value.shape.is_tuple:
                written_bytes[value.instruction] += value.size_bytes
    return [
        {
            "instruction": fusion.name,
            "kind": fusion.fusion_kind,
            "backend_kind": fusion.fusion_backend_kind,
            "shape": fusion.shape,
            "written_bytes": written_bytes[fusion.name],
            "op_name": fusion.op_name,
            "source": fusion.source,
        }
        for fusion in plan.instructions.values()
        if fusion.opcode == "fusion"
    ]
