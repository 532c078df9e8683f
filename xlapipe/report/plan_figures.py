"""The JSON of `xlapipe show`.

What a dump does not hold is None; bytes are ints on one device.
"""

from typing import Any

from xlapipe.devices.platforms import platform_named
from xlapipe.dump.dump import Dump
from xlapipe.plans import Plan
from xlapipe.plans.copies import Copy, find_copies, find_moves
from xlapipe.plans.donation import donations
from xlapipe.plans.host_transfers import find_host_transfers
from xlapipe.plans.memory_spaces import space_of
from xlapipe.plans.once import once_per_object
from xlapipe.plans.peak import peak_of
from xlapipe.plans.second_call import recompiles
from xlapipe.report.collective_lines import collective_figures, requested_collectives
from xlapipe.report.donation_lines import donation_figures
from xlapipe.report.memory_spaces import move_figures, space_rows
from xlapipe.report.overview.overview import Overview
from xlapipe.report.records import named
from xlapipe.report.time_figures import step_time
from xlapipe.report.xla_subject import XlaSubject


@once_per_object
def figures_of(opened: XlaSubject) -> dict[str, Any]:
    """The figures of a dump of xlapipe, or of files that XLA wrote."""
    peak, copies = peak_of(opened.program), known_copies(opened.plan)
    return {
        **_plan_figures(opened.plan),
        **dict.fromkeys(("xla_patches", "target", "topology", "mesh", "tuned", "refused")),
        **dict.fromkeys(("recompiles", "donations")),
        **(_dump_figures(opened.dump) if opened.dump is not None else {}),
        "notes": opened.notes,
        "collectives": collective_figures(opened),
        "requested_collectives": requested_collectives(opened),
        "overview": Overview(opened),
        "time": step_time(opened),
        "peak": named(peak, *_OF_THE_PEAK),
        "copies": copies and [named(copy, *_OF_A_COPY) for copy in copies],
    }


_OF_THE_PEAK = ("position", "instruction", "occupied_bytes", "idle_bytes", "groups", "by_source")
_OF_A_COPY = ("instruction", "value", "copied_bytes", "allocation", "op_name", "source")


def _plan_figures(plan: Plan) -> dict[str, Any]:
    platform = platform_named(plan.platform)
    return {
        "totals": plan.totals,
        "on_tpu": platform.has_chip_memory,
        "spaces": space_rows(plan),
        **named(plan.live_ranges, "live_range_peak_bytes", "live_range_peak_position"),
        "allocations": [
            {
                **named(item, "index", "size_bytes", "kinds", "parameter_number", "color"),
                "space": space_of(item.color, platform),
                "values": item.values,
            }
            for item in plan.allocations
        ],
        "aliases": [named(alias, "parameter_number", "output_index") for alias in plan.aliases],
        # The shapes are those of the operands and, last, of the result.
        "gemms": plan.module
        and [
            named(gemm, "instruction", "backend", "shapes", "op_name", "source")
            for gemm in plan.gemms
        ],
        "host_transfers": find_host_transfers(plan),
        "moves": list(map(move_figures, find_moves(plan))),
        "host_callbacks": [
            {"instruction": call.name, **named(call, "source", "op_name")}
            for call in plan.host_callbacks
        ],
        "calls_without_workspace": [
            {"instruction": call.name, "source": call.source} for call in plan.unfinished_calls
        ],
        "untuned_calls": [call.name for call in plan.untuned_calls],
        "missing_memory": plan.missing_memory,
        "thunks": plan.thunk_counts,
    }


def _dump_figures(dump: Dump) -> dict[str, Any]:
    """What the manifest and the compile add."""
    manifest = dump.manifest
    names = ("target", "topology", "mesh", "refused", "xla_patches", "autotuning", "workload")
    return {
        **named(manifest, *names, "gemm_policy", "versions", "options", "arguments", "outputs"),
        "tuned": manifest.tuned_or_none,
        "recompiles": recompiles(dump),
        "donations": list(map(donation_figures, donations(dump))),
    }


def known_copies(plan: Plan) -> tuple[Copy, ...] | None:
    """Copies, largest first; None if the dump does not contain the bodies of fusions."""
    return find_copies(plan) if plan.module is not None and plan.module.complete else None
