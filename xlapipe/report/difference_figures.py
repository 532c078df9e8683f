"""The JSON of `xlapipe diff`."""

from dataclasses import asdict
from typing import Any

from xlapipe.diff import Difference


def difference_figures(difference: Difference) -> dict[str, Any]:
    """The data of every change, and the sentences that state them."""
    return {
        "same": difference.same,
        "a": {"name": difference.a_name, "totals": asdict(difference.a_totals)},
        "b": {"name": difference.b_name, "totals": asdict(difference.b_totals)},
        "context": {name: list(values) for name, values in difference.context.items()},
        "first_stage": difference.first_stage,
        "delta_bytes": difference.delta_bytes,
        "programs": [asdict(change) for change in difference.programs],
        "account": [
            {"delta_bytes": line.delta_bytes, **asdict(line)} for line in difference.account
        ],
        "changes": [
            {"change": type(change).__name__, **asdict(change)} for change in difference.changes
        ],
        "time": [
            {
                **asdict(change),
                "delta_seconds": change.delta_seconds,
                "predicted_delta_seconds": change.predicted_delta_seconds,
                "text": change.text,
            }
            for change in difference.time
        ],
        "compile_time": {
            "text": difference.compile_time_text,
            "ratio": difference.compile_time_ratio,
            "cpu_seconds": [times.cpu_seconds for times in difference.compile_times],
            "seconds": [times.wall_seconds for times in difference.compile_times],
        }
        if difference.compile_times is not None
        else None,
        "sentences": asdict(difference.sentences()),
    }
