"""Parse the thunk sequence: `*thunk_sequence_after_thunk_passes.txt` or `*thunk_sequence.txt`.

    004: kWhile   [prev=003 (1) | next=015 (1)]
    condition:
        005: kCustomKernel [source | sink] compare grid: [1, 1, 1] threads: [1, 1, 1]

    009: kSequential   [prev=006 (1) | next=012 (1)]   007: kCopy            [source | next=008 (1)]
      008: kTriangularSolve [prev=007 (1) | sink]

    018: kConditional  [prev=003 (1) | sink        ]
      false_branch:
        No thunks.  true_branch:
        016: kCopy [source | sink] kCopy

A thunk is nested in the nearest thunk above it with less indentation. Labels (`condition:`,
`body:`, `branch_0:`) are indented irregularly; a Thunk does not need them.
"""

import re
from collections.abc import Iterator

from xlapipe.devices.platforms import PLATFORMS
from xlapipe.dump.readers.source_text import COPY_AGAIN, DUMP_AGAIN, SourceText, int64, shown
from xlapipe.plans import Thunk

_THUNK = re.compile(
    r"(?P<indent> *)(?:(?P<id>\d+): )?(?P<kind>k[A-Z][A-Za-z0-9]*)"
    r"(?:[ \t]+\[(?P<order>(?:source|prev=\d+ \(\d+\)) *\| *(?:sink|next=\d+ \(\d+\)) *)\])?"
    r"(?:[ \t]+(?P<detail>\S.*)|[ \t]*)"
)
_NUMBERED = re.compile(r"\d+: k[A-Z]")
_EMPTY = re.compile(r" *No thunks\.")
_LABEL = re.compile(r" *[a-z_]+(?:_\d+)?:")
# Thunks of these kinds are followed by the thunks nested in them, so none of them can be the last.
_HOLDERS = frozenset().union(*(platform.thunk_holders for platform in PLATFORMS))
_ASYNC_ID = re.compile(r"\basync_id=(\d+)")
_REFERENCE = re.compile(r"(?:prev|next)=(\d+)")


def parse_thunks(source: SourceText) -> tuple[Thunk, ...]:
    """Every thunk, including nested ones, in the order of the file."""
    if source.text.strip() == "No thunks.":
        return ()  # a program that computes nothing, such as the identity
    thunks: list[Thunk] = []
    indents: list[int] = []
    known: set[str] = set()
    line_of_reference: dict[str, int] = {}
    for number, line in _one_thunk_per_line(source):
        match = _THUNK.fullmatch(line)
        if match is None:
            if not line.strip() or _LABEL.fullmatch(line):
                continue
            source.fail_at(number, "a thunk line `NNN: kKind [source | sink] …`")
        indent = len(match["indent"])
        while indents and indents[-1] >= indent:
            indents.pop()
        thunks.append(Thunk(match["kind"], len(indents), (match["detail"] or "").rstrip()))
        indents.append(indent)
        if match["id"] is not None:
            known.add(match["id"])
        for reference in _REFERENCE.findall(match["order"] or ""):
            line_of_reference.setdefault(reference, number)
    for reference, number in line_of_reference.items():
        if reference not in known:
            source.fail(number, f"a thunk {reference}, which this line names", "none", COPY_AGAIN)
    _check_complete(
        source, thunks, sorted(int64(known_id, source, 1, "an id") for known_id in known)
    )
    if source.text and not source.text.endswith("\n"):
        source.fail(len(source.lines), "a line end after the last thunk", "none", COPY_AGAIN)
    if not thunks and not source.text.strip():
        source.fail(1, "a thunk sequence", shown(source.text), DUMP_AGAIN)
    return tuple(thunks)


def _one_thunk_per_line(source: SourceText) -> Iterator[tuple[int, str]]:
    """Lines with their numbers.

    The first child of a kSequential is on the line of its parent, and the label after a branch
    without thunks is on the line that states that there are none.
    """
    for number, printed in enumerate(source.lines, start=1):
        empty = _EMPTY.match(printed)
        line = printed[empty.end() :] if empty is not None else printed
        match = _THUNK.fullmatch(line)
        detail = match["detail"] if match is not None else None
        if match is not None and detail and _NUMBERED.match(detail):
            yield number, line[: match.start("detail")]
            # Its siblings are indented by two more than the parent.
            yield number, f"{match['indent']}  {detail}"
        else:
            yield number, line


def _check_complete(source: SourceText, thunks: list[Thunk], ids: list[int]) -> None:
    """Raise a DumpError if the other lines show that some are missing.

    XLA numbers thunks from 1; every command buffer has number 0.
    """
    end = len(source.lines)
    missing = next(
        (number for number, id_ in enumerate(filter(None, ids), start=1) if number != id_), None
    )
    if missing is not None:
        source.fail(end, f"a thunk {missing:03}, since numbers are consecutive", "none", COPY_AGAIN)
    if thunks and thunks[-1].kind in _HOLDERS:
        source.fail(end, f"the thunks nested in {thunks[-1].kind}", "no more", COPY_AGAIN)
    pending: set[str] = set()
    for thunk in thunks:
        if match := _ASYNC_ID.search(thunk.detail):
            if thunk.kind == "kAsyncStart":
                pending.add(match[1])
            elif thunk.kind == "kAsyncDone":
                pending.discard(match[1])
    if pending:
        source.fail(end, f"kAsyncDone with async_id={min(pending)}", "no more", COPY_AGAIN)
