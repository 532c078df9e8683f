"""One change in words.

Each function takes `name`, which formats labels and scopes: as they are, or with `*` for the
numbers of layers. Texts state B relative to A.
"""

from collections.abc import Callable

from xlapipe.diff.changes import (
    Action,
    AliasChange,
    Aspect,
    BytesChange,
    Change,
    ChipMemoryChange,
    ComparedValue,
    HiddenChange,
    HostMemoryChange,
    InstructionCategory,
    InstructionChange,
    LaunchChange,
    LeafChange,
    MovesChange,
    OperationName,
    OrderChange,
    OutputChange,
    Place,
    PlacementChange,
    SlackReason,
    ThunkChange,
)
from xlapipe.plans.shapes import shape_of

_MAX_LENGTH = 72
_DONATED = ", donated"
_Name = Callable[[str], str]


def account_text(line: BytesChange, name: _Name) -> str:
    """A line of the account, without its delta."""
    match line.place:
        case Place.ARGUMENT:
            return f"{line.place} {name(line.label)}: {_sizes(line)}"
        case Place.OUTPUT:
            return _output(line, name)
        case Place.CONSTANT:
            shapes = (shape_of(text).without_layout for text in line.label.split(" "))
            return f"constant {_short(' '.join(shapes))}: {_sizes(line)}"
        case Place.THREAD_LOCAL:
            return f"thread-local: {line.label}, {_sizes(line)}"
    arena = f"temp (color {line.color})" if line.color else "temp"
    text = _value(line, name) if line.room is None else _slack(line, line.room, name)
    return f"{arena}: {text}"


def _sizes(line: BytesChange) -> str:
    if not line.a_bytes:
        return f"{line.b_bytes:,} B, only in B"
    if not line.b_bytes:
        return f"{line.a_bytes:,} B, only in A"
    return f"{line.a_bytes:,} B → {line.b_bytes:,} B"


def _output(line: BytesChange, name: _Name) -> str:
    label = name(line.label)
    if line.a_alias is not None and line.b_alias is None and line.b_bytes:
        return f"output {label} has a separate allocation; in A it reuses {name(line.a_alias)}"
    if line.b_alias is not None and line.a_alias is None and line.a_bytes:
        return f"output {label} reuses {name(line.b_alias)}; in A it has a separate allocation"
    return f"output {label}: {_sizes(line)}"


def _slack(line: BytesChange, reason: SlackReason, name: _Name) -> str:
    if reason is SlackReason.UNKNOWN:
        return f"{_sizes(line)}; without live ranges in both dumps, its contents are not compared"
    if reason is SlackReason.PACKING:
        return (
            "packing: the arenas lay out their values differently "
            f"(unused at the peak: {line.a_bytes:,} B in A, {line.b_bytes:,} B in B)"
        )
    larger = _at(line.moment, name)
    smaller = _at(line.fullest, name)
    if line.fullest_value:
        smaller += f" (largest value {_short(line.fullest_value)})"
    a, b = (smaller, larger) if line.a_bytes > line.b_bytes else (larger, smaller)
    return f"peak moved: A peaks at {a}, B at {b}"


def _at(operation: OperationName | None, name: _Name) -> str:
    return "the start of the schedule" if operation is None else _operation(operation, name)


def _value(line: BytesChange, name: _Name) -> str:
    a, b = line.a_held, line.b_held
    subject = _operation(line.subject, name) if line.subject is not None else "a value"
    value = b or a
    assert value is not None  # a value line is about A's value, B's, or both
    if value.shape.startswith("("):
        subject = f"the pointer table of {subject}"
        if (a is None) != (b is None):
            return f"only in {'A' if b is None else 'B'}: {subject}"
    elif _is_workspace(value):
        subject = f"the workspace of {subject}"
    if a is None:
        return f"only in B: {subject} ({_short(value.shape)}{_gemm_change(line)})"
    if b is None:
        return f"only in A: {subject} ({_short(value.shape)})"
    if a.size_bytes != b.size_bytes:
        changed = _aspects(line.change, name) if line.change is not None else "changed size"
        shapes = f"{_short(a.shape)} → {_short(b.shape)}"
        text = f"{subject} {changed}" if shapes in changed else f"{subject} {changed} ({shapes})"
        return text + _other_place(a, b, name)
    return f"{subject} ({_short(b.shape)})" + (_other_place(a, b, name) or _lifetime(a, b))


def _gemm_change(line: BytesChange) -> str:
    change = line.change
    if change is None or change.what is not InstructionCategory.GEMM or not change.aspects:
        return ""
    return f"; {_aspects(change, str)}"


def _other_place(a: ComparedValue, b: ComparedValue, name: _Name) -> str:
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


def _is_workspace(value: ComparedValue) -> bool:
    return value.shape.startswith("s8[") and value.name.endswith("{1}")


def _operation(operation: OperationName, name: _Name) -> str:
    source = f" at {operation.source}" if operation.source is not None else ""
    scope = f" ({name(operation.scope)})" if operation.scope else ""
    return f"{operation.label}{source}{scope}"


def change_text(change: Change, name: _Name) -> str:
    """A change that is not a line of the account."""
    match change:
        case InstructionChange():
            return _instruction(change, name)
        case AliasChange():
            return _alias(change, name)
        case OutputChange() if change.a == change.b:
            return f"output {name(change.label)} is another result of {_operation(change.b, name)}"
        case OutputChange():
            return (
                f"output {name(change.label)} is computed by {_operation(change.b, name)}, "
                f"in A by {_operation(change.a, name)}"
            )
        case ThunkChange():
            return f"thunks: {change.a} → {change.b} {change.kind}"
        case LaunchChange():
            kinds = f"{change.count} {change.kind}"
            return f"thunks: {kinds} with a different grid, threads or shared memory"
        case OrderChange():
            return f"schedule: {change.count} of {change.of} instructions run in a different order"
        case PlacementChange():
            values = "1 value" if change.count == 1 else f"{change.count} values"
            largest = f"largest {change.largest_bytes:,} B"
            if change.a == change.b:
                return f"offsets: {values} at a different offset in {name(change.a)}, {largest}"
            return (
                f"allocations: {values} moved from {name(change.a)} to {name(change.b)}, {largest}"
            )
        case HostMemoryChange():
            delta_bytes = change.b_bytes - change.a_bytes
            return (
                f"host memory: {change.a_bytes:,} B → {change.b_bytes:,} B ({delta_bytes:+,} B), "
                "beside the device's"
            )
        case ChipMemoryChange():
            return (
                f"{change.space.upper()}: {change.a_bytes:,} B → {change.b_bytes:,} B, on the "
                "chip, beside the device's"
            )
        case MovesChange():
            return (
                f"moves from {change.source_space.upper()} to {change.target_space.upper()}: "
                f"{change.a_count} → {change.b_count}, {change.a_bytes:,} B → {change.b_bytes:,} B"
            )
        case HiddenChange():
            return (
                "HLO: only literals, slices or dimension numbers differ, which a plan does not "
                f"record; first difference: `{change.a}` in A, `{change.b}` in B"
            )


def _instruction(change: InstructionChange, name: _Name) -> str:
    written_bytes = change.a_bytes if change.b_bytes is None else change.b_bytes
    operation = _operation(change.subject, name)
    is_copy = "copy: " if change.what is InstructionCategory.COPY else ""
    if change.action is Action.CHANGED:
        return f"{is_copy}{operation} {_aspects(change, name)}"
    shape = _short(_result(change.shape))
    return f"{change.action}: {is_copy}{operation} writes {shape}, {written_bytes or 0:,} B"


def _aspects(change: InstructionChange, name: _Name) -> str:
    if not change.aspects:
        return f"{change.action}"
    is_gemm = change.what is InstructionCategory.GEMM
    texts = [_aspect(aspect, is_gemm) for aspect in change.aspects]
    return ", ".join(text for text in texts if text) or "changed"


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
            if aspect.name == "layout":
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
    return f"{aspect.name} {_short(a)} → {_short(b)}"


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


def _alias(change: AliasChange, name: _Name) -> str:
    argument = name(change.argument)
    if change.a is not None and change.b is None:
        donor = f"; {argument} is donated but not aliased" if change.b_donor else ""
        return f"alias lost: {name(change.a)} no longer reuses {argument}{donor}"
    if change.a is None and change.b is not None:
        return f"alias gained: {name(change.b)} reuses {argument}"
    if change.a != change.b:
        outputs = name(change.b or ""), name(change.a or "")
        return f"alias: {argument} is reused by {outputs[0]}, in A by {outputs[1]}"
    if change.b_donor:
        return f"donation: {argument} is donated but not aliased"
    return f"donation: {argument} is no longer donated"


def leaf_text(change: LeafChange, name: _Name) -> str:
    """An argument or an output in which the two programs differ."""
    if change.a is None:
        return f"{change.kind} {name(change.b or '')}: only in B"
    if change.b is None:
        return f"{change.kind} {name(change.a)}: only in A"
    leaf = change.a.removesuffix(_DONATED)
    if change.donation_only and leaf == change.b.removesuffix(_DONATED):
        donated = "A, not in B" if change.a.endswith(_DONATED) else "B, not in A"
        return f"{change.kind} {name(leaf)}: donated in {donated}"
    return f"{change.kind} {name(change.a)} → {name(change.b)}"
