"""The JSON of `xlapipe diff`, and of a report on two dumps."""

from dataclasses import asdict
from typing import Any

from xlapipe.diff import Difference, compare_opened
from xlapipe.dump.opened import Opened


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


def compare_dumps(before: Opened, after: Opened) -> dict[str, Any]:
    """What a report on two dumps begins with: totals in bytes, and the sentences of `diff`.

    `notes` are what to know before reading the sentences, e.g. that the programs differ.

    Raises:
      DumpError: a text in a dump is damaged.
    """
    difference = compare_opened(before, after)
    old, new = asdict(difference.a_totals), asdict(difference.b_totals)
    notes = difference.context_lines()
    if difference.same:
        notes.append("The plans are the same.")
    if difference.programs_note is not None:
        note = difference.programs_note
        notes.append(f"{note[0].upper()}{note[1:]}.")
    if difference.first_stage is not None:
        notes.append(f"First stage that differs: {difference.first_stage}.")
    return {
        "before": before.name,
        "after": after.name,
        "totals": [{"name": name, "before": old[name], "after": new[name]} for name in old],
        "notes": notes,
        "sentences": list(difference.sentences()),
    }
