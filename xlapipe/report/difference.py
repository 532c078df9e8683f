"""`xlapipe diff` for a terminal, readable without colour; its JSON, and a page on two dumps."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from xlapipe.differences import Difference, Sentence, compare_opened
from xlapipe.report import cells
from xlapipe.report.pages import Page, Section, Table
from xlapipe.report.units import change_class, rounded
from xlapipe.report.xla_subject import XlaSubject

_MAX_SENTENCES = 15
_MAX_ACCOUNT_LINES = 12
_MAX_CONTEXT_LINES = 12
_MAX_TIME_LINES = 12


def difference_lines(difference: Difference, *, everything: bool = False) -> Iterator[Text]:
    """The totals, how the programs differ, then bytes, largest first, then all other changes."""
    yield Text(f"A  {difference.a_name}")
    yield Text(f"B  {difference.b_name}")
    for line in difference.context_lines()[: None if everything else _MAX_CONTEXT_LINES]:
        yield Text(f"   {line}")
    yield from _change_lines(difference, everything)


def _change_lines(difference: Difference, everything: bool) -> Iterator[Text]:
    if difference.same:
        yield Text("the plans are the same")
        return
    yield _total_line(difference)
    sentences = difference.sentences()
    if sentences.programs:
        yield Text(f"{difference.programs_note}:", style="bold yellow")
        yield from _sentence_lines(sentences.programs, everything)
    if difference.first_stage is not None:
        yield Text(f"first stage that differs: {difference.first_stage}")
    if sentences.account:
        yield Text("bytes", style="bold")
        yield from _account_lines(sentences.account, everything)
    if sentences.changes:
        yield Text("changes", style="bold")
        yield from _sentence_lines(sentences.changes, everything)
    if difference.time:
        yield Text("time", style="bold")
        shown = difference.time[: None if everything else _MAX_TIME_LINES]
        yield from (Text(f"  {change.text}") for change in shown)
        if len(difference.time) > len(shown):
            yield Text(f"  … and {len(difference.time) - len(shown)} more source lines (--all)")


def _total_line(difference: Difference) -> Text:
    a, b = difference.a_totals, difference.b_totals
    total = Text(
        f"total {a.total_allocation_bytes:,} B → {b.total_allocation_bytes:,} B: ", style="bold"
    )
    total.append(f"{difference.delta_bytes:+,} B", style=_colour(difference.delta_bytes))
    if delta := difference.delta_bytes:
        total.append(f", {rounded(abs(delta))} {'more' if delta > 0 else 'less'}")
    total.append(f" (temp {a.temp_bytes:,} B → {b.temp_bytes:,} B)")
    return total


def _colour(delta_bytes: int) -> str:
    if not delta_bytes:
        return ""
    return "green" if change_class("total", delta_bytes) == "better" else "red"


def _account_lines(account: Sequence[Sentence], everything: bool) -> Iterator[Text]:
    """The largest differences, and one line with the sum of the others."""
    rows = [(sentence.delta_bytes or 0, sentence.text) for sentence in account]
    if len(rows) > _MAX_ACCOUNT_LINES and not everything:
        rows, smaller = rows[: _MAX_ACCOUNT_LINES - 1], rows[_MAX_ACCOUNT_LINES - 1 :]
        text = f"{len(smaller)} smaller differences (--all)"
        rows.append((sum(delta for delta, _ in smaller), text))
    for delta, text in rows:
        row = Text(f"{delta:+17,} B", style=_colour(delta))
        row.append(f"  {text}", style="default")
        yield row


def _sentence_lines(sentences: Sequence[Sentence], everything: bool) -> Iterator[Text]:
    """The first ones; those that only follow from others are counted."""
    if everything:
        yield from (Text(f"  {sentence.text}") for sentence in sentences)
        return
    causes = [sentence for sentence in sentences if not sentence.follows]
    yield from (Text(f"  {sentence.text}") for sentence in causes[:_MAX_SENTENCES])
    rest = [("more", causes[_MAX_SENTENCES:])]
    rest += [("of instructions that only read other values", [s for s in sentences if s.follows])]
    listed = [f"{sum(s.count for s in others)} {what}" for what, others in rest if others]
    if listed:
        yield Text(f"  … and {', '.join(listed)} (--all)")


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
        "sentences": asdict(difference.sentences()),
    }


def difference_page(before: XlaSubject, after: XlaSubject) -> Page:
    """What a report on two dumps begins with: totals, and the sentences of `diff`."""
    studies = before.study, after.study
    difference = compare_opened(before.program, after.program, studies=studies)
    notes = difference.context_lines()
    if difference.same:
        notes.append("The plans are the same.")
    if difference.programs_note is not None:
        note = difference.programs_note
        notes.append(f"{note[0].upper()}{note[1:]}.")
    if difference.first_stage is not None:
        notes.append(f"First stage that differs: {difference.first_stage}.")
    sentences = Table.of(
        "What changed",
        difference.sentences(),
        {
            "bytes": lambda sentence: cells.change("total", sentence.delta_bytes),
            "change": lambda sentence: sentence.text,
        },
    )
    old, new = asdict(difference.a_totals), asdict(difference.b_totals)
    totals = Table.of(
        "Totals",
        old,
        {
            "total": str,
            "A": lambda name: cells.size(old[name]),
            "B": lambda name: cells.size(new[name]),
            "difference": lambda name: cells.change(name, new[name] - old[name]),
        },
    )
    tables = tuple(table for table in (sentences, totals) if table.rows)
    section = Section("", tuple(notes), tables, "difference")
    return Page(f"Difference: A {before.name} → B {after.name}", "XLA", (section,))
