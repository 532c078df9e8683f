"""A plan as a notebook shows it: totals, the peak by source line, and the page with the map."""

from html import escape

from xlapipe.api.rows import html_table
from xlapipe.dump.opened import Opened
from xlapipe.plans.peak import Peak
from xlapipe.report.target_text import short_label
from xlapipe.report.units import rounded, seconds_text

_LINES = 10
# Pixels of the page.
_FRAME_HEIGHT = 620


def notebook_page(opened: Opened, peak: Peak, page: str) -> str:
    """HTML of which all but the page is readable where frames and scripts are not allowed.

    Args:
      page: the document of `xlapipe report`.
    """
    totals = opened.plan.totals
    kinds = {
        "total": totals.total_allocation_bytes,
        "arguments": totals.parameter_bytes,
        "outputs": totals.live_out_bytes,
        "of these aliased": totals.aliased_bytes,
        "temporary": totals.temp_bytes,
    }
    sizes = {name: rounded(size) for name, size in kinds.items()}
    prediction = opened.prediction
    if prediction is not None and prediction.seconds is not None:
        over = f", network {prediction.network_name}" if prediction.network else ""
        sizes["predicted time"] = seconds_text(prediction.seconds) + over
    lines = [
        {"bytes at the peak": row.total_bytes, "": rounded(row.total_bytes), "line": row.source}
        for row in peak.by_source[:_LINES]
    ]
    return (
        f"<p><b>{escape(opened.title)}</b>, {escape(short_label(opened.autotuning))}</p>"
        f"{html_table([sizes])}"
        f"{html_table(lines)}"
        f"{framed(page)}"
    )


def framed(page: str) -> str:
    """A document in a frame, in which its scripts run alone."""
    return (
        f'<iframe srcdoc="{escape(page, quote=True)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{_FRAME_HEIGHT}px;border:0"></iframe>'
    )
