"""Every kind of change between two plans, as frozen data that puts itself into words.

`text` takes a function that formats labels and scopes: as they are, or with `*` for the numbers of
layers. Texts state B relative to A.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from xlapipe.plans import MemorySpace, SourceLine
from xlapipe.plans.shapes import shape_of

_MAX_LENGTH = 72
_DONATED = ", donated"
NameFormat = Callable[[str], str]
"""Formats a label or a scope."""


class MemoryRole(StrEnum):
    """What memory is used for; the same division as in `Totals`."""

    ARGUMENT = "argument"
    OUTPUT = "output"
    TEMP = "temp"
    CONSTANT = "constant"
    THREAD_LOCAL = "thread-local"


class SlackReason(StrEnum):
    """Why an arena is larger than the values alive at the position where arenas are compared."""

    ELSEWHERE = "fuller at another moment"
    PACKING = "lost by the packing"
    UNKNOWN = "no live ranges"


class InstructionCategory(StrEnum):
    """What kind of work an instruction does."""

    GEMM = "gemm"
    COLLECTIVE = "collective"
    COPY = "copy"
    FUSION = "fusion"
    OTHER = "instruction"


class Action(StrEnum):
    """What happened to an instruction from A to B."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Change:
    """A change between two plans."""

    def text(self, name: NameFormat) -> str:
        """The change in words, with labels and scopes as `name` formats them."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OperationName:
    """An instruction named by the user's code, not by XLA's instruction name.

    Attributes:
      label: `dot`, or the last part of the op_name, or the opcode.
      scope: the modules in the op_name, e.g. `layers_0/mlp/down_proj`.
    """

    label: str
    scope: str
    source: SourceLine | None

    def text(self, name: NameFormat) -> str:
        """`dot at step.py:12 (layers_0/mlp)`."""
        source = f" at {self.source}" if self.source is not None else ""
        scope = f" ({name(self.scope)})" if self.scope else ""
        return f"{self.label}{source}{scope}"


@dataclass(frozen=True, slots=True)
class Aspect:
    """One property in which two paired instructions differ; `a` and `b` are its values as text."""

    name: str
    a: str
    b: str

    def text(self, is_gemm: bool) -> str:
        """The property in words; empty if there is nothing to say."""
        a, b = self.a, self.b
        match self.name:
            case "backend":
                return f"went from {a} to {b}"
            case "split-K" if a == "1":
                return f"became split-K {b}"
            case "split-K" if b == "1":
                return f"is no longer split-K {a}"
            case "shape" | "layout" if is_gemm:
                a, b = _result(a), _result(b)
                if self.name == "layout":
                    return f"layout {a} → {b}"
                same = shape_of(a).without_layout == shape_of(b).without_layout
                return "" if same else f"{_short(a)} → {_short(b)}"
            case "layout":
                return f"layout {a} → {b}"
            case "body":
                added = f"now also does {b}" if b else ""
                removed = f"no longer does {a}" if a else ""
                both = " and ".join(text for text in (added, removed) if text)
                return both or "does the same operations in a different form"
            case "operands":
                return "reads different values"
        return f"{self.name} {_short(a)} → {_short(b)}"


@dataclass(frozen=True, slots=True)
class InstructionChange(Change):
    """An instruction that was added, removed or changed.

    Attributes:
      subject: its name in the user's code.
      shape: shape of its result; B's shape unless it was removed.
      a, b: its instruction names in the two plans; None in the plan without it.
      a_bytes, b_bytes: bytes of the values that it writes; None in the plan without it.
      aspects: what changed; empty unless `action` is CHANGED.
    """

    what: InstructionCategory
    action: Action
    subject: OperationName
    shape: str
    a: str | None
    b: str | None
    a_bytes: int | None
    b_bytes: int | None
    aspects: tuple[Aspect, ...] = ()

    def text(self, name: NameFormat) -> str:
        written_bytes = self.a_bytes if self.b_bytes is None else self.b_bytes
        operation = self.subject.text(name)
        is_copy = "copy: " if self.what is InstructionCategory.COPY else ""
        if self.action is Action.CHANGED:
            return f"{is_copy}{operation} {self.aspects_text}"
        shape = _short(_result(self.shape))
        return f"{self.action}: {is_copy}{operation} writes {shape}, {written_bytes or 0:,} B"

    @property
    def aspects_text(self) -> str:
        if not self.aspects:
            return f"{self.action}"
        texts = [aspect.text(self.is_gemm) for aspect in self.aspects]
        return ", ".join(text for text in texts if text) or "changed"

    @property
    def is_gemm(self) -> bool:
        return self.what is InstructionCategory.GEMM


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """A value at the schedule position where the temporary memory of the two plans is compared.

    Attributes:
      held_bytes: bytes of the arena that it occupies at that position.
      place: `temp`, or the label of the leaf whose allocation contains it.
    """

    name: str
    shape: str
    size_bytes: int
    held_bytes: int
    place: str
    alive: bool

    @property
    def is_workspace(self) -> bool:
        """Whether it is what cuBLAS computes in."""
        return self.shape.startswith("s8[") and self.name.endswith("{1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesChange(Change):
    """One line of the account of the difference in total_allocation_bytes.

    Attributes:
      label: label of the leaf, for arguments and outputs; the shape, for constants.
      a_alias, b_alias: label of the argument whose allocation an output is in, if any.
      a_held, b_held: the value, for a line about one value in temporary memory.
      change: the change of the instruction that writes the value.
      room: for a line about the unused bytes of an arena, the reason for them.
      moment: for `SlackReason.ELSEWHERE`, the instruction at the peak of the larger arena;
        `fullest` is that of the smaller arena, and `fullest_value` the largest value there.
    """

    place: MemoryRole
    a_bytes: int
    b_bytes: int
    label: str = ""
    a_alias: str | None = None
    b_alias: str | None = None
    a_held: ComparedValue | None = None
    b_held: ComparedValue | None = None
    change: InstructionChange | None = None
    subject: OperationName | None = None
    room: SlackReason | None = None
    moment: OperationName | None = None
    fullest: OperationName | None = None
    fullest_value: str = ""
    color: int = 0

    @property
    def delta_bytes(self) -> int:
        return self.b_bytes - self.a_bytes

    def text(self, name: NameFormat) -> str:
        """The line in words, without its delta."""
        match self.place:
            case MemoryRole.ARGUMENT:
                return f"{self.place} {name(self.label)}: {self._sizes}"
            case MemoryRole.OUTPUT:
                return self._output(name)
            case MemoryRole.CONSTANT:
                shapes = (shape_of(text).without_layout for text in self.label.split(" "))
                return f"constant {_short(' '.join(shapes))}: {self._sizes}"
            case MemoryRole.THREAD_LOCAL:
                return f"thread-local: {self.label}, {self._sizes}"
        arena = f"temp (color {self.color})" if self.color else "temp"
        return f"{arena}: {self._value(name) if self.room is None else self._slack(name)}"

    @property
    def _sizes(self) -> str:
        if not self.a_bytes:
            return f"{self.b_bytes:,} B, only in B"
        if not self.b_bytes:
            return f"{self.a_bytes:,} B, only in A"
        return f"{self.a_bytes:,} B → {self.b_bytes:,} B"

    def _output(self, name: NameFormat) -> str:
        label = name(self.label)
        if self.a_alias is not None and self.b_alias is None and self.b_bytes:
            return f"output {label} has a separate allocation; in A it reuses {name(self.a_alias)}"
        if self.b_alias is not None and self.a_alias is None and self.a_bytes:
            return f"output {label} reuses {name(self.b_alias)}; in A it has a separate allocation"
        return f"output {label}: {self._sizes}"

    def _slack(self, name: NameFormat) -> str:
        if self.room is SlackReason.UNKNOWN:
            return (
                f"{self._sizes}; without live ranges in both dumps, its contents are not compared"
            )
        if self.room is SlackReason.PACKING:
            return (
                "packing: the arenas lay out their values differently "
                f"(unused at the peak: {self.a_bytes:,} B in A, {self.b_bytes:,} B in B)"
            )
        larger = _at(self.moment, name)
        smaller = _at(self.fullest, name)
        if self.fullest_value:
            smaller += f" (largest value {_short(self.fullest_value)})"
        a, b = (smaller, larger) if self.a_bytes > self.b_bytes else (larger, smaller)
        return f"peak moved: A peaks at {a}, B at {b}"

    def _value(self, name: NameFormat) -> str:
        a, b = self.a_held, self.b_held
        subject = self.subject.text(name) if self.subject is not None else "a value"
        value = b or a
        assert value is not None  # a value line is about A's value, B's, or both
        if value.shape.startswith("("):
            subject = f"the pointer table of {subject}"
            if (a is None) != (b is None):
                return f"only in {'A' if b is None else 'B'}: {subject}"
        elif value.is_workspace:
            subject = f"the workspace of {subject}"
        if a is None:
            return f"only in B: {subject} ({_short(value.shape)}{self._gemm_change})"
        if b is None:
            return f"only in A: {subject} ({_short(value.shape)})"
        if a.size_bytes != b.size_bytes:
            changed = self.change.aspects_text if self.change is not None else "changed size"
            shapes = f"{_short(a.shape)} → {_short(b.shape)}"
            text = (
                f"{subject} {changed}" if shapes in changed else f"{subject} {changed} ({shapes})"
            )
            return text + _other_place(a, b, name)
        return f"{subject} ({_short(b.shape)})" + (_other_place(a, b, name) or _lifetime(a, b))

    @property
    def _gemm_change(self) -> str:
        change = self.change
        if change is None or not change.is_gemm or not change.aspects:
            return ""
        return f"; {change.aspects_text}"


@dataclass(frozen=True, slots=True)
class AliasChange(Change):
    """An argument that is aliased to different outputs in A and B, or in only one of them.

    Attributes:
      a, b: label of the output; None without an alias.
      a_donor, b_donor: whether it is donated but not aliased.
    """

    argument: str
    a: str | None
    b: str | None
    a_donor: bool = False
    b_donor: bool = False

    def text(self, name: NameFormat) -> str:
        argument = name(self.argument)
        if self.a is not None and self.b is None:
            donor = f"; {argument} is donated but not aliased" if self.b_donor else ""
            return f"alias lost: {name(self.a)} no longer reuses {argument}{donor}"
        if self.a is None and self.b is not None:
            return f"alias gained: {name(self.b)} reuses {argument}"
        if self.a != self.b:
            outputs = name(self.b or ""), name(self.a or "")
            return f"alias: {argument} is reused by {outputs[0]}, in A by {outputs[1]}"
        if self.b_donor:
            return f"donation: {argument} is donated but not aliased"
        return f"donation: {argument} is no longer donated"


@dataclass(frozen=True, slots=True)
class LeafChange(Change):
    """An argument or an output that is in only one program, or differs in shape or donation.

    Attributes:
      kind: `argument` or `output`.
      a, b: label, shape and donation; None in the program without it.
      donation_only: the shapes are equal, and one of the two is donated.
    """

    kind: str
    a: str | None
    b: str | None
    donation_only: bool = False

    def text(self, name: NameFormat) -> str:
        if self.a is None:
            return f"{self.kind} {name(self.b or '')}: only in B"
        if self.b is None:
            return f"{self.kind} {name(self.a)}: only in A"
        leaf = self.a.removesuffix(_DONATED)
        if self.donation_only and leaf == self.b.removesuffix(_DONATED):
            donated = "A, not in B" if self.a.endswith(_DONATED) else "B, not in A"
            return f"{self.kind} {name(leaf)}: donated in {donated}"
        return f"{self.kind} {name(self.a)} → {name(self.b)}"


@dataclass(frozen=True, slots=True)
class PlacementChange(Change):
    """Values in another allocation, or, where `a` and `b` are equal, at another offset of it."""

    a: str
    b: str
    count: int
    largest_bytes: int

    def text(self, name: NameFormat) -> str:
        values = "1 value" if self.count == 1 else f"{self.count} values"
        largest = f"largest {self.largest_bytes:,} B"
        if self.a == self.b:
            return f"offsets: {values} at a different offset in {name(self.a)}, {largest}"
        return f"allocations: {values} moved from {name(self.a)} to {name(self.b)}, {largest}"


@dataclass(frozen=True, slots=True)
class ThunkChange(Change):
    """The numbers of thunks of one kind in A and B, which differ, or some of their launches do.

    Attributes:
      launches: with equal numbers, how many differ in grid, threads or shared memory.
    """

    kind: str
    a: int
    b: int
    launches: int = 0

    def text(self, name: NameFormat) -> str:
        if self.launches:
            kinds = f"{self.launches} {self.kind}"
            return f"thunks: {kinds} with a different grid, threads or shared memory"
        return f"thunks: {self.a} → {self.b} {self.kind}"


@dataclass(frozen=True, slots=True)
class OrderChange(Change):
    """How many of the instructions in both plans run in a different order."""

    count: int
    of: int

    def text(self, name: NameFormat) -> str:
        return f"schedule: {self.count} of {self.of} instructions run in a different order"


@dataclass(frozen=True, slots=True)
class OutputChange(Change):
    """An output that is computed by a different instruction."""

    label: str
    a: OperationName
    b: OperationName

    def text(self, name: NameFormat) -> str:
        output = f"output {name(self.label)} is"
        if self.a == self.b:
            return f"{output} another result of {self.b.text(name)}"
        return f"{output} computed by {self.b.text(name)}, in A by {self.a.text(name)}"


@dataclass(frozen=True, slots=True)
class SpaceChange(Change):
    """Bytes in a memory beside the device's: `host`, or a TPU's `vmem` or `smem`."""

    space: str
    a_bytes: int
    b_bytes: int

    def text(self, name: NameFormat) -> str:
        memory = "host" if self.space == MemorySpace.HOST else self.space.upper()
        sizes = f"{self.a_bytes:,} B → {self.b_bytes:,} B ({self.b_bytes - self.a_bytes:+,} B)"
        return f"{memory} memory: {sizes}, beside the device's"


@dataclass(frozen=True, slots=True)
class HiddenChange(Change):
    """HLO that differs only in what a plan does not record: the first lines that do."""

    a: str
    b: str

    def text(self, name: NameFormat) -> str:
        return (
            "HLO: only literals, slices or dimension numbers differ, which a plan does not "
            f"record; first difference: `{self.a}` in A, `{self.b}` in B"
        )


def _at(operation: OperationName | None, name: NameFormat) -> str:
    return "the start of the schedule" if operation is None else operation.text(name)


def _other_place(a: ComparedValue, b: ComparedValue, name: NameFormat) -> str:
    if a.place == b.place:
        return ""
    side, place = ("B", b.place) if a.place.startswith("temp") else ("A", a.place)
    where = place if place.startswith("temp") else f"the allocation of {name(place)}"
    return f"; in {side} it is in {where}"


def _lifetime(a: ComparedValue, b: ComparedValue) -> str:
    if a.alive and b.alive:
        less_or_more = "less" if a.held_bytes < b.held_bytes else "more"
        return f"; in B it shares {less_or_more} memory with other values"
    return f"; at the compared position alive only in {'B' if b.alive else 'A'}"


def _result(shape: str) -> str:
    """The shape without cuBLAS's workspace.

    >>> _result("(bf16[128,4096]{1,0}, s8[4194304]{0})")
    'bf16[128,4096]{1,0}'
    """
    return shape.strip("()").partition(", s8[")[0] if ", s8[" in shape else shape


def _short(text: str) -> str:
    """A shape without layouts, or other text, cut to `_MAX_LENGTH` characters."""
    text = shape_of(text).without_layout
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"
