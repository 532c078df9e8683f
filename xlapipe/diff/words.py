"""One change in words; `name` says how labels and scopes are shown."""

import re
from collections.abc import Callable

from xlapipe.diff.changes import (
    Action,
    AliasChange,
    Aspect,
    BytesChange,
    Change,
    HiddenChange,
    InstructionChange,
    LaunchChange,
    LeafChange,
    OrderChange,
    OutputChange,
    Place,
    PlacementChange,
    Room,
    Subject,
    ThunkChange,
    ValueHeld,
    What,
)

_LONGEST = 72
# How a name is shown: as it is, or with `*` for the numbers of layers.
_Name = Callable[[str], str]


def bytes_in_words(line: BytesChange, name: _Name) -> str:
    """A line of the account, without its bytes."""
    match line.place:
        case Place.ARGUMENT:
            return f"{line.place} {name(line.label)}: {_from_to(line)}"
        case Place.OUTPUT:
            return _output(line, name)
        case Place.CONSTANT:
            return f"constant {_short(line.label)}: {_from_to(line)}"
        case Place.THREAD_LOCAL:
            return f"thread-local: {line.label}, {_from_to(line)}"
    where = f"temp of color {line.color}" if line.color else "temp"
    if line.room is not None:
        return f"{where}: {_room(line, line.room, name)}"
    return f"{where}: {_value(line, name)}"


def _from_to(line: BytesChange) -> str:
    if not line.a_bytes:
        return f"{line.b_bytes:,} B, not in A"
    if not line.b_bytes:
        return f"{line.a_bytes:,} B, not in B"
    return f"{line.a_bytes:,} B → {line.b_bytes:,} B"


def _output(line: BytesChange, name: _Name) -> str:
    label = name(line.label)
    if line.a_alias is not None and line.b_alias is None and line.b_bytes:
        return f"output {label} takes memory of its own: no longer in {name(line.a_alias)}'s"
    if line.b_alias is not None and line.a_alias is None and line.a_bytes:
        return f"output {label} is written over {name(line.b_alias)}, with no memory of its own"
    return f"output {label}: {_from_to(line)}"


def _room(line: BytesChange, room: Room, name: _Name) -> str:
    if room is Room.UNKNOWN:
        return f"{_from_to(line)}; a dump without live ranges does not tell what fills it"
    if room is Room.PACKING:
        return (
            f"padding/overlay: values share the arena differently "
            f"({line.a_bytes:,} B unused when it is fullest, then {line.b_bytes:,} B)"
        )
    smaller, larger = ("A", "B") if line.a_bytes > line.b_bytes else ("B", "A")
    at = "" if line.moment is None else f" at {_subject(line.moment, name)}"
    then = "" if line.fullest is None else f", at {_subject(line.fullest, name)}"
    largest = f", most of it {_short(line.fullest_value)}" if line.fullest_value else ""
    return f"{smaller} holds more elsewhere{then}{largest}; {larger} is fullest{at}"


def _value(line: BytesChange, name: _Name) -> str:
    a, b = line.a_held, line.b_held
    what = _subject(line.subject, name) if line.subject is not None else "a value"
    value = b or a
    assert value is not None  # a value line is of A's value, of B's, or of both
    if value.shape.startswith("("):
        what = f"the table of pointers of {what}"
        if (a is None) != (b is None):
            return f"{'gone' if b is None else 'new'}: {what}"
    elif _is_workspace(value):
        what = f"the workspace of {what}"
    if a is None:
        return f"new: {what} ({_short(value.shape)}{_done(line, What.GEMM)})"
    if b is None:
        return f"gone: {what} ({_short(value.shape)})"
    if a.size_bytes != b.size_bytes:
        done = _aspects(line.change, name) if line.change is not None else "changed size"
        shapes = f"{_short(a.shape)} → {_short(b.shape)}"
        text = f"{what} {done}" if shapes in done else f"{what} {done} ({shapes})"
        return text + _moved(a, b, name)
    return f"{what} ({_short(b.shape)})" + (_moved(a, b, name) or _alive(a, b))


def _done(line: BytesChange, what: What) -> str:
    change = line.change
    if change is None or change.what is not what or not change.aspects:
        return ""
    return f"; it {_aspects(change, str)}"


def _moved(a: ValueHeld, b: ValueHeld, name: _Name) -> str:
    if a.place == b.place:
        return ""
    if a.place.startswith("temp"):
        return f", and lies in the memory of {name(b.place)}"
    return f", which in A lay in the memory of {name(a.place)}"


def _alive(a: ValueHeld, b: ValueHeld) -> str:
    if a.alive and b.alive:
        if a.held_bytes < b.held_bytes:
            return " no longer takes the place of another value"
        return " takes the place of another value"
    return " is alive then, not so in A" if b.alive else " is no longer alive then"


def _is_workspace(value: ValueHeld) -> bool:
    return value.shape.startswith("s8[") and value.name.endswith("{1}")


def _subject(subject: Subject, name: _Name) -> str:
    at = f" at {subject.source}" if subject.source is not None else ""
    scope = f" ({name(subject.scope)})" if subject.scope else ""
    return f"{subject.label}{at}{scope}"


def change_in_words(change: Change, name: _Name) -> str:
    """What changed besides the bytes."""
    match change:
        case InstructionChange():
            return _instruction(change, name)
        case AliasChange():
            return _alias(change, name)
        case OutputChange():
            return (
                f"output {name(change.label)} is computed by {_subject(change.b, name)}, "
                f"by {_subject(change.a, name)} in A"
            )
        case ThunkChange():
            return f"thunks: {change.a} → {change.b} {change.kind}"
        case LaunchChange():
            return (
                f"thunks: {change.count} {change.kind} with another grid, threads or shared memory"
            )
        case OrderChange():
            return f"schedule: {change.count} of {change.of} instructions run in another order"
        case PlacementChange():
            values = "1 value" if change.count == 1 else f"{change.count} values"
            largest = f"the largest {change.largest_bytes:,} B"
            if change.a == change.b:
                return f"places: {values} at another offset of {name(change.a)}, {largest}"
            return f"places: {values} from {name(change.a)} to {name(change.b)}, {largest}"
        case HiddenChange():
            return (
                "HLO: literals, slices or dimension numbers differ, and nothing that a plan "
                f"holds; first at `{change.a}`, in B `{change.b}`"
            )


def _instruction(change: InstructionChange, name: _Name) -> str:
    written = change.a_bytes if change.b_bytes is None else change.b_bytes
    subject = _subject(change.subject, name)
    is_copy = "copy: " if change.what is What.COPY else ""
    if change.action is Action.CHANGED:
        return f"{is_copy}{subject} {_aspects(change, name)}"
    shape = _short(_result(change.shape))
    return f"{change.action}: {is_copy}{subject} writes {shape}, {written or 0:,} B"


def _aspects(change: InstructionChange, name: _Name) -> str:
    if not change.aspects:
        return f"{change.action}"
    is_gemm = change.what is What.GEMM
    told = [_aspect(aspect, is_gemm) for aspect in change.aspects]
    return ", ".join(text for text in told if text) or "changed"


def _aspect(aspect: Aspect, is_gemm: bool) -> str:
    a, b = aspect.a, aspect.b
    match aspect.name:
        case "backend":
            return f"went from {a} to {b}"
        case "split-K" if a == "1":
            return f"became split-K {b}"
        case "split-K" if b == "1":
            return f"is no longer split-K {a}"
        case "shape" | "layout" if is_gemm:
            a, b = _result(a), _result(b)
            if aspect.name == "shape" and a.partition("{")[0] == b.partition("{")[0]:
                return ""
            return f"{_short(a)} → {_short(b)}" if aspect.name == "shape" else f"layout {a} → {b}"
        case "layout":
            return f"layout {a} → {b}"
        case "body":
            more = f"now also does {b}" if b else ""
            less = f"no longer does {a}" if a else ""
            both = " and ".join(text for text in (more, less) if text)
            return both or "does the same operations in another form"
        case "operands":
            return "reads other values"
    return f"{aspect.name} {_short(a)} → {_short(b)}"


def _result(shape: str) -> str:
    """
    >>> _result("(bf16[128,4096]{1,0}, s8[4194304]{0})")
    'bf16[128,4096]{1,0}'
    """
    return shape.strip("()").partition(", s8[")[0] if ", s8[" in shape else shape


def _short(text: str) -> str:
    """Without a row-major layout, and not too long."""
    text = re.sub(r"\{[\d,]*\}", "", text) if text.count("{") else text
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _alias(change: AliasChange, name: _Name) -> str:
    argument = name(change.argument)
    if change.a is not None and change.b is None:
        donor = "; it is donated, and left without an alias" if change.b_donor else ""
        return f"alias lost: {argument} is no longer written over by {name(change.a)}{donor}"
    if change.a is None and change.b is not None:
        return f"alias gained: {argument} is written over by {name(change.b)}"
    if change.a != change.b:
        outputs = name(change.b or ""), name(change.a or "")
        return f"alias: {argument} is written over by {outputs[0]}, by {outputs[1]} in A"
    if change.b_donor:
        return f"donation: {argument} is donated, and left without an alias"
    return f"donation: {argument} is no longer donated"


def leaf_in_words(change: LeafChange, name: _Name) -> str:
    """An argument or an output that the two programs do not share."""
    if change.a is None:
        return f"{change.kind} {name(change.b or '')}: in B alone"
    if change.b is None:
        return f"{change.kind} {name(change.a)}: in A alone"
    return f"{change.kind} {name(change.a)} → {name(change.b)}"
