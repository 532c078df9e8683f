"""The overview of a plan for a terminal: at most 40 lines, readable without colour."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from xlapipe.devices.platforms import platform_named
from xlapipe.plans import OutputLeaf, Plan
from xlapipe.plans.constants import large_constants
from xlapipe.plans.copies import find_copies
from xlapipe.plans.copy_advice import copied_leaves
from xlapipe.plans.donatable import donatable
from xlapipe.plans.donation import donations
from xlapipe.plans.host_transfers import find_host_transfers
from xlapipe.plans.leaf_writes import together
from xlapipe.plans.missing_memory import missing_lines
from xlapipe.plans.phases import Phase
from xlapipe.plans.returned import returned
from xlapipe.plans.second_call import second_call
from xlapipe.plans.wording import counted
from xlapipe.registry import is_of_project
from xlapipe.report.overview.overview import LineRow, Overview
from xlapipe.report.overview.source_text import SourceTexts
from xlapipe.report.overview.wording import purpose_text, shapes_text
from xlapipe.report.target_text import short_label
from xlapipe.report.units import exact, in_unit, rounded, seconds_text, share, unit_for, with_error
from xlapipe.report.wrapped_text import shortened, wrapped
from xlapipe.time.cost.schedule import most_launches, schedule_of
from xlapipe.time.prediction_settings import DEFAULT_SETTINGS

if TYPE_CHECKING:
    from xlapipe.time.predict import Prediction

MAX_LINES = 40
# The least time of an empty kernel; fewer launches bound no step.
_LAUNCH_SECONDS, _FEW_LAUNCHES = 0.7e-6, 16
_MAX_ROWS = 10
_MAX_PURPOSES = 6
_MAX_NOTES = 2
_MORE = re.compile(r" and \d+ more")


def overview_lines(overview: Overview, name: str, *, width: int) -> Iterator[Text]:
    head = list(_head(overview, width))
    tail = list(_tail(overview, name, width))
    rows = list(_rows(overview, width, MAX_LINES - len(head) - len(tail)))
    yield from head
    yield from rows
    yield from tail


def _head(overview: Overview, width: int) -> Iterator[Text]:
    opened, memory = overview.opened, overview.memory
    total = overview.total_bytes
    text = f"{opened.program.title}: {rounded(total)} of device memory"
    if opened.plan.collectives or (opened.dump is not None and opened.dump.manifest.topology):
        text = f"{opened.program.title}: {rounded(total)} of memory per device"
    if memory is not None:
        room = memory.usable_bytes - total
        spare = f"{with_error(room, overview.error_bytes)} to spare"
        text += f", fits with {spare}" if room >= 0 else ", DOES NOT FIT"
        if 0 <= abs(room) < overview.error_bytes:
            text += ", which is less than the error of an untuned or predicted plan"
    for line in wrapped(text, width):
        yield Text(line, style="bold")
    if memory is not None:
        usable, device = memory.usable_bytes, memory.device_memory_bytes
        text = f"  {exact(total)} of {exact(usable)} usable, {usable / device:.0%} of the device's"
        yield from map(Text, wrapped(f"{text} {rounded(device)}", width, indent=2))
    if other := opened.other_plan:
        text = f"  Expected: {exact(total)}, or {other.text(total)}: a choice of the tuner's"
        yield from map(Text, wrapped(text, width, indent=2))
    dump = opened.dump
    if dump is not None and dump.manifest.tuned_or_none is not None:
        yield Text(f"  GEMM policy {dump.manifest.gemm_policy}, {short_label(dump.autotuning)}")
    refused = dump.manifest.refused if dump is not None else None
    if refused is not None:
        for text in list(wrapped(f"  REFUSED by XLA: {refused}", width, indent=2))[:3]:
            yield Text(text, style="red")
    of_step = dump.manifest.notes_on_step if dump is not None else ()
    others = [note for note in opened.notes if note not in of_step]
    for note in (*of_step, *others[:_MAX_NOTES]):
        yield Text(shortened(f"  note: {note}", width))
    if len(others) > _MAX_NOTES:
        yield Text(f"  and {counted(len(others) - _MAX_NOTES, 'more note')} (--all)")
    yield from _peak(overview, width)
    yield from _purposes(overview)


def _peak(overview: Overview, width: int) -> Iterator[Text]:
    peak = overview.peak
    live = overview.plan.live_ranges
    if live is None or peak.position is None:
        yield Text("The dump has no live ranges: every value is counted.", style="bold")
        return
    text = f"Peak at position {peak.position:,} of {len(live.schedule):,}"
    if overview.peak_phase is not None:
        text += f", in the {overview.peak_phase}"
        text += "" if overview.peak_phase is Phase.UPDATE else " pass"
    if overview.peak_source is not None:
        text += f", at {overview.named(overview.peak_source)}"
    for line in wrapped(text, width, indent=2):
        yield Text(line, style="bold")


def _purposes(overview: Overview) -> Iterator[Text]:
    rows = [(str(row.purpose), row.counted_bytes) for row in overview.by_purpose]
    # A single row in "other" has its own name.
    if len(rows) > _MAX_PURPOSES + 1:
        others = sum(size for _, size in rows[_MAX_PURPOSES:])
        rows = [*rows[:_MAX_PURPOSES], ("other", others)]
    yield from bar_lines([*rows, ("not in use", overview.idle_bytes)], overview.total_bytes)


def _rows(overview: Overview, width: int, left: int) -> Iterator[Text]:
    """The largest rows, in at most `left` lines."""
    rows = overview.rows
    texts = SourceTexts(overview.opened.program.path)
    unit = unit_for(overview.total_bytes)
    blocks: list[list[Text]] = []
    used = 2  # the heading and the line about the rest
    digits = max((len(in_unit(row.counted_bytes, unit)) for row in rows), default=0)
    for row in rows[:_MAX_ROWS]:
        size = in_unit(row.counted_bytes, unit)
        part = share(row.counted_bytes, max(overview.total_bytes, 1))
        figures = f"  {size:>{digits}} {part:>7}  "
        block = _row_lines(overview, row, figures, texts, width)
        if used + len(block) > left or row.counted_bytes < LEAST_SHARE * overview.total_bytes:
            break
        used += len(block)
        blocks.append(block)
    if not blocks:
        return
    by = "line" if overview.has_lines else "operation: no value has a source line"
    yield Text(f"Largest at the peak, by {by}", style="bold")
    for block in blocks:
        yield from block
    others = rows[len(blocks) :]
    if others:
        rest = sum(row.counted_bytes for row in others)
        yield Text(f"  and {counted(len(others), 'smaller row')}, {rounded(rest)} (--all)")


def _row_lines(
    overview: Overview, row: LineRow, figures: str, texts: SourceTexts, width: int
) -> list[Text]:
    is_line = row.source is not None and row.name == str(row.source)
    label = overview.named(row.source) if is_line and row.source else row.name
    head = list(wrapped(label or "(no source line)", width, indent=len(figures), first=figures))
    text = texts.of(row.source) if is_line else ""
    beside = shortened(text, width - len(head[-1]) - 2)
    styled = [Text(line, style="bold") for line in head]
    if beside:
        styled[-1].append(f"  {beside}", style="not bold dim")
    purpose = purpose_text(
        row.purpose,
        row.until,
        row.until_phase,
        in_place=2 * row.in_place_bytes > row.counted_bytes,
        read_at=None if is_line else row.source,
        is_brought=is_line,
        named=overview.named,
    )
    purpose += ", written after the peak" if row.written_later else ""
    shapes = shapes_text(row.shapes)
    less = _MORE.sub(" …", purpose)
    short = _MORE.sub(" …", shapes)
    variants = (
        f"{shapes}: {purpose}",
        f"{shapes}: {less}",
        f"{short}: {less}",
        f"{short}: {less.removesuffix(' …')}",
    )
    fitting = next((text for text in variants if len(text) <= width - 6), variants[-1])
    return [*styled, *map(Text, wrapped(fitting, width, indent=6))]


def _tail(overview: Overview, name: str, width: int) -> Iterator[Text]:
    parts = (_donation, _copies, _constants, _collectives)
    again = second_call(overview.opened.program)
    lines = [f"{again[0].upper()}{again[1:]}"] if again else []
    for line in (*lines, *(line for part in parts for line in part(overview))):
        yield from map(Text, wrapped(line, width, indent=2))
    for line in list(missing_lines(overview.plan.missing_memory))[:1]:
        yield from map(Text, wrapped(f"Not in the plan: {line.strip()}", width, indent=2))
    for line in _time(overview):
        yield from map(Text, wrapped(line, width, indent=2))
    yield Text(_next(overview, name), style="bold")


def _donation(overview: Overview) -> Iterator[str]:
    program = overview.opened.program
    rows = donations(program)
    failed = [row for row in rows if not row.holds]
    if rows:
        held = sum(row.size_bytes for row in rows if row.holds)
        text = f"Donated: {len(rows) - len(failed)} of {len(rows)} leaves in place, {rounded(held)}"
        if failed:
            lost = sum(row.size_bytes for row in failed)
            outcomes = ", ".join(dict.fromkeys(str(row.outcome) for row in failed))
            text += f"; {rounded(lost)} are not ({outcomes}; --donation)"
        yield text
        rewritten = [row.writes for row in rows if row.holds and row.writes and row.writes.is_whole]
        if rewritten:
            lines = Counter(item.source for item in rewritten if item.source is not None)
            at = f" at {overview.named(lines.most_common(1)[0][0])}" if lines else ""
            yield (
                f"Rewritten in place{at}: {counted(len(rewritten), 'leaf', 'leaves')}, "
                f"{together(rewritten)} in each step (--donation)"
            )
    candidates = donatable(program)
    if candidates:
        listed = "; ".join(
            f"{counted(item.leaves, 'leaf', 'leaves')} of '{item.name}', {rounded(item.size_bytes)}"
            for item in candidates[:2]
        )
        yield f"Not donated: {listed}, though an output has their type: see donate_argnums"


def _copies(overview: Overview) -> Iterator[str]:
    copies = sorted(find_copies(overview.plan), key=lambda copy: -copy.of_step_bytes)
    if copies:
        largest = copies[0]
        total = sum(copy.of_step_bytes for copy in copies)
        source = largest.source or overview.plan.nearest_source(largest.value)
        at = f" at {overview.named(source)}" if source is not None else ""
        of = copied_leaves(overview.opened.program, largest)
        most = f"{rounded(largest.copied_bytes)}{largest.trips_text}{of}"
        values = counted(len(copies), "value")
        yield f"Copied: {rounded(total)} in {values}" + (
            f", most {most}{at}" if len(copies) > 1 else f"{largest.trips_text}{of}{at}"
        )
    for row in returned(overview.opened.program)[:_MAX_NOTES]:
        if row.copied_bytes >= LEAST_SHARE * overview.total_bytes:
            fix = "return it once" if isinstance(row.same_as, OutputLeaf) else "do not return it"
            yield f"{row.output.path}: {row.text.partition(' is ')[2]}: {fix}"
    transfers = find_host_transfers(overview.plan)
    if transfers:
        yield f"Host memory: {counted(len(transfers), 'transfer')} (--all)"


def _constants(overview: Overview) -> Iterator[str]:
    """Large arrays that the program holds, those of one line together."""
    for constant in large_constants(overview.plan)[:_MAX_NOTES]:
        at = f" at {overview.named(constant.source)}" if constant.source is not None else ""
        how = "Captured or folded by XLA" if constant.folded else "Captured"
        yield f"{how}{at}, {rounded(constant.size_bytes)}: pass it as an argument"


def _collectives(overview: Overview) -> Iterator[str]:
    collectives = overview.plan.collectives or ()
    if collectives:
        sizes = [item.of_step(item.wire_bytes) for item in collectives]
        known = sum(size for size in sizes if size is not None)
        more = " or more" if None in sizes else ""
        overlapped = sum(item.asynchronous and bool(item.overlapped_by) for item in collectives)
        yield (
            f"Collectives: {len(collectives)}, {rounded(known)}{more} on the wire per step, "
            f"{overlapped} overlapped (--collectives)"
        )


def _time(overview: Overview) -> Iterator[str]:
    opened = overview.opened
    # Predicting takes longer than all else here, and needs 40 modules that nothing else does.
    is_asked = opened.settings != DEFAULT_SETTINGS
    cost, prediction = opened.step_cost, opened.prediction if is_asked else None
    floor = cost.floor_seconds if cost is not None else None
    least = ""
    if cost is not None and floor is not None:
        bounds = cost.bound_seconds()
        most = max(bounds, key=lambda bound: bounds[bound]) if bounds else None
        least = f"at least {seconds_text(floor)}"
        if prediction is None and (launches := _most_launches(opened.plan, floor)):
            least += f", bound by launches: {launches}"
        elif most and (prediction is None or not prediction.launch_bound):
            least += f" ({most})"
    bound = prediction.at_least_seconds if prediction is not None else None
    network = ""
    if prediction is not None and prediction.network:
        network = f", network {prediction.network_name}"
    if bound is not None:
        yield f"Time: at least {seconds_text(bound)}: a part is not counted (--time){network}"
    elif prediction is not None:
        yield f"Time: {_predicted_text(prediction)}, {least}{network}"
        if prediction.launch_bound:
            yield f"Time: {prediction.launch_bound}"
    elif least:
        predicts = platform_named(overview.plan.platform).predicts_times and not is_asked
        yield f"Time: {least}" + ("; --time predicts it" if predicts else "")


def _most_launches(plan: Plan, floor_seconds: float) -> str:
    """Which launches take longer than all bytes and operations; empty if none do."""
    launches, text = most_launches(schedule_of(plan.module)) if plan.module is not None else (0, "")
    is_bound = launches * _LAUNCH_SECONDS > 2 * floor_seconds and launches >= _FEW_LAUNCHES
    return text or counted(launches, "launch", "launches") if is_bound else ""


def _predicted_text(prediction: "Prediction") -> str:
    times = (prediction.step_seconds, prediction.low_seconds, prediction.high_seconds)
    seconds, low, high = (seconds_text(time or 0.0) for time in times)
    unit = f" {high.rpartition(' ')[2]}"
    interval = f"{low.removesuffix(unit)} to {high}"
    text = f"{seconds} per step {prediction.verb} ({prediction.interval_word}: {interval})"
    latency = prediction.latency_seconds
    return text if latency is None else f"{text}, latency {seconds_text(latency)}"


def _next(overview: Overview, name: str) -> str:
    """A command that shows more, on one line however long it is, to be pasted."""
    memory = overview.memory
    dump = overview.opened.dump
    if memory is not None and memory.usable_bytes < overview.total_bytes and dump is not None:
        workload = dump.manifest.compiled_name
        if is_of_project(workload):
            return f"Next: xlapipe choose {shlex.quote(workload)}"
    lines = [row.source for row in overview.rows if row.source and row.name == str(row.source)]
    shown = overview.named(lines[0]) if lines else "--all"
    return f"Next: xlapipe show {shlex.quote(name)} {shlex.quote(shown)}"


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
