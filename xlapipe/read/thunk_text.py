"""The thunk sequence: `*thunk_sequence_after_thunk_passes.txt` or `*thunk_sequence.txt`.

    004: kWhile   [prev=003 (1) | next=015 (1)]
    condition:
        005: kCustomKernel [source | sink] compare grid: [1, 1, 1] threads: [1, 1, 1]

A thunk is nested in the thunk before it that is indented less. Labels (`condition:`, `body:`,
`branch_0:`) are indented irregularly and say nothing that a Thunk holds.
"""

import re

from xlapipe.plan import Thunk
from xlapipe.platforms import PLATFORMS
from xlapipe.read.source_text import CUT, SourceText, int64, shown

_THUNK = re.compile(
    r"(?P<indent> *)(?:(?P<id>\d+): )?(?P<kind>k[A-Z][A-Za-z0-9]*)"
    r"(?:[ \t]+\[(?P<order>(?:source|prev=\d+ \(\d+\)) *\| *(?:sink|next=\d+ \(\d+\)) *)\])?"
    r"(?:[ \t]+(?P<detail>\S.*)|[ \t]*)"
)
_LABEL = re.compile(r" *[a-z_]+(?:_\d+)?:")
# Thunks of these kinds are followed by the thunks nested in them, so none of them can be the last.
_HOLDERS = frozenset().union(*(platform.thunk_holders for platform in PLATFORMS))
_ASYNC_ID = re.compile(r"\basync_id=(\d+)")
_REFERENCE = re.compile(r"(?:prev|next)=(\d+)")


def parse_thunks(source: SourceText) -> tuple[Thunk, ...]:
    """Every thunk in the order of the file, nested ones included.

    Raises:
      DumpError: for a line of another form, or a thunk that another names and that is missing.
    """
    thunks: list[Thunk] = []
    indents: list[int] = []
    known: set[str] = set()
    named: dict[str, int] = {}
    for number, line in enumerate(source.lines, start=1):
        match = _THUNK.fullmatch(line)
        if match is None:
            if not line.strip() or _LABEL.fullmatch(line) or line.strip() == "No thunks.":
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
            named.setdefault(reference, number)
    for reference, number in named.items():
        if reference not in known:
            source.fail(number, f"a thunk {reference}, which this line names", "none", CUT)
    _check_whole(source, thunks, sorted(int64(known_id, source, 1, "an id") for known_id in known))
    if source.text and not source.text.endswith("\n"):
        source.fail(len(source.lines), "a line end behind the last thunk", "none", CUT)
    if not thunks and not source.text.strip():
        source.fail(1, "a thunk sequence", shown(source.text), "dump the module again")
    return tuple(thunks)


def _check_whole(source: SourceText, thunks: list[Thunk], ids: list[int]) -> None:
    """Notices lines that are missing, as far as the others tell.

    XLA numbers thunks from 1; 0 is every command buffer.
    """
    end = len(source.lines)
    missing = next((at for at, found in enumerate(filter(None, ids), start=1) if at != found), None)
    if missing is not None:
        source.fail(end, f"a thunk {missing:03}, as they are numbered", "none", CUT)
    if thunks and thunks[-1].kind in _HOLDERS:
        source.fail(end, f"the thunks that {thunks[-1].kind} holds", "the end", CUT)
    pending: set[str] = set()
    for thunk in thunks:
        if match := _ASYNC_ID.search(thunk.detail):
            if thunk.kind == "kAsyncStart":
                pending.add(match[1])
            elif thunk.kind == "kAsyncDone":
                pending.discard(match[1])
    if pending:
        source.fail(end, f"kAsyncDone of async_id={min(pending)}", "the end", CUT)
