"""The JSON of a step's time: floor, XLA's estimate and measured times, per kernel and in total."""

from collections.abc import Mapping
from typing import Any

from xlapipe.cost.step_cost import KernelCost
from xlapipe.dumps.opened import Opened
from xlapipe.dumps.time_record import TimeRecord
from xlapipe.targets.speeds import Speeds


def time_figures(opened: Opened) -> dict[str, Any] | None:
    """Bytes are ints, times are seconds per step; None if the dump has no complete HLO module.

    The figures of a kernel are of all its launches in a step. `traffic_bytes` and `floor_seconds`
    are the least that a step needs, `traffic_at_most_bytes` the most that its kernels may touch.
    """
    cost = opened.step_cost
    if cost is None:
        return None
    record = opened.time_record
    seconds_of = record.seconds_of if record is not None else {}
    return {
        "traffic_bytes": cost.traffic_bytes,
        "traffic_at_most_bytes": cost.traffic_at_most_bytes,
        "floor_seconds": cost.floor_seconds,
        "bound_seconds": dict(cost.bound_seconds()),
        "estimate_seconds": cost.estimate_seconds,
        "estimated_share": cost.estimated_share,
        "launches": cost.launches,
        "speeds": _speeds(opened.speeds),
        "measured": _measured(record),
        "kernels": [_kernel(kernel, seconds_of) for kernel in cost.kernels],
    }


def _kernel(kernel: KernelCost, seconds_of: Mapping[str, float]) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "source": str(kernel.source) if kernel.source is not None else None,
        "op_name": kernel.op_name,
        "launches": kernel.launches,
        "read_bytes": kernel.read_bytes,
        "written_bytes": kernel.written_bytes,
        "cached_bytes": kernel.cached_bytes,
        "unknown_bytes": kernel.unknown_bytes,
        "flops": kernel.total_flops,
        "bound": kernel.bound,
        "floor_seconds": kernel.floor_seconds,
        "estimate_seconds": kernel.estimate_seconds,
        "measured_seconds": seconds_of.get(kernel.name),
    }


def _speeds(speeds: Speeds | None) -> dict[str, Any] | None:
    if speeds is None:
        return None
    return {
        "bandwidth_bytes_per_second": speeds.bandwidth,
        "l2_bytes": speeds.l2_bytes,
        "peak_flops": dict(speeds.peak_flops),
        "peak_source": speeds.peak_source or None,
        "link_bandwidth_bytes_per_second": speeds.link_bandwidth,
    }


def _measured(record: TimeRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    measured = record.measured
    return {
        "device": record.provenance.get("device"),
        "wall_seconds": record.wall_seconds,
        "profiled_wall_seconds": record.profiled_wall_seconds,
        "span_seconds": measured.span_seconds,
        "busy_seconds": measured.busy_seconds,
        "before_seconds": measured.before_seconds,
        "after_seconds": measured.after_seconds,
        "kernel_seconds": measured.kernel_seconds,
        "by_name_seconds": measured.by_name_seconds,
        "by_order_seconds": measured.by_order_seconds,
        "matched_share": measured.matched_share,
    }
