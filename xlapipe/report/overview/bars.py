"""Sizes that add up to a total, as bars."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from xlapipe.report.units import in_unit, share, unit_for

# Smaller parts of a total are not listed.
LEAST_SHARE = 0.0005
_BAR = 28


def bar_lines(rows: Sequence[tuple[str, int]], total_bytes: int) -> Iterator[Text]:
    """A line per row with label, bytes, share and a bar; rows below `LEAST_SHARE` are left out."""
    total, unit = max(total_bytes, 1), unit_for(total_bytes)
    shown = [(label, size) for label, size in rows if size and size >= LEAST_SHARE * total]
    digits = max((len(in_unit(size, unit)) for _, size in shown), default=0)
    for label, size in shown:
        bar = "█" * round(_BAR * size / total) or "▏"
        text = in_unit(size, unit)
        yield Text(f"  {label:<20} {text:>{digits}} {share(size, total):>7}  {bar}")
