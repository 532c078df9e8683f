"""Inductor's plans as pages, which a terminal, Markdown and HTML show."""

from collections.abc import Iterator

from xlapipe.inductor.inductor_plan import FindingKind, InductorFinding, InductorPlan
from xlapipe.inductor.reader import InductorDump
from xlapipe.plans.buffers import BufferAllocation
from xlapipe.report.inductor_figures import sequence_totals
from xlapipe.report.pages import Page, Section
from xlapipe.report.text_table import MOST_ROWS, Table
from xlapipe.report.units import exact, signed

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


def heading(plan: InductorPlan) -> str:
    """One line that names a graph, and states how exact its plan is."""
    kind = f", {plan.kind} graph" if plan.kind is not None else ""
    return f"{plan.graph}{kind}: {plan.basis}"


def _total_table(plan: InductorPlan) -> Table:
    """The totals; an unknown figure is marked as unknown."""
    rows = [(name, _bytes(getattr(plan.totals, name))) for name in _TOTALS]
    if plan.totals.saved_bytes is None:
        rows.remove(("saved_bytes", "unknown"))
    return Table("totals", ("figure", "bytes or calls"), tuple(rows), {1})


def sequence_line(dump: InductorDump) -> str | None:
    """What all graphs hold, one after the other; None for one graph."""
    if len(dump.plans) < 2:
        return None
    totals = sequence_totals(dump.plans)
    return f"all graphs, one after the other: own peak {exact(totals['own_peak_bytes'])}"


def measured_line(plan: InductorPlan) -> str | None:
    """The measured peak beside the plan's; None without a measurement."""
    if plan.measured is None or plan.remainder_bytes is None:
        return None
    line = f"measured peak {exact(plan.measured.own_peak_bytes)}"
    if not plan.remainder_bytes:
        return f"{line}: equal to the byte"
    why = "in calls that hide bytes" if plan.totals.unknown_allocations else "not explained"
    return f"{line}: {signed(plan.remainder_bytes)} beyond the plan, {why}"


def _peak_table(plan: InductorPlan) -> Table:
    """What the call holds at its peak, most bytes first."""
    held = plan.held_at_peak
    rows = [_held_row(plan, allocation) for allocation in held[:MOST_ROWS]]
    left_out = len(held) - len(rows)
    if plan.freed_at_peak_bytes:
        rows.append(("", f"{-plan.freed_at_peak_bytes:,}", "", "arguments that are freed by then"))
    at = f", line {plan.peak_line}" if plan.peak_line is not None else ""
    kernel = (
        f" before {plan.kernels[plan.peak_position].name}"
        if plan.peak_position is not None and plan.peak_position < len(plan.kernels)
        else ""
    )
    return Table(
        f"held at the peak: {exact(plan.totals.own_peak_bytes)}{kernel}{at}",
        ("index", "bytes", "positions", "values"),
        tuple(rows),
        {0, 1},
        left_out,
    )


def _unknown_table(plan: InductorPlan) -> Table:
    """Calls that hide bytes, by operator."""
    groups: dict[tuple[str, str], list[int | None]] = {}
    for unknown in plan.unknown:
        groups.setdefault((unknown.name, unknown.reason), []).append(unknown.result_bytes)
    rows = [
        (str(len(sizes)), name, _results(sizes), reason)
        for (name, reason), sizes in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    title = f"calls that hide bytes: {len(plan.unknown) or 'none'}"
    return Table.of_first(title, ("calls", "operator", "bytes of results", "why"), rows, {0, 2})


def _gemm_table(plan: InductorPlan) -> Table:
    """Matrix products and convolutions; those of one shape in one row."""
    groups: dict[tuple[str, str, str], int] = {}
    for gemm in plan.gemms:
        shapes = " × ".join(map(str, gemm.shapes[:-1])) + f" -> {gemm.shapes[-1]}"
        fast = ", fast accumulation" if gemm.fast_accumulation else ""
        key = (f"{gemm.backend}{fast}", shapes, str(gemm.source or ""))
        groups[key] = groups.get(key, 0) + 1
    rows = [(str(count), *key) for key, count in groups.items()]
    title = f"gemms and convolutions: {len(plan.gemms) or 'none'}"
    return Table.of_first(title, ("count", "backend", "shapes", "source"), rows, {0})


def _collective_table(plan: InductorPlan) -> Table:
    """Collectives in their order."""
    rows = [
        (
            collective.kind,
            _bytes(collective.operand_bytes),
            _bytes(collective.output_bytes),
            "?" if collective.group_size is None else str(collective.group_size),
            str(len(collective.overlapped_by)),
            "yes" if collective.used else "no",
        )
        for collective in plan.collectives
    ]
    headings = ("kind", "in", "out", "devices", "kernels meanwhile", "result used")
    title = f"collectives: {len(rows) or 'none'}"
    return Table.of_first(title, headings, rows, {1, 2, 3, 4})


def finding_tables(plan: InductorPlan) -> Iterator[Table]:
    """One table for each kind of finding, most bytes first."""
    for kind, title in _TITLES.items():
        findings = [finding for finding in plan.findings if finding.kind == kind]
        if not findings:
            continue
        ordered = sorted(findings, key=lambda finding: -(finding.size_bytes or 0))
        total = sum(finding.size_bytes or 0 for finding in findings)
        yield Table.of_first(
            f"{title}: {len(findings)}, {exact(total)}",
            ("node", "bytes", "what", "line", "source"),
            list(map(_finding_row, ordered)),
            {1, 3},
        )


def kernel_line(plan: InductorPlan) -> str:
    """Kernels by kind."""
    counts = ", ".join(f"{count} {kind}" for kind, count in plan.kernel_counts.items())
    return f"kernels: {len(plan.kernels)}" + (f" ({counts})" if counts else "")


def only_lines(plan: InductorPlan) -> Iterator[str]:
    """What Inductor has and XLA has not."""
    only = plan.only
    if only.nodes is not None:
        yield (
            f"nodes {only.nodes:,}, buffers {only.buffers:,}, fused nodes {only.fused_nodes:,}, "
            f"mutations {only.mutation_buffers:,}, alias lists {only.alias_lists:,}, "
            f"weak dependencies {len(only.weak_dependencies):,}, Nop nodes {len(only.nop_nodes):,}"
        )
    for title, counts in (("nodes", only.node_kinds), ("calls", only.extern_calls)):
        if counts:
            yield f"{title}: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    if only.user_kernels:
        kinds = "; ".join(f"{count} × {name}" for name, count in only.user_kernels.items())
        yield f"user-defined Triton kernels: {sum(only.user_kernels.values())} ({kinds})"
    for storage in only.resized_storages:
        size = "" if storage.new_bytes is None else f" to {exact(storage.new_bytes)}"
        yield f"storage of {storage.buffer} is resized{size}"


def alias_lines(plan: InductorPlan) -> Iterator[str]:
    """Arguments whose memory outputs take, and arguments changed in place."""
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


def _held_row(plan: InductorPlan, allocation: BufferAllocation) -> tuple[str, ...]:
    life = plan.lifetimes[allocation.index]
    positions = f"{life.start}–{life.end}"
    return str(allocation.index), f"{allocation.size_bytes:,}", positions, _values(allocation)


def _values(allocation: BufferAllocation) -> str:
    text = "; ".join(f"{value.name} {value.shape}" for value in allocation.values[:3])
    return text + (f"; … {len(allocation.values)} values" if len(allocation.values) > 3 else "")


def _results(sizes: list[int | None]) -> str:
    known = sum(size for size in sizes if size is not None)
    return f"{known:,}" + (" and unknown" if None in sizes else "")


def _finding_row(finding: InductorFinding) -> tuple[str, ...]:
    return (
        finding.node,
        _bytes(finding.size_bytes),
        finding.detail,
        str(finding.line),
        str(finding.source or ""),
    )


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size:,}"


def inductor_page(dump: InductorDump) -> Page:
    """The report on a dump: a section for each graph."""
    sections = tuple(map(_section, dump.plans))
    return Page(str(dump.path), "torch Inductor", sections, sequence_line(dump) or "")


def _section(plan: InductorPlan) -> Section:
    measured = measured_line(plan)
    lines = (
        *(f"note: {note}" for note in plan.notes),
        *([measured] if measured is not None else []),
        kernel_line(plan),
        *alias_lines(plan),
        *only_lines(plan),
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
