"""Inductor's plans as a page, which a terminal, Markdown and HTML show."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from xlapipe.inductor.inductor_plan import FindingKind, InductorPlan
from xlapipe.inductor.reader import InductorDump
from xlapipe.plans import BufferAllocation, Gemm, SourceLine
from xlapipe.report.cells import Cell, known
from xlapipe.report.inductor_figures import sequence_totals
from xlapipe.report.pages import MOST_ROWS, Page, Section, Table, grouped, shapes_of_product
from xlapipe.report.units import exact

_TITLES = {
    FindingKind.DUPLICATE_STORE: "duplicate stores",
    FindingKind.NEVER_READ: "buffers that nothing reads",
    FindingKind.UNINITIALISED: "reads of memory that nothing wrote",
    FindingKind.STRIDED_READ: "strided reads",
    FindingKind.RECOMPUTED_REDUCTION: "reductions computed again",
    FindingKind.FLOAT64: "float64 for each element",
    FindingKind.UNUSED_COLLECTIVE: "collectives whose result nothing uses",
}
_TOTALS = (
    "own_peak_bytes",
    "argument_bytes",
    "output_bytes",
    "saved_bytes",
    "given_argument_bytes",
    "end_bytes",
    "peak_with_arguments_bytes",
    "unknown_allocations",
)

# Rows of a table on the first screen.
_FEW_ROWS = 8


def heading(plan: InductorPlan) -> str:
    """One line that names a graph, and states how exact its plan is."""
    kind = f", {plan.kind} graph" if plan.kind is not None else ""
    return f"{plan.graph}{kind}: {plan.basis}"


def _total_table(plan: InductorPlan) -> Table:
    """The totals; an unknown figure is marked as unknown."""
    totals = {name: getattr(plan.totals, name) for name in _TOTALS}
    if plan.totals.saved_bytes is None:
        del totals["saved_bytes"]
    return Table.of(
        "totals",
        totals.items(),
        {"figure": lambda item: item[0], "bytes or calls": lambda item: known(item[1])},
    )


def sequence_line(dump: InductorDump) -> str | None:
    """What all graphs hold, one after the other; None for one graph."""
    if len(dump.plans) < 2:
        return None
    totals = sequence_totals(dump.plans)
    return f"all graphs, one after the other: own peak {exact(totals['own_peak_bytes'])}"


def _peak_table(plan: InductorPlan) -> Table:
    """What the call holds at its peak, most bytes first."""
    at = f", line {plan.peak_line}" if plan.peak_line is not None else ""
    kernel = f" before {plan.peak_kernel}" if plan.peak_kernel is not None else ""
    sources = {name: kernel.source for kernel in plan.kernels for name in kernel.writes}
    table = Table.of(
        f"held at the peak: {exact(plan.totals.own_peak_bytes)}{kernel}{at}",
        plan.held_at_peak,
        {
            "index": lambda held: held.index,
            "bytes": lambda held: held.size_bytes,
            "positions": lambda held: "{0.start}–{0.end}".format(plan.lifetimes[held.index]),
            "values": _values,
            "source": lambda held: _source(sources, held),
        },
    ).first()
    if not plan.freed_at_peak_bytes:
        return table
    freed = ("", -plan.freed_at_peak_bytes, "", "arguments that are freed by then", "")
    return replace(table, rows=(*table.rows, freed))


def _unknown_table(plan: InductorPlan) -> Table:
    """Calls that hide bytes, by operator."""
    groups = grouped(plan.unknown, lambda unknown: (unknown.name, unknown.reason))
    return Table.of(
        f"calls that hide bytes: {len(plan.unknown) or 'none'}",
        sorted(groups.values(), key=lambda group: -len(group)),
        {
            "calls": len,
            "operator": lambda group: group[0].name,
            "bytes of results": lambda group: _results([item.result_bytes for item in group]),
            "why": lambda group: group[0].reason,
        },
    ).first()


def _gemm_table(plan: InductorPlan) -> Table:
    """Matrix products and convolutions; those of one shape in one row."""
    columns: Mapping[str, Callable[[Sequence[Gemm]], Cell]] = {
        "count": len,
        "backend": lambda group: group[0].backend_text,
        "shapes": lambda group: shapes_of_product(group[0].shapes),
        "source": lambda group: str(group[0].source or ""),
    }
    alike = ("backend", "shapes", "source")
    groups = grouped(plan.gemms, lambda gemm: tuple(columns[name]([gemm]) for name in alike))
    title = f"gemms and convolutions: {len(plan.gemms) or 'none'}"
    return Table.of(title, groups.values(), columns).first()


def _collective_table(plan: InductorPlan) -> Table:
    """Collectives in their order."""
    return Table.of(
        f"collectives: {len(plan.collectives) or 'none'}",
        plan.collectives,
        {
            "kind": lambda item: item.kind,
            "in": lambda item: known(item.operand_bytes),
            "out": lambda item: known(item.output_bytes),
            "devices": lambda item: "?" if item.group_size is None else item.group_size,
            "kernels meanwhile": lambda item: len(item.overlapped_by),
            "result used": lambda item: "yes" if item.used else "no",
        },
    ).first()


def finding_tables(plan: InductorPlan) -> Iterator[Table]:
    """One table for each kind of finding, most bytes first."""
    for kind, title in _TITLES.items():
        findings = [finding for finding in plan.findings if finding.kind == kind]
        if not findings:
            continue
        ordered = sorted(findings, key=lambda finding: -(finding.size_bytes or 0))
        total = sum(finding.size_bytes or 0 for finding in findings)
        yield Table.of(
            f"{title}: {len(findings)}, {exact(total)}",
            ordered,
            {
                "node": lambda finding: finding.node,
                "bytes": lambda finding: known(finding.size_bytes),
                "what": lambda finding: finding.detail,
                "line": lambda finding: str(finding.line),
                "source": lambda finding: str(finding.source or ""),
            },
        ).first()


def kernel_line(plan: InductorPlan) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in plan.kernel_counts.items())
    return f"kernels: {len(plan.kernels)}" + (f" ({counts})" if counts else "")


def alias_lines(plan: InductorPlan) -> Iterator[str]:
    """Arguments whose memory outputs take, arguments changed in place, and resized storages."""
    names = {argument.number: argument.name for argument in plan.arguments}
    shared = [alias for alias in plan.aliases if alias.output_index is not None]
    mutated = [alias for alias in plan.aliases if alias.output_index is None]
    for alias in shared:
        index = alias.output_index[0] if alias.output_index else 0
        yield f"output {index} is in the memory of argument {names.get(alias.parameter_number)}"
    if mutated:
        listed = ", ".join(names.get(alias.parameter_number, "?") for alias in mutated[:MOST_ROWS])
        more = f" and {len(mutated) - MOST_ROWS} more" if len(mutated) > MOST_ROWS else ""
        yield f"changed in place: {listed}{more}"
    for storage in plan.resized_storages:
        size = "" if storage.new_bytes is None else f" to {exact(storage.new_bytes)}"
        yield f"storage of {storage.buffer} is resized{size}"


def _values(allocation: BufferAllocation) -> str:
    text = "; ".join(f"{value.name} {value.shape}" for value in allocation.values[:3])
    return text + (f"; … {len(allocation.values)} values" if len(allocation.values) > 3 else "")


def _source(sources: Mapping[str, SourceLine | None], allocation: BufferAllocation) -> str:
    written = (sources.get(value.name) for value in allocation.values)
    return str(next(filter(None, written), ""))


def _results(sizes: Sequence[int | None]) -> Cell:
    known = sum(size for size in sizes if size is not None)
    return f"{known:,} and unknown" if None in sizes else known


def inductor_page(dump: InductorDump, command: str = "") -> Page:
    """The report on a dump: a section for each graph."""
    note = sequence_line(dump) or ""
    if not command:
        return Page(str(dump.path), "torch Inductor", tuple(map(_section, dump.plans)), note)
    if len(dump.plans) == 1:
        following = Section(f"Next: {command} --all")
        return Page(str(dump.path), "torch Inductor", (_first_screen(dump.plans[0]), following))
    rows = sorted(dump.plans, key=lambda plan: (-plan.totals.own_peak_bytes, plan.graph))
    graphs = Table.of(
        "",
        rows,
        {"own peak": lambda plan: plan.totals.own_peak_bytes, "graph": heading},
    ).first()
    title = f"{len(rows)} graphs, the largest peak first"
    next_line = f"Next: {command} --module {shlex.quote(rows[0].graph)}"
    return Page(
        str(dump.path), "torch Inductor", (Section(title, (), (graphs,)), Section(next_line)), note
    )


def _first_screen(plan: InductorPlan) -> Section:
    section = _section(plan)
    totals, peak, *others = section.tables
    titles = [table.title for table in others if table.rows]
    also = [f"also: {'; '.join(titles)} (--all)"] if titles else []
    lines = (*section.lines[:_FEW_ROWS], *also)
    return replace(section, lines=lines, tables=(totals, peak.first(_FEW_ROWS)))


def _section(plan: InductorPlan) -> Section:
    lines = (
        *(f"note: {note}" for note in plan.notes),
        kernel_line(plan),
        *alias_lines(plan),
    )
    tables = (
        _total_table(plan),
        _peak_table(plan),
        _unknown_table(plan),
        _gemm_table(plan),
        _collective_table(plan),
        *finding_tables(plan),
    )
    return Section(heading(plan), lines, tables)


def check_notes(dump: InductorDump) -> list[str]:
    """What the findings do not cover."""
    notes = ["the plan's invariants hold"]
    for plan in dump.plans:
        notes.append(heading(plan))
        if plan.findings:
            wasted = sum(finding.size_bytes or 0 for finding in plan.findings)
            notes.append(
                f"{plan.graph}: {len(plan.findings)} findings of {exact(wasted)}; "
                "`xlapipe show` lists them"
            )
    return notes
