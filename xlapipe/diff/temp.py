"""The account of temporary memory, compared at the moment at which the larger arena is fullest."""

from collections.abc import Iterator, Mapping

from xlapipe.diff.arena import Arena, Held, arenas
from xlapipe.diff.changes import BytesChange, InstructionChange, Place, Room, Subject, ValueHeld
from xlapipe.diff.described import Described
from xlapipe.diff.matching import Matching
from xlapipe.diff.places import place_labels
from xlapipe.plan import LogicalBuffer


class TempAccount:
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
        held_b = {each.value.name: each for each in b}
        for held in a:
            other = self._partner(held.value.name, self._matching.instructions, 1)
            yield self._line(color, held.value.name, other, held, held_b.pop(other or "", None))
        for name, held in held_b.items():
            yield self._line(
                color, self._partner(name, self._matching.reverse, 0), name, None, held
            )

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
