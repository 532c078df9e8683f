"""The predicted timeline of a step as a Chrome trace, which Perfetto and chrome://tracing open."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xlapipe.dump.opened import Opened
from xlapipe.errors import XlapipeError
from xlapipe.report.timeline import STREAMS, TimelineRow, gaps, lines_of_source, timeline_rows


def trace_of(opened: Opened) -> bytes:
    """The content of a trace file: one slice per kernel, in microseconds.

    Raises:
      XlapipeError: the dump has no predicted time.
    """
    if opened.prediction is None:
        raise XlapipeError(
            "--trace: the dump has no predicted time, because it names no GPU whose speeds are "
            "known, or has no complete HLO module; fix: add --target NAME"
        )
    rows = timeline_rows(opened)
    events = [*_names(opened), *map(_slice, [*rows, *gaps(rows), *lines_of_source(rows)])]
    text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":"))
    return text.encode()


def _names(opened: Opened) -> Iterator[Mapping[str, Any]]:
    whole = opened.prediction is not None and opened.prediction.seconds is not None
    about: Sequence[tuple[str, int, str]] = (
        ("process_name", 0, f"{opened.title} ({'predicted' if whole else 'a part, at least'})"),
        *(("thread_name", number, name) for number, name in enumerate(STREAMS)),
    )
    for name, thread, text in about:
        yield {"ph": "M", "pid": 0, "tid": thread, "name": name, "args": {"name": text}}


def _slice(row: TimelineRow) -> Mapping[str, Any]:
    return {
        "ph": "X",
        "pid": 0,
        "tid": STREAMS.index(row.stream),
        "ts": round(row.start_seconds * 1e6, 3),
        "dur": round(row.seconds * 1e6, 3),
        "name": row.name,
        "cat": row.kind or row.stream,
        "args": {
            key: value
            for key, value in (
                ("source", row.source),
                ("operation", row.op_name),
                ("basis", row.basis),
                ("launches in the step", row.launches or None),
            )
            if value is not None
        },
    }
