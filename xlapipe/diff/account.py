"""The account of the difference in total_allocation_bytes, line by line.

Each plan's total is the sum of its arguments, its outputs that are not written over an argument,
its temporary memory, constants and thread-locals. Leaves are paired by path. Temporary memory is
compared at one moment: where the larger of the two arenas is fullest, and at the instruction that
belongs to it in the other plan. What is alive then is compared value by value, and the room to
spare is a line of its own, so that the lines add up to the difference exactly.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from xlapipe.diff.arena import Arena, Held, arenas
from xlapipe.diff.changes import BytesChange, InstructionChange, Place, Room, Subject, ValueHeld
from xlapipe.diff.instructions import Described
from xlapipe.diff.leaves import Leaf, is_live_out
from xlapipe.diff.matching import Matching, Side
from xlapipe.plan import AllocationKind, BufferAllocation, LogicalBuffer

Changes = Mapping[str, InstructionChange]


def account(
    matching: Matching, a: Described, b: Described, changes: tuple[InstructionChange, ...]
) -> tuple[BytesChange, ...]:
    """Lines whose deltas add up to total(B) - total(A); the largest first, zeros left out."""
    lines = [
        *_arguments(matching),
        *_outputs(matching),
        *_counted(matching),
        *_Temp(matching, a, b, changes).lines(),
    ]
    told = [line for line in lines if line.delta_bytes]
    return tuple(sorted(told, key=lambda line: (-abs(line.delta_bytes), line.place, line.label)))


def _size(leaf: Leaf | None) -> int:
    return leaf.allocation.size_bytes if leaf is not None and leaf.allocation is not None else 0


def _arguments(matching: Matching) -> Iterator[BytesChange]:
    for one, other in _paired(matching.a.arguments, matching.b.arguments, matching.arguments):
        label = (other or one).label  # type: ignore[union-attr]  # one of the two is there
        yield BytesChange(
            place=Place.ARGUMENT, a_bytes=_size(one), b_bytes=_size(other), label=label
        )


def _paired(
    a: tuple[Leaf, ...], b: tuple[Leaf, ...], pairs: Mapping[int, int]
) -> Iterator[tuple[Leaf | None, Leaf | None]]:
    for at, leaf in enumerate(a):
        yield leaf, b[pairs[at]] if at in pairs else None
    taken = set(pairs.values())
    for at, leaf in enumerate(b):
        if at not in taken:
            yield None, leaf


def _outputs(matching: Matching) -> Iterator[BytesChange]:
    """Outputs with memory of their own; of two in one allocation the first has it."""
    owners_a, owners_b = _owned(matching.a), _owned(matching.b)
    aliases_a, aliases_b = aliased_to(matching.a), aliased_to(matching.b)
    for one, other in _paired(matching.a.outputs, matching.b.outputs, matching.outputs):
        yield BytesChange(
            place=Place.OUTPUT,
            a_bytes=owners_a.pop(one.label, 0) if one is not None else 0,
            b_bytes=owners_b.pop(other.label, 0) if other is not None else 0,
            label=(other or one).label,  # type: ignore[union-attr]  # one of the two is there
            a_alias=aliases_a.get(one.label) if one is not None else None,
            b_alias=aliases_b.get(other.label) if other is not None else None,
        )
    for label in sorted(owners_a.keys() | owners_b.keys()):
        yield BytesChange(
            place=Place.OUTPUT,
            a_bytes=owners_a.get(label, 0),
            b_bytes=owners_b.get(label, 0),
            label=label,
        )


def _owned(side: Side) -> dict[str, int]:
    """Bytes of the live-out allocations that are no parameter's, by label."""
    labels = {
        leaf.allocation.index: leaf.label
        for leaf in reversed(side.outputs)
        if leaf.allocation is not None
    }
    owned: Counter[str] = Counter()
    for allocation in side.program.plan.allocations:
        if is_live_out(allocation) and _is_kind(allocation) is Place.OUTPUT:
            owned[labels.get(allocation.index) or _unnamed(allocation)] += allocation.size_bytes
    return dict(owned)


def _unnamed(allocation: BufferAllocation) -> str:
    if allocation.values and all(value.shape.startswith("(") for value in allocation.values):
        return "the table of outputs"
    return "outputs that the HLO does not name"


def aliased_to(side: Side) -> dict[str, str]:
    """Label of an output to that of the argument in whose memory it lies."""
    labels = {leaf.number: leaf.label for leaf in side.arguments}
    outputs = {leaf.number: leaf.label for leaf in side.outputs}
    return {
        outputs[alias.output_index or (0,)]: labels[alias.parameter_number, *alias.parameter_index]
        for alias in side.program.plan.aliases
        if alias.output_index is not None
        and (alias.output_index or (0,)) in outputs
        and (alias.parameter_number, *alias.parameter_index) in labels
    }


def _is_kind(allocation: BufferAllocation) -> Place:
    """As `Totals` divides the total."""
    for kind, place in (
        (AllocationKind.THREAD_LOCAL, Place.THREAD_LOCAL),
        (AllocationKind.PARAMETER, Place.ARGUMENT),
        (AllocationKind.CONSTANT, Place.CONSTANT),
        (AllocationKind.MAYBE_LIVE_OUT, Place.OUTPUT),
    ):
        if allocation.is_a(kind):
            return place
    return Place.TEMP


def _counted(matching: Matching) -> Iterator[BytesChange]:
    """Constants by shape, and thread-locals all together."""
    for place in (Place.CONSTANT, Place.THREAD_LOCAL):
        sizes: list[Counter[str]] = []
        for side in (matching.a, matching.b):
            sizes.append(Counter())
            for allocation in side.program.plan.allocations:
                if _is_kind(allocation) is place:
                    shapes = " ".join(sorted(value.shape for value in allocation.values))
                    label = shapes if place is Place.CONSTANT else "scalars inside fusions"
                    sizes[-1][label] += allocation.size_bytes
        for label in sorted(sizes[0].keys() | sizes[1].keys()):
            yield BytesChange(
                place=place, a_bytes=sizes[0][label], b_bytes=sizes[1][label], label=label
            )


def place_labels(side: Side) -> Callable[[str], str]:
    """Where a value lies, by its name: a leaf's label, `temp`, `constant` or `thread-local`."""
    labels: dict[int, str] = {}
    for leaf in (*reversed(side.outputs), *reversed(side.arguments)):
        if leaf.allocation is not None:
            labels[leaf.allocation.index] = leaf.label
    homes = side.program.plan.allocation_of_value

    def place(name: str) -> str:
        allocation = homes[name]
        kind = _is_kind(allocation)
        if kind is Place.TEMP and allocation.color:
            return f"temp of color {allocation.color}"
        return labels.get(allocation.index, _unnamed(allocation) if kind is Place.OUTPUT else kind)

    return place


class _Temp:
    """The lines for temporary memory."""

    def __init__(
        self,
        matching: Matching,
        a: Described,
        b: Described,
        changes: tuple[InstructionChange, ...],
    ) -> None:
        self._matching = matching
        self._described = (a, b)
        self._changes = (
            {change.a: change for change in changes if change.a is not None},
            {change.b: change for change in changes if change.b is not None},
        )
        self._places = (place_labels(matching.a), place_labels(matching.b))
        self._values = tuple(
            {
                value.name: value
                for allocation in side.program.plan.allocations
                for value in allocation.values
            }
            for side in (matching.a, matching.b)
        )

    def lines(self) -> Iterator[BytesChange]:
        ours = arenas(self._matching.a.program.plan)
        theirs = arenas(self._matching.b.program.plan)
        for color in sorted(ours.keys() | theirs.keys()):
            yield from self._color(
                color,
                ours.get(color, Arena(self._matching.a.program.plan, ())),
                theirs.get(color, Arena(self._matching.b.program.plan, ())),
            )

    def _color(self, color: int, a: Arena, b: Arena) -> Iterator[BytesChange]:
        if a.size_bytes == b.size_bytes:
            return
        moments = self._moments(a, b)
        if moments[0] is not None and moments[1] is not None:
            yield from self._held(color, a.at(moments[0]), b.at(moments[1]))
        yield from self._room(color, (a, b), moments)

    def _room(
        self, color: int, both: tuple[Arena, Arena], moments: tuple[int | None, int | None]
    ) -> Iterator[BytesChange]:
        """What the arenas are larger by than what is alive at the moment."""
        sizes = both[0].size_bytes, both[1].size_bytes
        if None in moments:
            # Not told by this dump: what is known of the other would explain half of it.
            yield BytesChange(
                place=Place.TEMP, a_bytes=sizes[0], b_bytes=sizes[1], room=Room.UNKNOWN, color=color
            )
            return
        used = [arena.used_bytes(at or 0) for arena, at in zip(both, moments, strict=True)]
        most = [arena.used_bytes(arena.fullest or 0) for arena in both]
        larger = 0 if sizes[0] > sizes[1] else 1
        smaller = 1 - larger
        fullest = both[smaller].fullest
        held = max(both[smaller].at(fullest or 0), key=lambda each: each.held_bytes, default=None)
        yield BytesChange(
            place=Place.TEMP,
            a_bytes=most[0] - used[0],
            b_bytes=most[1] - used[1],
            room=Room.ELSEWHERE,
            moment=self._at(larger, moments[larger]),
            fullest=self._at(smaller, fullest),
            fullest_value=held.value.shape if held is not None else "",
            color=color,
        )
        yield BytesChange(
            place=Place.TEMP,
            a_bytes=sizes[0] - most[0],
            b_bytes=sizes[1] - most[1],
            room=Room.PACKING,
            color=color,
        )

    def _at(self, side: int, moment: int | None) -> Subject | None:
        described = self._described[side]
        live = described.side.program.plan.live_ranges
        if moment is None or live is None:
            return None
        for position in range(min(moment, len(live.schedule) - 1), -1, -1):
            if live.schedule[position] in described.side.nodes:
                return described.subject(live.schedule[position])
        return None

    def _moments(self, a: Arena, b: Arena) -> tuple[int | None, int | None]:
        """The schedule positions at which the arenas are compared."""
        if a.fullest is None or b.fullest is None:
            return a.fullest, b.fullest
        if a.size_bytes > b.size_bytes:
            return a.fullest, self._counterpart(a, a.fullest, b, self._matching.instructions)
        return self._counterpart(b, b.fullest, a, self._matching.reverse), b.fullest

    @staticmethod
    def _counterpart(
        larger: Arena, moment: int, smaller: Arena, pairs: Mapping[str, str]
    ) -> int | None:
        """Where the other plan does what the larger one does at its fullest.

        The nearest instruction before that has a counterpart stands for one that has none.
        """
        ours, theirs = larger.plan.live_ranges, smaller.plan.live_ranges
        assert ours is not None and theirs is not None  # else there is no fullest position
        positions = {name: position for position, name in enumerate(theirs.schedule)}
        parameters = {
            name
            for name, instruction in larger.plan.instructions.items()
            if instruction.opcode == "parameter"
        }
        for position in range(min(moment, len(ours.schedule) - 1), -1, -1):
            name = ours.schedule[position]
            if name not in parameters and pairs.get(name) in positions:
                return positions[pairs[name]]
        return smaller.fullest

    def _held(self, color: int, a: tuple[Held, ...], b: tuple[Held, ...]) -> Iterator[BytesChange]:
        held_a = {each.value.name: each for each in a}
        held_b = {each.value.name: each for each in b}
        for name, held in held_a.items():
            other = self._partner(name, self._matching.instructions, 1)
            yield self._line(color, name, other, held, held_b.get(other) if other else None)
        for name, held in held_b.items():
            other = self._partner(name, self._matching.reverse, 0)
            if other is None or other not in held_a:
                yield self._line(color, other, name, None, held)

    def _partner(self, name: str, pairs: Mapping[str, str], side: int) -> str | None:
        """The same part of what the paired instruction writes; a bare result for element 0."""
        instruction, _, index = name.partition("{")
        partner = pairs.get(instruction)
        if partner is None:
            return None
        candidates = [f"{partner}{{{index}" if index else partner]
        if index in ("", "0}"):
            candidates += [partner, f"{partner}{{0}}"]
        return next((each for each in candidates if each in self._values[side]), None)

    def _line(
        self, color: int, a: str | None, b: str | None, held_a: Held | None, held_b: Held | None
    ) -> BytesChange:
        instruction_a = a.partition("{")[0] if a else None
        instruction_b = b.partition("{")[0] if b else None
        change = self._changes[1].get(instruction_b or "") or self._changes[0].get(
            instruction_a or ""
        )
        if instruction_b is not None:
            subject = self._described[1].subject(instruction_b)
        else:
            subject = self._described[0].subject(instruction_a or "")
        return BytesChange(
            place=Place.TEMP,
            a_bytes=held_a.held_bytes if held_a is not None else 0,
            b_bytes=held_b.held_bytes if held_b is not None else 0,
            a_held=self._value(0, a, held_a),
            b_held=self._value(1, b, held_b),
            change=change,
            subject=subject,
            color=color,
        )

    def _value(self, side: int, name: str | None, held: Held | None) -> ValueHeld | None:
        if name is None:
            return None
        value: LogicalBuffer = self._values[side][name]
        return ValueHeld(
            name=name,
            shape=value.shape,
            size_bytes=value.size_bytes,
            held_bytes=held.held_bytes if held is not None else 0,
            place=self._places[side](name),
            alive=held is not None,
        )
