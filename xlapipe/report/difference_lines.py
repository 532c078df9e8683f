"""`xlapipe diff` for a terminal; readable without colour."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from xlapipe.diff import Difference, Sentence
from xlapipe.report.units import change_class, rounded

_MAX_SENTENCES = 40
_MAX_ACCOUNT_LINES = 12
_MAX_CONTEXT_LINES = 12
_MAX_TIME_LINES = 12


def difference_lines(difference: Difference) -> Iterator[Text]:
    """How the programs differ, then bytes, largest first, then all other changes."""
    yield Text(f"A  {difference.a_name}")
    yield Text(f"B  {difference.b_name}")
    for line in difference.context_lines()[:_MAX_CONTEXT_LINES]:
        yield Text(f"   {line}")
    if difference.same:
        yield Text("the plans are the same")
        return
    sentences = difference.sentences()
    if sentences.programs:
        yield Text(f"{difference.programs_note}:", style="bold yellow")
        yield from _sentence_lines(sentences.programs)
    if difference.first_stage is not None:
        yield Text(f"first stage that differs: {difference.first_stage}")
    a, b = difference.a_totals, difference.b_totals
    total = Text(
        f"total {a.total_allocation_bytes:,} B → {b.total_allocation_bytes:,} B: ", style="bold"
    )
    total.append(f"{difference.delta_bytes:+,} B", style=_colour(difference.delta_bytes))
    total.append(_direction(difference.delta_bytes))
    total.append(f" (temp {a.temp_bytes:,} B → {b.temp_bytes:,} B)")
    yield total
    yield from _account_lines(sentences.account)
    if sentences.changes:
        yield Text("changes", style="bold")
        yield from _sentence_lines(sentences.changes)
    if difference.time:
        yield Text("time", style="bold")
        for change in difference.time[:_MAX_TIME_LINES]:
            yield Text(f"  {change.text}")
        if len(difference.time) > _MAX_TIME_LINES:
            left = len(difference.time) - _MAX_TIME_LINES
            yield Text(f"  … and {left} more source lines (--json lists all)")


def _colour(delta_bytes: int) -> str:
    if not delta_bytes:
        return ""
    return "green" if change_class("total", delta_bytes) == "better" else "red"


def _direction(delta_bytes: int) -> str:
    """Whether the total rose, in words, and rounded."""
    if not delta_bytes:
        return ""
    return f", {rounded(abs(delta_bytes))} {'more' if delta_bytes > 0 else 'less'}"


def _account_lines(account: Sequence[Sentence]) -> Iterator[Text]:
    """The largest differences, and one line with the sum of the others."""
    rows = [(sentence.delta_bytes or 0, sentence.text) for sentence in account]
    if len(rows) > _MAX_ACCOUNT_LINES:
        rows, smaller = rows[: _MAX_ACCOUNT_LINES - 1], rows[_MAX_ACCOUNT_LINES - 1 :]
        text = f"{len(smaller)} smaller differences (--json lists all)"
        rows.append((sum(delta for delta, _ in smaller), text))
    for delta, text in rows:
        row = Text(f"{delta:+17,} B", style=_colour(delta))
        row.append(f"  {text}", style="default")
        yield row


def _sentence_lines(sentences: Sequence[Sentence]) -> Iterator[Text]:
    for sentence in sentences[:_MAX_SENTENCES]:
        yield Text(f"  {sentence.text}")
    if len(sentences) > _MAX_SENTENCES:
        yield Text(f"  … and {len(sentences) - _MAX_SENTENCES} more (--json lists all)")
