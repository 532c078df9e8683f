"""How a plan differs from its golden, in sentences."""

from collections.abc import Iterator

from xlapipe.diff import compare_opened
from xlapipe.dump.dump import Dump
from xlapipe.dump.opened import Opened
from xlapipe.plans.donation import donations


def golden_changes(golden: Dump, dump: Dump) -> Iterator[str]:
    """Changes of donations, then the sentences of `xlapipe diff`, largest first.

    Raises:
      DumpError: a text in a dump is damaged.
    """
    donated = {donation.path: donation for donation in donations(dump.program)}
    for before in donations(golden.program):
        now = donated.get(before.path)
        if now is None:
            yield f"{before.path} is no longer donated"
        elif (now.outcome, now.output) != (before.outcome, before.output):
            yield (
                f"{before.path} was {before.outcome}, is {now.outcome}: {now.reason or now.output}"
            )
    difference = compare_opened(Opened.of_dump(golden), Opened.of_dump(dump))
    yield from difference.context_lines()
    for sentence in difference.sentences():
        cost = f"{sentence.delta_bytes:+,} B: " if sentence.delta_bytes else ""
        yield f"{cost}{sentence.text}"
