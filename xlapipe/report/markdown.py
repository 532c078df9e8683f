"""The report as Markdown, for terminals and pull requests.

The text depends only on the plan, not on the machine, the folder or the width of the terminal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from xlapipe.dump.opened import Opened
from xlapipe.plans.peak import Arena, PeakGroup
from xlapipe.report.collectives import collective_lines
from xlapipe.report.host_memory import host_lines
from xlapipe.report.json_data import DumpData, dump_data
from xlapipe.report.markdown_syntax import Row, code, fenced, plain, table
from xlapipe.report.memory_spaces import space_lines
from xlapipe.report.plan_figures import DumpFigures, GemmRow
from xlapipe.report.sections.copies import CopyRow
from xlapipe.report.sections.two_dumps import Comparison
from xlapipe.report.target_text import short_label
from xlapipe.report.time_lines import time_lines
from xlapipe.report.units import exact, rounded, share, signed

_MAX_ROWS = 30
_MAX_GAPS = 4


def render_markdown(dumps: Sequence[Opened], comparison: Comparison | None = None) -> str:
    """The whole report."""
    lines: list[str] = []
    if comparison is not None:
        lines += _difference(comparison)
    for dump in dumps:
        lines += _dump(dump)
    return "\n".join(lines).rstrip("\n") + "\n"


def _dump(dump: Opened) -> Iterator[str]:
    data = dump_data(dump)
    yield f"# {plain(dump.title)}"
    yield ""
    figures = data.figures
    if isinstance(figures, DumpFigures):
        versions = ", ".join(f"{key} {value}" for key, value in sorted(figures.versions.items()))
        label = short_label(figures.autotuning)
        yield f"GEMM policy {figures.gemm_policy}; {label}; {plain(versions)}"
        yield ""
    if figures.notes:
        yield from (f"- {plain(note)}" for note in figures.notes)
        yield ""
    yield from table(
        ("total", "bytes", ""),
        [(name, exact(value), rounded(value)) for name, value in asdict(figures.totals).items()],
        right=frozenset({1, 2}),
    )
    yield from _peak(data)
    yield from _arenas(data.arenas)
    yield from _aliasing(data)
    yield from _copies(data.copies)
    yield from _gemms(figures.gemms)
    for title, part in (
        ("Collectives", collective_lines(figures.collectives, figures.requested_collectives)),
        ("Time", time_lines(figures.time) if figures.time is not None else ()),
        ("Memories", space_lines(dump.program)),
        ("Host", host_lines(dump.plan)),
    ):
        if lines := list(part):
            yield from (f"## {title}", "", *fenced(lines), "")


def _peak(data: DumpData) -> Iterator[str]:
    peak, total = data.peak, data.figures.totals.total_allocation_bytes
    if peak.position is None:
        yield "## Contents of the memory"
        yield ""
        yield "This dump has no live ranges, so lifetimes are unknown."
    else:
        at = code(peak.instruction) if peak.instruction else "the end of the program"
        yield f"## In use at the peak: {exact(peak.occupied_bytes)}"
        yield ""
        yield (
            f"Schedule position {peak.position} ({at}); "
            f"{exact(peak.idle_bytes)} more are reserved but not in use there."
        )
    yield ""
    yield from _groups(peak.groups, total)
    yield "By source line: the line that reads an argument or computes another value."
    yield ""
    yield from _shortened(
        ("source line", "bytes", "", "share"),
        [
            (
                code(row.source),
                exact(row.total_bytes),
                rounded(row.total_bytes),
                share(row.total_bytes, total),
            )
            for row in peak.by_source
        ],
        frozenset({1, 2, 3}),
    )


def _groups(groups: Sequence[PeakGroup], whole: int) -> Iterator[str]:
    yield from _shortened(
        ("value", "role", "bytes", "", "share", "read or computed at"),
        [
            (
                code(group.label) + (f" × {n}" if (n := len(group.values)) > 1 else ""),
                str(group.role),
                exact(group.counted_bytes),
                rounded(group.counted_bytes),
                share(group.counted_bytes, whole),
                ", ".join(map(code, group.sources[:2])) or "–",
            )
            for group in groups
        ],
        frozenset({2, 3, 4}),
    )


def _arenas(arenas: Sequence[Arena]) -> Iterator[str]:
    yield "## Arenas and gaps"
    yield ""
    if not arenas:
        yield "None: every allocation contains one value."
        yield ""
        return
    yield from _shortened(
        (
            "allocation",
            "kind",
            "size",
            "values",
            "in use at the peak",
            "largest use",
            "never used",
            "gaps at the peak",
        ),
        [
            (
                str(arena.allocation),
                ", ".join(arena.kinds),
                exact(arena.size_bytes),
                str(arena.values),
                _known(arena.occupied_at_peak_bytes),
                _known(arena.fullest_bytes),
                exact(arena.never_used_bytes),
                _gaps(arena),
            )
            for arena in arenas
        ],
        frozenset({0, 2, 3, 4, 5, 6}),
    )
    for arena in arenas:
        if "preallocated-temp" in arena.kinds and arena.fullest_position is not None:
            yield (
                f"Contents of allocation {arena.allocation} at position "
                f"{arena.fullest_position}, where most of it is in use:"
            )
            yield ""
            yield from _groups(arena.groups_at_fullest, arena.size_bytes)


def _gaps(arena: Arena) -> str:
    if arena.occupied_at_peak_bytes is None:
        return "unknown"
    gaps = arena.gaps_at_peak
    shown = [f"{exact(gap.size_bytes)} at {gap.offset_bytes:,}" for gap in gaps]
    more = len(gaps) - _MAX_GAPS
    return "; ".join(shown[:_MAX_GAPS]) + (f"; … {more} more" if more > 0 else "") or "none"


def _aliasing(data: DumpData) -> Iterator[str]:
    yield "## Arguments and the outputs that reuse them"
    yield ""
    yield from _shortened(
        ("argument", "answer", "output", "bytes", ""),
        [
            (
                code(group.argument) + (f" × {n}" if (n := len(group.arguments)) > 1 else ""),
                group.answer,
                code(group.output) if group.output else "–",
                exact(group.size_bytes),
                rounded(group.size_bytes),
            )
            for group in data.aliasing
        ],
        frozenset({3, 4}),
    )
    for output in data.outputs_of_their_own:
        size = exact(output.size_bytes)
        yield f"- {code(output.output)} is in a separate allocation: {size}"
    if data.outputs_of_their_own:
        yield ""


def _copies(copies: Sequence[CopyRow] | None) -> Iterator[str]:
    yield "## Copies"
    yield ""
    if not copies:
        yield (
            "Unknown: this dump does not contain the bodies of fusions."
            if copies is None
            else "None: no instruction only moves data."
        )
        yield ""
        return
    yield from _shortened(
        ("value", "bytes", "", "operation", "source line"),
        [
            (
                code(copy.value),
                exact(copy.copied_bytes),
                rounded(copy.copied_bytes),
                code(copy.op_name) if copy.op_name else "–",
                code(str(copy.source)) if copy.source else "–",
            )
            for copy in copies
        ],
        frozenset({1, 2}),
    )


def _gemms(gemms: Sequence[GemmRow] | None) -> Iterator[str]:
    yield "## Matrix products"
    yield ""
    if not gemms:
        yield "None." if gemms is not None else "Unknown: this dump contains no HLO."
        yield ""
        return
    counts: dict[tuple[str, str, str], int] = {}
    for gemm in gemms:
        shapes = " × ".join(map(str, gemm.shapes[:-1])) + f" → {gemm.shapes[-1]}"
        key = (gemm.backend, shapes, str(gemm.source or ""))
        counts[key] = counts.get(key, 0) + 1
    yield from table(
        ("count", "backend", "operands → result", "source line"),
        [
            (str(count), backend, code(shapes), code(source) if source else "–")
            for (backend, shapes, source), count in sorted(
                counts.items(), key=lambda item: (-item[1], item[0])
            )
        ],
        right=frozenset({0}),
    )


def _difference(comparison: Comparison) -> Iterator[str]:
    yield f"# Difference: A {code(comparison.before)} → B {code(comparison.after)}"
    yield ""
    if comparison.notes:
        yield "; ".join(map(plain, comparison.notes))
        yield ""
    yield from table(
        ("total", "A", "B", "difference"),
        [
            (row.name, exact(row.before), exact(row.after), signed(row.delta_bytes))
            for row in comparison.totals
        ],
        right=frozenset({1, 2, 3}),
    )
    for sentence in comparison.sentences:
        delta = f"**{signed(sentence.delta_bytes)}** " if sentence.delta_bytes is not None else ""
        yield f"- {delta}{plain(sentence.text)}"
    if comparison.sentences:
        yield ""


def _shortened(headings: Row, rows: Sequence[Row], right: frozenset[int]) -> Iterator[str]:
    yield from table(headings, rows[:_MAX_ROWS], right=right)
    if len(rows) > _MAX_ROWS:
        yield f"… and {len(rows) - _MAX_ROWS} smaller rows (`--json` lists all)."
        yield ""


def _known(size_bytes: int | None) -> str:
    return exact(size_bytes) if size_bytes is not None else "unknown"
