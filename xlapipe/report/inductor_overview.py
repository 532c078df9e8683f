"""The overview of a dump of torch Inductor for a terminal: at most 40 lines per graph."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from xlapipe.errors import DumpError
from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.inductor.reader import InductorDump
from xlapipe.plans.buffers import AllocationKind, BufferAllocation
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.wording import counted
from xlapipe.report.inductor_lines import (
    alias_lines,
    finding_tables,
    heading,
    kernel_line,
    measured_line,
    sequence_line,
)
from xlapipe.report.overview.overview_lines import bar_lines
from xlapipe.report.overview.source_text import SourceTexts
from xlapipe.report.overview.wording import ShortNames, shapes_text, short_names
from xlapipe.report.units import exact, in_unit, rounded, share, unit_for
from xlapipe.report.wrapped_text import shortened, wrapped

_MAX_ROWS = 8
_MAX_NOTES = 2
_MAX_OPERATORS = 2
_MAX_GRAPHS = 30


def graphs_named(dump: InductorDump, name: str) -> InductorDump:
    """The graphs whose name contains `name`.

    Raises:
      DumpError: no graph has such a name.
    """
    plans = tuple(plan for plan in dump.plans if name in plan.graph)
    if not plans:
        names = ", ".join(plan.graph for plan in dump.plans)
        raise DumpError(
            f"{dump.path}: expected a graph whose name contains {name!r}, found "
            f"{counted(len(dump.plans), 'other')}; fix: name one of: {names:.400}"
        )
    return InductorDump(dump.path, plans)


def overview_lines(dump: InductorDump, command: str, *, width: int) -> Iterator[Text]:
    """One graph on one screen, or a list of several, the largest first.

    Args:
      command: that prints this, for the next one.
      width: in characters.
    """
    if len(dump.plans) > 1:
        yield from _list(dump, command, width)
        return
    (plan,) = dump.plans
    texts = SourceTexts(dump.path)
    for part in (_head(plan), _tables(plan, texts, width), _tail(plan, command)):
        for line in part:
            if line.plain.startswith("Next: "):  # to be pasted
                yield line
                continue
            text = line.plain.lstrip()
            start = len(line.plain) - len(text)
            indent = max(start, 2)
            for folded in wrapped(text, width, indent=indent, first=" " * start):
                yield Text(folded, style=line.style)


def _list(dump: InductorDump, command: str, width: int) -> Iterator[Text]:
    yield Text(f"{dump.path}: {len(dump.plans)} graphs, the largest peak first", style="bold")
    rows = sorted(dump.plans, key=lambda plan: (-plan.totals.own_peak_bytes, plan.graph))
    for plan in rows[:_MAX_GRAPHS]:
        size = rounded(plan.totals.own_peak_bytes)
        yield from map(Text, wrapped(heading(plan), width, indent=16, first=f"  {size:>10}  "))
    if len(rows) > _MAX_GRAPHS:
        yield Text(f"  and {len(rows) - _MAX_GRAPHS} more (--json lists all)")
    line = sequence_line(dump)
    if line is not None:
        yield from map(Text, wrapped(f"  {line}", width, indent=4))
    yield from _notes(rows[0], width)
    yield Text(f"Next: {command} --module {rows[0].graph}", style="bold")


def _notes(plan: InductorPlan, width: int) -> Iterator[Text]:
    for note in plan.notes[:_MAX_NOTES]:
        yield Text(shortened(f"  note: {note}", width))
    if len(plan.notes) > _MAX_NOTES:
        yield Text(f"  and {len(plan.notes) - _MAX_NOTES} more notes (--all)")


def _head(plan: InductorPlan) -> Iterator[Text]:
    totals = plan.totals
    least = " or more" if totals.unknown_allocations else ""
    arguments = totals.argument_bytes
    kind = f", {plan.kind} graph" if plan.kind is not None else ""
    beside = f", beside {rounded(arguments)} of arguments" if arguments is not None else ""
    yield Text(
        f"{plan.graph}{kind} of torch Inductor: peak of {rounded(totals.own_peak_bytes)}{least}"
        f"{beside}",
        style="bold",
    )
    known = exact(arguments) if arguments is not None else "unknown"
    yield Text(f"  {exact(totals.own_peak_bytes)}, arguments {known}; {plan.basis}")
    measured = measured_line(plan)
    if measured is not None:
        yield Text(f"  {measured}")
    for note in plan.notes[:_MAX_NOTES]:
        yield Text(f"  note: {note}")
    if plan.peak_position is not None and plan.peak_position < len(plan.kernels):
        kernel = plan.kernels[plan.peak_position]
        at = f", line {plan.peak_line} of the code" if plan.peak_line is not None else ""
        yield Text(
            f"Peak at kernel {plan.peak_position + 1:,} of {len(plan.kernels):,}, "
            f"{kernel.name}{at}",
            style="bold",
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """Allocations at the peak of one purpose and one source line."""

    purpose: str
    source: SourceLine | None
    allocations: tuple[BufferAllocation, ...]

    @property
    def size_bytes(self) -> int:
        return sum(allocation.size_bytes for allocation in self.allocations)


def _rows(plan: InductorPlan) -> list[_Row]:
    """What the call holds at its peak, most bytes first."""
    saved = {output.allocation for output in plan.outputs if output.saved}
    sources = {name: kernel.source for kernel in plan.kernels for name in kernel.writes}
    groups: dict[tuple[str, SourceLine | None], list[BufferAllocation]] = {}
    for allocation in plan.held_at_peak:
        if allocation.index in saved:
            purpose = "saved for backward"
        elif allocation.is_a(AllocationKind.MAYBE_LIVE_OUT):
            purpose = "outputs"
        else:
            purpose = "intermediate values"
        written = (sources.get(value.name) for value in allocation.values)
        source = next((line for line in written if line is not None), None)
        groups.setdefault((purpose, source), []).append(allocation)
    rows = [_Row(*key, tuple(members)) for key, members in groups.items()]
    return sorted(rows, key=lambda row: (-row.size_bytes, row.purpose, str(row.source)))


def _tables(plan: InductorPlan, texts: SourceTexts, width: int) -> Iterator[Text]:
    rows = _rows(plan)
    total = max(sum(row.size_bytes for row in rows), 1)
    purposes: Counter[str] = Counter()
    for row in rows:
        purposes[row.purpose] += row.size_bytes
    yield from bar_lines(purposes.most_common(), total)
    if plan.freed_at_peak_bytes:
        yield Text(
            f"  less {rounded(plan.freed_at_peak_bytes)} of arguments that are freed by then"
        )
    if not rows:
        return
    yield Text("Largest at the peak, by line", style="bold")
    sources = (kernel.source for kernel in plan.kernels)
    named = short_names({source.file for source in sources if source is not None})
    unit = unit_for(total)
    digits = len(in_unit(rows[0].size_bytes, unit))
    for row in rows[:_MAX_ROWS]:
        size = f"{in_unit(row.size_bytes, unit):>{digits}} {share(row.size_bytes, total):>7}"
        yield from _row_lines(row, size, texts, named, width)
    others = rows[_MAX_ROWS:]
    if others:
        rest = sum(row.size_bytes for row in others)
        yield Text(f"  and {counted(len(others), 'smaller row')}, {rounded(rest)} (--all)")


def _row_lines(
    row: _Row, size: str, texts: SourceTexts, named: ShortNames, width: int
) -> Iterator[Text]:
    label = named(row.source) if row.source is not None else "(no source line)"
    head = f"  {size}  {label}"
    beside = shortened(texts.of(row.source), width - len(head) - 2)
    yield Text(f"{head}  {beside}".rstrip(), style="bold")
    names = [str(allocation.values[0].name) for allocation in row.allocations if allocation.values]
    shapes: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for allocation in row.allocations:
        for value in allocation.values[:1]:
            shape = _plain(str(value.shape))
            shapes[shape] += 1
            sizes[shape] += allocation.size_bytes
    shape = shapes_text([(shape, shapes[shape]) for shape, _ in sizes.most_common()])
    listed = ", ".join(names[:2]) + (", …" if len(names) > 2 else "")
    yield Text(f"      {shape}: {row.purpose}, {listed}")


def _plain(shape: str) -> str:
    """A shape as XLA writes it.

    >>> _plain("bf16[1024, 2048][2048, 1]")
    'bf16[1024,2048]'
    """
    return shape.partition("]")[0].replace(", ", ",") + "]"


def _tail(plan: InductorPlan, command: str) -> Iterator[Text]:
    aliases = list(alias_lines(plan))
    for line in aliases[:1]:
        more = f" and {len(aliases) - 1} more (--all)" if len(aliases) > 1 else ""
        yield Text(f"  In place: {line}{more}")
    operators = Counter(unknown.name for unknown in plan.unknown).most_common()
    for operator, calls in operators[:_MAX_OPERATORS]:
        yield Text(
            f"  Not in the dump: what {counted(calls, 'call')} of {operator} allocate inside"
        )
    if len(operators) > _MAX_OPERATORS:
        yield Text(f"  and in {counted(len(operators) - _MAX_OPERATORS, 'other operator')} (--all)")
    findings = [table.title for table in finding_tables(plan)]
    if findings:
        yield Text(f"  Found: {'; '.join(findings)} (--all)")
    yield Text(f"  {kernel_line(plan).capitalize()}")
    backends = Counter(gemm.backend for gemm in plan.gemms)
    if backends:
        listed = ", ".join(f"{count} {backend}" for backend, count in backends.most_common())
        yield Text(f"  GEMMs and convolutions: {listed} (--gemms)")
    if plan.collectives:
        yield Text(f"  Collectives: {len(plan.collectives)} (--collectives)")
    yield Text(f"Next: {command} --all", style="bold")
