"""All about one value, one source line or one argument, by name."""

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from rich.text import Text

from xlapipe.errors import XlapipeError
from xlapipe.plans import ArgumentLeaf, BufferAllocation, LogicalBuffer, Plan, SourceLine
from xlapipe.plans.call_chains import Frame
from xlapipe.plans.copies import Copy, copies_by_value
from xlapipe.plans.copy_advice import leaf_of
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.donation import donations
from xlapipe.plans.labels import labels_of
from xlapipe.plans.occupancy import CountedValue, Role
from xlapipe.plans.readers import readers_of
from xlapipe.plans.wording import counted
from xlapipe.report.modules import Modules
from xlapipe.report.overview.overview import Overview
from xlapipe.report.overview.source_text import SourceTexts
from xlapipe.report.overview.wording import purpose_text
from xlapipe.report.units import exact, rounded, seconds_text
from xlapipe.report.wrapped_text import shortened, wrapped
from xlapipe.report.xla_subject import XlaSubject

_MAX_VALUES = 12
_MAX_USERS = 6
_LABEL = 9
# Frames of a library that a line of the user calls.
_MAX_LIBRARY = 4

Placed = tuple[BufferAllocation, LogicalBuffer]


def named_lines(opened: XlaSubject, names: Sequence[str], *, width: int) -> Iterator[Text]:
    shown = _Named(opened, width)
    sections = [list(shown.lines(name)) for name in names]
    for number, section in enumerate(sections):
        if number:
            yield Text("")
        yield from section


class _Named:
    """What the names of one command share."""

    def __init__(self, opened: XlaSubject, width: int) -> None:
        self._opened = opened
        self._overview = Overview(opened)
        self._texts = SourceTexts(opened.program.path)
        self._width = width

    @property
    def _plan(self) -> Plan:
        return self._opened.plan

    def lines(self, name: str) -> Iterator[Text]:
        values = self._values_named(name)
        if values:
            for placed in values:
                yield from self._value(placed)
            return
        sources = self._lines_named(name)
        if sources:
            for source in sources:
                yield from self._source(source)
            return
        leaves = self._opened.program.arguments_named(name)
        if leaves:
            yield from self._leaves(name, leaves)
            return
        if name in self._plan.instructions:
            yield from self._instruction(name)
            return
        modules = Modules(self._opened)
        if modules.named(name):
            yield from modules.lines(name)
            return
        raise XlapipeError(self._unknown(name))

    def _values_named(self, name: str) -> list[Placed]:
        placed = self._plan.values_of_instruction.get(name.partition("{")[0], [])
        if "{" in name:
            return [(allocation, value) for allocation, value in placed if value.name == name]
        return list(placed)

    def _lines_named(self, name: str) -> list[SourceLine]:
        file, colon, number = name.rpartition(":")
        if not colon or not number.isdecimal():
            return []
        lines = {item.source for item in self._plan.instructions.values() if item.source}
        chosen = [
            line
            for line in lines
            if line.line == int(number) and (line.file == file or line.file.endswith(f"/{file}"))
        ]
        return sorted(chosen, key=str)

    def _unknown(self, name: str) -> str:
        plan = self._plan
        lines = {str(item.source) for item in plan.instructions.values() if item.source}
        known = {*plan.instructions, *lines, *(line.rpartition("/")[2] for line in lines)}
        for leaf in self._opened.program.arguments:
            known |= {leaf.path, argument_name(leaf.path)}
        close = get_close_matches(name, sorted(known), n=3, cutoff=0.6)
        rows = [row.source for row in self._overview.rows if row.source is not None]
        suggested = close or [self._overview.named(line) for line in dict.fromkeys(rows)][:3]
        return (
            f"{self._opened.name}: expected the name of a value, a source line or an argument, "
            f"found {name!r}; fix: name one such as {', '.join(suggested)}"
        )

    # --- a value

    def _value(self, placed: Placed) -> Iterator[Text]:
        allocation, value = placed
        size = _both(value.size_bytes)
        yield from self._bold(f"{value.name}  {value.shape.without_layout}  {size}")
        for label, text in self._facts(allocation, value):
            yield from self._fact(label, text)
        traced = self._plan.nearest_traced(value.instruction)
        yield from self._chain(traced, nearest=traced != value.instruction)

    def _facts(
        self, allocation: BufferAllocation, value: LogicalBuffer
    ) -> Iterator[tuple[str, str]]:
        plan, overview = self._plan, self._overview
        occupancy = overview.peak.occupancy
        role = occupancy.role(allocation, value)
        use = overview.uses.of(CountedValue(allocation, value, role, value.size_bytes))
        until = (use.until,) if use.until is not None else ()
        yield (
            "is",
            f"{purpose_text(use.purpose, until, use.until_phase, named=overview.named)}, "
            f"in allocation {allocation.index} ({', '.join(allocation.kinds) or 'no kind'}, "
            f"{rounded(allocation.size_bytes)}) at byte {value.offset_bytes:,}",
        )
        instruction = plan.instructions.get(value.instruction)
        if allocation.parameter_number is not None and instruction is not None:
            if instruction.opcode == "parameter":
                yield "argument", labels_of(self._opened.program).parameter(allocation)
        elif instruction is not None:
            kind = f" ({instruction.fusion_kind})" if instruction.fusion_kind else ""
            yield "made by", f"{instruction.opcode}{kind} {instruction.op_name or ''}".rstrip()
        if value.name in copies_by_value(plan):
            yield "copy of", self._copied_text(copies_by_value(plan)[value.name])
        alive, live = occupancy.alive.get(value.name), plan.live_ranges
        if alive is not None and live is not None:
            peak = overview.peak.position
            at_peak = peak is not None and alive.start <= peak <= alive.end
            yield (
                "alive",
                f"from position {alive.start:,} to {alive.end:,} of {len(live.schedule):,}, "
                f"{'also' if at_peak else 'not'} at the peak ({peak:,})",
            )
        last = overview.uses.last_instruction(value)
        if last is not None:
            line = plan.nearest_source(last)
            at = f", {line}" if line is not None else ""
            text = self._texts.of(line)
            yield "ends at", f"{last}{at}" + (f"  {text}" if text else "")
        if plan.module is not None and plan.module.complete:
            yield "read by", self._readers_text(value, is_output=role is Role.OUTPUT)

    def _copied_text(self, copy: Copy) -> str:
        """What a copy reads, arguments by their paths: `all of the argument ws, reordered`."""
        parts = []
        for source in copy.sources[:_MAX_USERS]:
            leaf = leaf_of(self._opened.program, source)
            name = f"the argument {leaf.path}" if leaf is not None else source.value
            size = "all" if source.is_whole else rounded(source.copied_bytes)
            parts.append(f"{size} of {name}")
        text = ", ".join(parts) or "a value without memory of its own"
        return f"{text}, in another order of dimensions" if copy.reorders else text

    def _readers_text(self, value: LogicalBuffer, *, is_output: bool) -> str:
        """The instructions that read a value, in XLA's order, each with its line."""
        plan, overview = self._plan, self._overview
        readers = readers_of(plan, value.name)
        if not readers:
            return "nothing, it is an output" if is_output else "nothing"
        shown = ", ".join(
            f"{reader}{f' ({overview.named(line)})' if line else ''}"
            for reader in readers[:_MAX_USERS]
            for line in [plan.nearest_source(reader)]
        )
        more = f" and {len(readers) - _MAX_USERS} more" if len(readers) > _MAX_USERS else ""
        return shown + more

    # --- a source line

    def _source(self, source: SourceLine) -> Iterator[Text]:
        text = self._texts.of(source)
        yield from self._bold(str(source))
        if text:
            yield Text(f"  {shortened(text, self._width - 2)}")
        at_peak = [
            row
            for row in self._overview.rows
            if row.source == source and row.name == str(source) and row.counted_bytes
        ]
        for row in at_peak:
            purpose = purpose_text(
                row.purpose, row.until, row.until_phase, named=self._overview.named
            )
            yield from self._fact(
                "at peak",
                f"{_both(row.counted_bytes)} in {counted(row.values, 'value')}: {purpose}",
            )
        values = self._made_at(source)
        if not at_peak and values:
            yield from self._fact("at peak", "nothing that this line makes is alive")
        yield from self._kernels(source)
        if values:
            total = len(values)
            order = "those at the peak first" if at_peak and total > 1 else "largest first"
            yield Text(f"  values that it makes: {total}, {order}")
            yield from self._value_rows(values[:_MAX_VALUES])
            if total > _MAX_VALUES:
                yield Text(f"    and {total - _MAX_VALUES} more (--json lists all)")
        first = next(
            (name for name, item in self._plan.instructions.items() if item.source == source), None
        )
        yield from self._chain(values[0][1].instruction if values else first, nearest=False)

    def _made_at(self, source: SourceLine) -> list[Placed]:
        placed = [
            (allocation, value)
            for values in self._plan.values_of_instruction.values()
            for allocation, value in values
            if self._plan.nearest_source(value.name) == source
            and allocation.parameter_number is None
            and not value.shape.is_tuple
        ]
        return sorted(
            placed, key=lambda item: (not self._at_peak(item[1]), -item[1].size_bytes, item[1].name)
        )

    def _at_peak(self, value: LogicalBuffer) -> bool:
        peak, live = self._overview.peak, self._overview.peak.occupancy.alive.get(value.name)
        return (
            live is not None
            and peak.position is not None
            and live.start <= peak.position <= live.end
        )

    def _value_rows(self, values: Sequence[Placed]) -> Iterator[Text]:
        alive = self._overview.peak.occupancy.alive
        digits = max(len(rounded(value.size_bytes)) for _, value in values)
        for _, value in values:
            live = alive.get(value.name)
            span = f"positions {live.start:,} to {live.end:,}" if live is not None else ""
            mark = "  peak" if self._at_peak(value) else ""
            text = f"{value.name} {value.shape.without_layout}, {span}{mark}"
            size = f"    {rounded(value.size_bytes):>{digits}}  "
            yield from map(Text, wrapped(text, self._width, indent=digits + 6, first=size))

    def _kernels(self, source: SourceLine) -> Iterator[Text]:
        cost = self._opened.step_cost
        if cost is None:
            return
        kernels = [kernel for kernel in cost.kernels if kernel.source == source]
        floors = [kernel.floor_seconds for kernel in kernels if kernel.floor_seconds is not None]
        if kernels:
            launches = sum(kernel.launches for kernel in kernels)
            least = f", at least {seconds_text(sum(floors))}" if floors else ""
            yield from self._fact("kernels", f"{launches:,} launches per step{least}")

    # --- an argument

    def _leaves(self, name: str, leaves: Sequence[ArgumentLeaf]) -> Iterator[Text]:
        total = sum(leaf.size_bytes for leaf in leaves)
        count = counted(len(leaves), "leaf", "leaves")
        yield from self._bold(f"{name}  {count}, {_both(total)}")
        paths = {leaf.path for leaf in leaves}
        rows = [row for row in donations(self._opened.program) if row.path in paths]
        outcomes = Counter(str(row.outcome) for row in rows if not row.holds)
        held = sum(row.holds for row in rows)
        failed = "".join(f", {number} {outcome}" for outcome, number in outcomes.items())
        yield from self._fact(
            "donated", f"{len(rows)} of {len(leaves)}, {held} updated in place{failed}"
        )
        unused = sum(leaf.parameter_number is None for leaf in leaves)
        if unused:
            yield from self._fact("unused", f"{unused} are not used by the program")
        ordered = sorted(leaves, key=lambda leaf: (-leaf.size_bytes, leaf.path))
        for leaf in ordered[:_MAX_VALUES]:
            shape = f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
            read = self._read_at(leaf)
            at = f", first read at {self._overview.named(read)}" if read is not None else ""
            size = f"    {rounded(leaf.size_bytes):>9}  "
            text = f"{leaf.path} {shape}{at}"
            yield from map(Text, wrapped(text, self._width, indent=13, first=size))
        if len(ordered) > _MAX_VALUES:
            yield Text(f"    and {len(ordered) - _MAX_VALUES} more (--json lists all)")

    def _read_at(self, leaf: ArgumentLeaf) -> SourceLine | None:
        module = self._plan.module
        entry = module.entry_computation if module is not None else None
        parameter = entry.parameters.get(leaf.parameter_number) if entry is not None else None
        return self._plan.nearest_source(parameter.name) if parameter is not None else None

    # --- an instruction without a value

    def _instruction(self, name: str) -> Iterator[Text]:
        instruction = self._plan.instructions[name]
        yield from self._bold(f"{name}  {instruction.shape.without_layout}")
        yield from self._fact("is", f"{instruction.opcode}, without a value of its own")
        if instruction.operands:
            yield from self._fact("reads", ", ".join(instruction.operands[:_MAX_USERS]))
        yield from self._chain(self._plan.nearest_traced(name), nearest=False)

    # --- parts

    def _chain(self, traced: str | None, *, nearest: bool) -> Iterator[Text]:
        module = self._plan.module
        chain = module.chains.chain(traced) if module is not None and traced is not None else ()
        if not chain:
            source = self._plan.nearest_source(traced) if traced is not None else None
            if source is not None:
                yield from self._fact("line", f"{source}  {self._texts.of(source)}".rstrip())
            return
        heading = "  traced at" + (f" (of {traced}, the nearest with a line)" if nearest else "")
        yield Text(heading)
        for line in chain_lines(chain, self._texts, self._width - 4):
            yield from map(Text, wrapped(line, self._width, indent=8, first="    "))

    def _fact(self, label: str, text: str) -> Iterator[Text]:
        first = f"  {label:<{_LABEL}} "
        yield from map(Text, wrapped(text, self._width, indent=len(first), first=first))

    def _bold(self, text: str) -> Iterator[Text]:
        for line in wrapped(text, self._width, indent=2, first=""):
            yield Text(line, style="bold")


def _both(size_bytes: int) -> str:
    """Rounded and exact bytes, once where they are the same."""
    text, every = rounded(size_bytes), exact(size_bytes)
    return text if text == every else f"{text} ({every})"


def chain_lines(chain: Sequence[Frame], texts: SourceTexts, width: int) -> Iterator[str]:
    """The user's innermost line, the library's frames that it calls, and the user's callers."""
    first = next((i for i, frame in enumerate(chain) if frame.is_own_code), len(chain) - 1)
    for frame in chain[first : first + 1]:
        yield _line("", frame, texts, width)
    for frame in reversed(chain[max(0, first - _MAX_LIBRARY) : first]):
        yield _line("  calls ", frame, texts, width)
    for frame in chain[first + 1 :]:
        if frame.is_own_code:
            yield _line("  called from ", frame, texts, width)


def _line(relation: str, frame: Frame, texts: SourceTexts, width: int) -> str:
    function = frame.function.rpartition(".")[2].strip("<>")
    text = f"{relation}{frame}" + (f" in {function}" if function else "")
    if not frame.is_own_code:
        return text
    source = texts.of(SourceLine(frame.file, frame.line))
    beside = shortened(source, width - len(text) - 4)
    return f"{text}    {beside}".rstrip()
