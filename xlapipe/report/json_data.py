"""A report as records: the JSON of `xlapipe report`, which HTML and Markdown render."""

from collections.abc import Mapping, Sequence
from typing import Any

from xlapipe.report.reported_dump import ReportedDump
from xlapipe.report.sections.aliasing import NOT_ALIASED, alias_groups, own_outputs
from xlapipe.report.sections.copies import copies
from xlapipe.report.sections.fusions import fusions
from xlapipe.report.sections.peak import Peak
from xlapipe.report.sections.two_dumps import Comparison


def report_data(
    dumps: Sequence[ReportedDump], comparison: Comparison | None = None
) -> dict[str, Any]:
    """The JSON of `xlapipe report`; bytes are ints."""
    return {
        "subjects": [dump_data(dump) for dump in dumps],
        "difference": comparison,
    }


def dump_data(dump: ReportedDump) -> dict[str, Any]:
    """The sections of one dump; `figures` is the JSON of `xlapipe show`."""
    return {
        "name": dump.name,
        "figures": dump.figures,
        "peak": _peak_data(dump.peak),
        "arenas": dump.peak.arenas,
        "aliasing": alias_groups(dump),
        "outputs_of_their_own": own_outputs(dump),
        "copies": copies(dump.plan),
        "fusions": fusions(dump.plan),
    }


def _peak_data(peak: Peak) -> dict[str, Any]:
    return {
        "position": peak.position,
        "instruction": peak.instruction,
        "occupied_bytes": peak.occupied_bytes,
        "idle_bytes": peak.idle_bytes,
        "groups": peak.groups,
        "by_source": peak.by_source,
    }


def headline_bytes(data: Mapping[str, Any]) -> dict[str, int | None]:
    """The sums at the top of a report: bytes copied, and bytes donated but not reused.

    Args:
      data: from `dump_data`.
    """
    copied = data["copies"]
    return {
        "copied_bytes": None if copied is None else sum(copy["copied_bytes"] for copy in copied),
        "not_aliased_bytes": sum(
            group.size_bytes for group in data["aliasing"] if group.answer == NOT_ALIASED
        ),
    }
