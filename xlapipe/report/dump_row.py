"""One row of `xlapipe dump` and `xlapipe build`, as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from xlapipe.dump.dump import Dump
from xlapipe.plans import Plan


def dump_row(
    dump: Dump, *, changed: bool, seconds: float, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """What a compile wrote."""
    manifest, plan = dump.manifest, dump.plan
    return {
        "workload": manifest.workload,
        "target": manifest.target,
        "topology": manifest.topology,
        "gemm_policy": manifest.gemm_policy,
        "tuned": manifest.tuned_or_none,
        "autotuning": manifest.autotuning,
        "predicted_lock": manifest.predicted_lock,
        "path": str(dump.path),
        "changed": changed,
        "allocations": len(plan.allocations),
        **asdict(plan.totals),
        "gemms": _gemm_counts(plan),
        "aliases": len(plan.aliases),
        "seconds": round(seconds, 2),
        "notes": list(notes),
    }


def _gemm_counts(plan: Plan) -> dict[str, int]:
    """Number of GEMMs by backend."""
    return dict(sorted(Counter(str(gemm.backend) for gemm in plan.gemms).items()))
