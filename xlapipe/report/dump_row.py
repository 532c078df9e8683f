"""One row of `xlapipe dump` and `xlapipe build`, as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from xlapipe.dump.dump import Dump


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
        "gemms": dict(sorted(Counter(str(gemm.backend) for gemm in plan.gemms).items())),
        "aliases": len(plan.aliases),
        "seconds": round(seconds, 2),
        "notes": list(notes),
    }
