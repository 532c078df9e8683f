"""A plan of XLA as a page, which a terminal and HTML show."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from xlapipe.devices.platforms import platform_named
from xlapipe.dump.manifest import PATCHED
from xlapipe.plans import AllocationKind, BufferAllocation, Gemm, MemorySpace, Plan
from xlapipe.plans.copies import find_moves
from xlapipe.plans.peak import PeakGroup, peak_of
from xlapipe.plans.second_call import second_call
from xlapipe.report import cells
from xlapipe.report.cells import Held, Name
from xlapipe.report.collective_lines import collective_section
from xlapipe.report.donation_lines import donation_section
from xlapipe.report.memory_spaces import host_lines, space_rows
from xlapipe.report.pages import Page, Section, Table, grouped, shapes_of_product
from xlapipe.report.plan_figures import known_copies
from xlapipe.report.target_text import device_text, short_label
from xlapipe.report.time_figures import step_time
from xlapipe.report.time_lines import time_section
from xlapipe.report.units import exact
from xlapipe.report.xla_subject import XlaSubject

_MOST_VALUES = 3


def plan_page(opened: XlaSubject, keys: Collection[str] = ()) -> Page:
    """The page of a dump; it depends on the plan alone."""
    plan = opened.plan
    sections: Mapping[str, Callable[[], Section]] = {
        "totals": lambda: _totals(opened),
        "peak": lambda: _peak(opened),
        "donation": lambda: donation_section(opened),
        "copies": lambda: _copies(opened),
        "gemms": lambda: _gemms(plan),
        "collectives": lambda: collective_section(opened),
        "host": lambda: Section("Host", tuple(map(str.strip, host_lines(plan))), key="host"),
        "memories": lambda: _memories(opened),
        "time": lambda: time_section(step_time(opened)),
    }
    if keys:
        sections = {
            **sections,
            "allocations": lambda: Section("Allocations", tables=(_allocations(opened),)),
            "thunks": lambda: Section("Thunks", tuple(_thunks(plan))),
        }
    made = [make() for key, make in sections.items() if not keys or key in keys]
    optional = ("collectives", "host", "memories")
    shown = tuple(
        replace(part, tables=tuple(table for table in part.tables if table.rows))
        for part in made
        if part.lines or part.key not in optional
    )
    page = Page(opened.program.title, "XLA", shown, _made_with(opened))
    return page if not keys else _on_terminal(page, opened, keys)


def _on_terminal(page: Page, opened: XlaSubject, keys: Collection[str]) -> Page:
    """The page with what a terminal states first: how the plan was made, and notes."""
    note, lines = "", list(opened.notes) if "totals" not in keys else []
    if opened.dump is not None:
        manifest = opened.dump.manifest
        versions = ", ".join(f"{key} {value}" for key, value in manifest.versions.items())
        label = manifest.autotuning if len(keys) > 1 else short_label(manifest.autotuning)
        note = (
            f"{manifest.workload} for {device_text(manifest.target, manifest.topology)}, GEMM "
            f"policy {manifest.gemm_policy}, {label}; {versions}"
        )
        if manifest.xla_patches and len(keys) > 1:
            lines.append(f"{PATCHED}: {', '.join(manifest.xla_patches)}")
        if manifest.refused is not None:
            lines.append(f"REFUSED by XLA: {manifest.refused:.400}")
    if text := second_call(opened.program):
        lines.append(f"warning: {text}")
    first = (Section("", tuple(lines)),) if lines else ()
    sections = page.sections or (Section(f"{', '.join(keys)}: none".capitalize()),)
    return replace(page, title=opened.name, note=note, sections=(*first, *sections))


def _allocations(opened: XlaSubject) -> Table:
    plan = opened.plan
    paths = {leaf.parameter_number: leaf.path for leaf in opened.program.arguments}
    spaces = {item.index: space for space in MemorySpace for item in plan.allocations_in(space)}

    def kinds(allocation: BufferAllocation) -> str:
        space, number = spaces.get(allocation.index), allocation.parameter_number
        text = ", ".join(allocation.kinds)
        if number is not None:
            text = text.replace(
                "parameter", f"parameter {number} {paths.get(number, '')}".strip(), 1
            )
        return text if space is MemorySpace.HBM else f"{str(space).upper()}: {text}"

    return Table.of(
        "",
        sorted(plan.allocations, key=lambda item: (-item.size_bytes, item.index)),
        {
            "index": lambda item: item.index,
            "bytes": lambda item: item.size_bytes,
            "kinds": kinds,
            "values": _values,
        },
    )


def _values(allocation: BufferAllocation) -> str:
    ordered = sorted(allocation.values, key=lambda value: -value.size_bytes)
    if allocation.is_a(AllocationKind.PARAMETER) and len(ordered) == 1:
        return ordered[0].shape.text
    text = "; ".join(f"{value.name} {value.shape}" for value in ordered[:_MOST_VALUES])
    return text + (f"; … {len(ordered)} values" if len(ordered) > _MOST_VALUES else "")


def _thunks(plan: Plan) -> Iterator[str]:
    if plan.thunk_counts is not None:
        counts = (f"{count} {kind}" for kind, count in plan.thunk_counts.items())
        yield ", ".join(counts) or "none"


def _made_with(opened: XlaSubject) -> str:
    if opened.dump is None:
        return ""
    manifest = opened.dump.manifest
    versions = ", ".join(f"{key} {value}" for key, value in sorted(manifest.versions.items()))
    return (
        f"GEMM policy {manifest.gemm_policy}; {short_label(opened.program.autotuning)}; {versions}"
    )


def _totals(opened: XlaSubject) -> Section:
    totals = asdict(opened.plan.totals).items()
    table = Table.of(
        "", totals, {"total": lambda item: item[0], "bytes": lambda item: cells.size(item[1])}
    )
    return Section("", opened.notes, (table,), "totals")


def _peak(opened: XlaSubject) -> Section:
    peak, whole = peak_of(opened.program), opened.plan.totals.total_allocation_bytes
    if peak.position is None:
        title = "Contents of the memory"
        line = "This dump has no live ranges, so lifetimes are unknown: every value is counted."
    else:
        title = f"In use at the peak: {exact(peak.occupied_bytes)}"
        last = peak.occupancy.last_position
        line = f"Schedule position {peak.position} of {last}, {peak.instruction or 'the end'}"
        if peak.idle_bytes:
            line += f"; {exact(peak.idle_bytes)} more are reserved but not in use there"
    by_source = Table.of(
        "By source line",
        peak.by_source,
        {
            "source line": lambda row: Name(row.source),
            "bytes": lambda row: cells.size(row.total_bytes),
            "share": lambda row: cells.share(row.total_bytes, whole),
            "reads of arguments": lambda row: cells.size(row.argument_bytes),
            "computes": lambda row: cells.size(row.made_bytes),
        },
    )
    return Section(title, (line,), (_held(peak.groups, whole), by_source), "peak")


def _held(groups: Sequence[PeakGroup], whole: int) -> Table:
    return Table.of(
        "",
        groups,
        {
            "value": Held,
            "role": lambda group: str(group.role),
            "bytes": lambda group: cells.size(group.counted_bytes),
            "share": lambda group: cells.share(group.counted_bytes, whole),
            "read or computed at": lambda group: ", ".join(group.sources[:2]),
        },
        text_only={"role", "read or computed at"},
    )


def _listed(title: str, key: str, table: Table, line: str, empty: str) -> Section:
    """A section with one table, or the line `empty` without rows."""
    lines = (line,) if line else ()
    return Section(title, lines if table.rows else (empty,), (table,), key)


def _copies(opened: XlaSubject) -> Section:
    copies = known_copies(opened.plan)
    table = Table.of(
        "",
        copies or (),
        {
            "value": lambda copy: Name(copy.value),
            "bytes": lambda copy: cells.size(copy.copied_bytes),
            "operation": lambda copy: Name(copy.op_name) if copy.op_name else "XLA's own",
            "source line": lambda copy: Name.of(copy.source),
        },
    )
    line = "Values written by instructions that only move data: copies, slices, transposes."
    empty = "None: no instruction only moves data."
    if copies is None:
        empty = "Unknown: this dump does not contain the bodies of fusions."
    return _listed("Copies", "copies", table, line, empty)


def _gemms(plan: Plan) -> Section:
    """Products of equal backends, shapes and source lines in one row."""
    table = Table.of(
        "",
        grouped(plan.gemms, lambda gemm: (gemm.backend, gemm.shapes, gemm.source)).values(),
        {
            "instruction": _several,
            "backend": lambda group: str(group[0].backend),
            "operands → result": lambda group: Name(shapes_of_product(group[0].shapes)),
            "operation": lambda group: Name.of(group[0].op_name),
            "source line": lambda group: Name.of(group[0].source),
        },
    )
    empty = "Unknown: this dump contains no HLO." if plan.module is None else "None."
    title = f"Matrix products: {len(plan.gemms)}" if plan.gemms else "Matrix products"
    return _listed(title, "gemms", table, "", empty)


def _several(group: Sequence[Gemm]) -> Name:
    """The first of some products, and all of them with their operations."""
    members = (f"{item.instruction} {item.op_name or ''}".rstrip() for item in group)
    return Name(group[0].instruction, tuple(members))


def _memories(opened: XlaSubject) -> Section:
    """The spaces of a TPU's memory, and what is moved between them."""
    spaces = Table.of(
        "Bytes by memory",
        space_rows(opened.plan).items(),
        {
            "memory": lambda item: item[0].upper(),
            "total": lambda item: cells.size(item[1]["total_bytes"]),
            "most in use at once": lambda item: cells.size(item[1]["peak_bytes"]),
            "parameters": lambda item: cells.size(item[1]["parameter_bytes"]),
            "outputs": lambda item: cells.size(item[1]["live_out_bytes"]),
            "temp": lambda item: cells.size(item[1]["temp_bytes"]),
        },
    )
    moves = Table.of(
        "Moves between memories",
        find_moves(opened.plan),
        {
            "instruction": lambda move: Name(move.copy.instruction),
            "from": lambda move: move.source_space.upper(),
            "to": lambda move: move.target_space.upper(),
            "bytes": lambda move: cells.size(move.copy.copied_bytes),
            "source line": lambda move: Name.of(move.copy.source),
        },
    )
    line = "Memories other than HBM are on the chip or the host's, and not in the device's totals."
    on_tpu = platform_named(opened.plan.platform).has_chip_memory
    return Section("Memories", (line,) * on_tpu, (spaces, moves), "memories")
