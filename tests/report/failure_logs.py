"""Logs of runs that ran out of memory, from `tests/data/failures/logs.toml`.

`source` is the file of openxla/xla that prints a log, or a public report that shows it.
"""

import tomllib
from dataclasses import dataclass

from tests.folders import DATA


@dataclass(frozen=True, kw_only=True)
class FailureLog:
    """A log, and the figures that `xlapipe explain --json` must print for it."""

    name: str
    source: str
    text: str
    kind: str
    requested_bytes: int | None = None
    executable_name: str | None = None
    device: str | None = None
    limit_bytes: int | None = None
    held_bytes: int | None = None


_DATA = tomllib.loads((DATA / "failures/logs.toml").read_text(encoding="utf-8"))

WRITTEN_LOGS = tuple(FailureLog(**log) for log in _DATA["written"])
LOGS = (*WRITTEN_LOGS, *(FailureLog(**log) for log in _DATA["public"]))

# Texts about memory that report no failure of a run.
NO_FAILURES = tuple(log["text"] for log in _DATA["none"])
