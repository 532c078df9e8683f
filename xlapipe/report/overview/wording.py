"""What a value is for, in words."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from xlapipe.plans import SourceLine
from xlapipe.plans.phases import Phase
from xlapipe.plans.purposes import Purpose

ShortNames = Callable[[SourceLine], str]
_NOUNS = {
    Purpose.WEIGHTS: "weights",
    Purpose.OPTIMIZER: "optimizer state",
    Purpose.ARGUMENT: "argument",
    Purpose.UPDATED: "argument",
    Purpose.OUTPUT: "output",
    Purpose.SAVED: "saved",
    Purpose.RECOMPUTED: "forward value computed again",
    Purpose.GRADIENT: "gradient",
    Purpose.COLLECTIVE: "result of a collective",
    Purpose.WORKSPACE: "workspace of a library call",
    Purpose.CAST: "cast",
    Purpose.COPY: "copy",
    Purpose.INTERMEDIATE: "intermediate value",
    Purpose.CONSTANT: "constant",
}
_ARGUMENTS = frozenset({Purpose.WEIGHTS, Purpose.OPTIMIZER, Purpose.ARGUMENT, Purpose.UPDATED})


def purpose_text(
    purpose: Purpose,
    until: Sequence[SourceLine],
    until_phase: Phase | None,
    *,
    in_place: bool = False,
    read_at: SourceLine | None = None,
    is_brought: bool = False,
    named: ShortNames = str,
) -> str:
    """What values of a purpose are, and until which lines they are kept.

    Args:
      until: lines at which their lifetimes end, most bytes first.
      read_at: for arguments, the line that reads most of their bytes.
      is_brought: whether an argument's value is a copy that was brought from the host's memory.
    """
    noun = _NOUNS[purpose]
    if purpose in _ARGUMENTS and is_brought:
        noun += ", brought from host memory"
    elif purpose in _ARGUMENTS:
        place = ", updated in place" if in_place else ""
        return f"{noun}{place}" + (f", read at {named(read_at)}" if read_at is not None else "")
    lines = _lines(until, named)
    if purpose is Purpose.SAVED and until_phase is not Phase.UPDATE:
        return f"saved for the backward pass{f' of {lines}' if lines else ''}"
    if until_phase is Phase.UPDATE and purpose is not Purpose.OUTPUT:
        return f"{noun}, until the update{f' at {lines}' if lines else ''}"
    return f"{noun}, until {lines}" if lines else noun


def shapes_text(shapes: Sequence[tuple[str, int]]) -> str:
    """The first shape with the number of its values, and the number of the others.

    >>> shapes_text([("f32[8]", 3), ("f32[4]", 1), ("s32[]", 2)]), shapes_text([("f32[8]", 1)])
    ('3 × f32[8] and 3 more', 'f32[8]')
    """
    shape, count = shapes[0]
    others = sum(number for _, number in shapes[1:])
    return (f"{count} × {shape}" if count > 1 else shape) + (
        f" and {others} more" if others else ""
    )


def _lines(lines: Sequence[SourceLine], named: ShortNames) -> str:
    if not lines:
        return ""
    return named(lines[0]) + (f" and {len(lines) - 1} more" if len(lines) > 1 else "")


def short_names(files: Collection[str]) -> ShortNames:
    """Writes each file as the end of its path that no other file has.

    >>> named = short_names(["models/a/step.py", "models/b/step.py", "models/b/norm.py"])
    >>> named(SourceLine("models/b/norm.py", 3)), named(SourceLine("models/b/step.py", 7))
    ('norm.py:3', 'b/step.py:7')
    """
    ends = Counter(end for file in set(files) for end in _ends(file))
    shortest = {file: next(end for end in _ends(file) if ends[end] == 1) for file in set(files)}
    return lambda line: f"{shortest.get(line.file, line.file)}:{line.line}"


def _ends(file: str) -> list[str]:
    """The ends of a path, shortest first; the whole path is the last one, with a mark."""
    parts = file.split("/")
    return ["/".join(parts[i:]) for i in range(len(parts) - 1, 0, -1)] + [file]
