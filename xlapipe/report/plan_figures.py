"""The JSON of `xlapipe show`. What a file does not contain is None."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from xlapipe.dumps.dump import Dump
from xlapipe.dumps.opened import Opened
from xlapipe.plans import Plan
from xlapipe.plans.copies import find_moves
from xlapipe.plans.donation import donations
from xlapipe.plans.host_transfers import find_host_transfers
from xlapipe.plans.memory_spaces import space_of
from xlapipe.plans.padding import find_padding
from xlapipe.plans.program import RequestedCollective
from xlapipe.platforms import platform_named
from xlapipe.report.collectives import collective_figures
from xlapipe.report.donation import donation_figures
from xlapipe.report.memory_spaces import move_figures, space_figures
from xlapipe.report.time_figures import step_time
from xlapipe.targets.topology import Topology


def plan_figures(plan: Plan) -> dict[str, Any]:
    """The JSON of a plan; bytes are ints, shapes are as XLA prints them."""
    live = plan.live_ranges
    platform = platform_named(plan.platform)
    return {
        "totals": asdict(plan.totals),
        "on_tpu": plan.platform == "tpu",
        "spaces": space_figures(plan),
        "live_range_peak_bytes": live.live_range_peak_bytes if live is not None else None,
        "live_range_peak_position": live.live_range_peak_position if live is not None else None,
        "allocations": [
            {
                "index": allocation.index,
                "size_bytes": allocation.size_bytes,
                "kinds": allocation.kinds,
                "parameter_number": allocation.parameter_number,
                "color": allocation.color,
                "space": space_of(allocation.color, platform),
                "values": allocation.values,
            }
            for allocation in plan.allocations
        ],
        "aliases": [
            {"parameter_number": alias.parameter_number, "output_index": alias.output_index}
            for alias in plan.aliases
        ],
        "gemms": None
        if plan.module is None
        else [
            {
                "instruction": gemm.instruction,
                "backend": gemm.backend,
                "shapes": gemm.shapes,
                "op_name": gemm.op_name,
                "source": gemm.source,
            }
            for gemm in plan.gemms
        ],
        "collectives": collective_figures(plan.collectives),
        "host_transfers": find_host_transfers(plan),
        "moves": [move_figures(move) for move in find_moves(plan)],
        "host_callbacks": [
            {"instruction": call.name, "source": call.source, "op_name": call.op_name}
            for call in plan.host_callbacks
        ],
        "calls_without_workspace": [
            {"instruction": call.name, "source": call.source} for call in plan.unfinished_calls
        ],
        "untuned_calls": [call.name for call in plan.untuned_calls],
        "xla_patches": None,
        "missing_memory": [
            {
                "kind": item.kind,
                "instruction": item.instruction,
                "about_bytes": item.about_bytes,
                "source": item.source,
            }
            for item in plan.missing_memory
        ],
        "thunks": plan.thunk_counts,
        "notes": plan.notes,
        "target": None,
        "topology": None,
        "mesh": None,
        "tuned": None,
        "refused": None,
        "donations": None,
        "requested_collectives": None,
        "padding": [],
    }


def dump_figures(dump: Dump) -> dict[str, Any]:
    """`plan_figures` with the contents of the manifest."""
    manifest = dump.manifest
    compiled, requested = _collectives_of_dump(dump)
    return {
        **plan_figures(dump.plan),
        "notes": [*dump.plan.notes, *manifest.notes],
        "target": manifest.target,
        "topology": manifest.topology,
        "mesh": dict(manifest.mesh) if manifest.mesh is not None else None,
        "tuned": manifest.tuned_or_none,
        "refused": manifest.refused,
        "autotuning": manifest.autotuning,
        "workload": manifest.workload,
        "gemm_policy": manifest.gemm_policy,
        "xla_patches": manifest.xla_patches,
        "versions": manifest.versions,
        "options": manifest.options,
        "arguments": manifest.arguments,
        "outputs": manifest.outputs,
        "donations": [donation_figures(row) for row in donations(dump.program)],
        "collectives": compiled,
        "requested_collectives": requested,
        "padding": find_padding(dump.program),
    }


def opened_figures(opened: Opened, *, with_time: bool = True) -> dict[str, Any]:
    """The JSON of a dump of xlapipe, or of files that XLA wrote.

    Args:
      with_time: whether to compute `time`, which is None otherwise.
    """
    figures = plan_figures(opened.plan) if opened.dump is None else dump_figures(opened.dump)
    return {**figures, "time": step_time(opened) if with_time else None}


Rows = list[dict[str, Any]] | None
Requested = Sequence[RequestedCollective] | None


def collectives_of(opened: Opened) -> tuple[Rows, Requested]:
    """The collectives of the compiled module and of the traced program; None if unknown."""
    if opened.dump is None:
        return collective_figures(opened.plan.collectives), None
    return _collectives_of_dump(opened.dump)


def _collectives_of_dump(dump: Dump) -> tuple[Rows, Requested]:
    manifest = dump.manifest
    gpus = (
        Topology.parse(manifest.topology).gpus
        if manifest.topology is not None and not platform_named(manifest.platform).has_chip_grid
        else None
    )
    compiled = collective_figures(dump.plan.collectives, gpus)
    return compiled, manifest.requested_collectives


def gemm_counts(plan: Plan) -> dict[str, int]:
    """Number of GEMMs by backend."""
    return dict(sorted(Counter(str(gemm.backend) for gemm in plan.gemms).items()))
