"""What two dumps of one workload differ in, in sentences, before any text is compared."""

from collections.abc import Iterator

from xlapipe.diff import compare_opened
from xlapipe.dumps.dump import Dump
from xlapipe.dumps.opened import Opened
from xlapipe.plan.donation import donations


def changes(golden: Dump, found: Dump) -> Iterator[str]:
    """What became of donations, then what `xlapipe diff` says, largest first.

    Raises:
      DumpError: a text of a dump is damaged.
    """
    rows = {row.path: row for row in donations(found.program)}
    for row in donations(golden.program):
        now = rows.get(row.path)
        if now is None:
            yield f"{row.path} is no longer donated"
        elif (now.outcome, now.output) != (row.outcome, row.output):
            yield f"{row.path} was {row.outcome}, is {now.outcome}: {now.reason or now.output}"
    difference = compare_opened(Opened.of_dump(golden), Opened.of_dump(found))
    yield from difference.context_lines()
    for sentence in difference.sentences():
        cost = f"{sentence.delta_bytes:+,} B: " if sentence.delta_bytes else ""
        yield f"{cost}{sentence.text}"
