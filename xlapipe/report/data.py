"""A report as plain data: what `xlapipe report --json` prints, and the page draws from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from xlapipe.plan.copies import find_copies
from xlapipe.report.aliasing import NOT_ANSWERED, alias_groups, own_outputs
from xlapipe.report.comparison import Comparison
from xlapipe.report.subject import Subject


def report_data(
    subjects: Sequence[Subject], comparison: Comparison | None = None
) -> dict[str, Any]:
    """The JSON of `xlapipe report`; bytes are ints."""
    return {
        "subjects": [subject_data(subject) for subject in subjects],
        "difference": asdict(comparison) if comparison is not None else None,
    }


def subject_data(subject: Subject) -> dict[str, Any]:
    """One dump: `figures` is the JSON of `xlapipe show`, the rest comes from the same plan."""
    peak = subject.peak
    return {
        "name": subject.name,
        "figures": subject.figures,
        "peak": {
            "position": peak.position,
            "instruction": peak.instruction,
            "occupied_bytes": peak.occupied_bytes,
            "idle_bytes": peak.idle_bytes,
            "groups": [asdict(group) for group in peak.groups],
            "by_source": [
                {**asdict(row), "total_bytes": row.total_bytes} for row in peak.by_source
            ],
        },
        "arenas": [asdict(arena) for arena in peak.arenas],
        "aliasing": [asdict(group) for group in alias_groups(subject)],
        "outputs_of_their_own": [asdict(output) for output in own_outputs(subject)],
        "copies": copies(subject),
        "fusions": fusions(subject),
    }


def answers(data: Mapping[str, Any]) -> dict[str, int | None]:
    """What people ask first, from `subject_data`: bytes copied, and of donations not answered."""
    copied = data["copies"]
    return {
        "copied_bytes": None if copied is None else sum(each["copied_bytes"] for each in copied),
        "not_answered_bytes": sum(
            group["size_bytes"] for group in data["aliasing"] if group["answer"] == NOT_ANSWERED
        ),
    }


def copies(subject: Subject) -> list[dict[str, Any]] | None:
    """Values written by moving data alone, largest first; None where bodies of fusions lack."""
    if subject.plan.module is None or not subject.plan.module.complete:
        return None
    return [
        {
            "instruction": copy.instruction,
            "value": copy.value,
            "copied_bytes": copy.copied_bytes,
            "allocation": copy.allocation,
            "op_name": copy.op_name,
            "source": str(copy.source) if copy.source is not None else None,
        }
        for copy in find_copies(subject.plan)
    ]


def fusions(subject: Subject) -> list[dict[str, Any]]:
    """Fusions outside other fusions, in scheduled order, with the bytes that they write."""
    written: dict[str, int] = {}
    for allocation in subject.plan.allocations:
        for value in allocation.values:
            if not value.shape.startswith("("):
                name = value.instruction
                written[name] = written.get(name, 0) + value.size_bytes
    return [
        {
            "instruction": each.name,
            "kind": each.fusion_kind,
            "backend_kind": each.fusion_backend_kind,
            "shape": each.shape,
            "written_bytes": written.get(each.name, 0),
            "op_name": each.op_name,
            "source": str(each.source) if each.source is not None else None,
        }
        for each in subject.plan.instructions.values()
        if each.opcode == "fusion"
    ]
