"""What runs when in the predicted step, with source lines: for reports and as a trace."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xlapipe.errors import XlapipeError
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.time.predict.prediction import ASYNCHRONOUS, COMPUTE

STREAMS = (COMPUTE, ASYNCHRONOUS, "idle", "source lines")
"""Rows of a timeline, in the order in which they are shown."""
# A shorter gap is the distance of two kernels that wait for nothing.
_LEAST_GAP_SECONDS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """A kernel, the further trips of a loop, a gap, or successive kernels of a source line.

    Attributes:
      stream: `compute`, `asynchronous`, `idle` or `source lines`.
      launches: of the kernel in this place in a step; 0 of others.
    """

    name: str
    stream: str
    start_seconds: float
    seconds: float
    source: str | None = None
    op_name: str | None = None
    kind: str | None = None
    basis: str | None = None
    launches: int = 0

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.seconds


def timeline_rows(opened: XlaSubject) -> tuple[TimelineRow, ...]:
    """The kernels and further trips in the order of launches; empty without a prediction."""
    prediction, cost = opened.prediction, opened.step_cost
    if prediction is None or cost is None:
        return ()
    kernels = {kernel.name: kernel for kernel in cost.kernels}
    rows = []
    for event in prediction.timeline:
        kernel = kernels.get(event.name)
        source = kernel.source if kernel is not None else None
        rows.append(
            TimelineRow(
                name=event.name or f"{event.trips:,} further trips of a loop",
                stream=event.stream,
                start_seconds=event.start_seconds,
                seconds=event.seconds,
                source=str(source) if source is not None else None,
                op_name=kernel.op_name if kernel is not None else None,
                kind=kernel.kind if kernel is not None else None,
                basis=event.time.basis if event.time is not None else None,
                launches=event.launches,
            )
        )
    return tuple(rows)


def timeline_data(opened: XlaSubject) -> dict[str, Any] | None:
    """The rows in columns, for the report's script; times in microseconds. None without any."""
    rows = timeline_rows(opened)
    if not rows:
        return None
    shown = sorted([*rows, *gaps(rows), *lines_of_source(rows)], key=lambda row: row.start_seconds)
    streams = [name for name in STREAMS if any(row.stream == name for row in shown)]
    names: dict[str, int] = {"": 0}
    return {
        "streams": streams,
        "stream": [streams.index(row.stream) for row in shown],
        "start": [round(row.start_seconds * 1e6, 2) for row in shown],
        "us": [round(row.seconds * 1e6, 2) for row in shown],
        "launches": [row.launches for row in shown],
        "name": [names.setdefault(row.name, len(names)) for row in shown],
        "source": [names.setdefault(row.source or "", len(names)) for row in shown],
        "names": list(names),
    }


def gaps(rows: Sequence[TimelineRow]) -> Iterator[TimelineRow]:
    """Times in which no kernel of the compute stream runs: launches by the host, or a wait."""
    end = 0.0
    for row in rows:
        if row.stream != COMPUTE:
            continue
        if row.start_seconds - end > _LEAST_GAP_SECONDS:
            seconds = row.start_seconds - end
            yield TimelineRow(name="idle", stream="idle", start_seconds=end, seconds=seconds)
        end = max(end, row.end_seconds)


def lines_of_source(rows: Sequence[TimelineRow]) -> Iterator[TimelineRow]:
    """Successive kernels of one source line as one row."""
    first = last = None
    for row in (*(row for row in rows if row.stream == COMPUTE), None):
        if first is not None and last is not None and (row is None or row.source != first.source):
            yield TimelineRow(
                name=first.source or ("unknown line" if first.launches else first.name),
                stream="source lines",
                start_seconds=first.start_seconds,
                seconds=last.end_seconds - first.start_seconds,
            )
            first = row
        first, last = first or row, row


def trace_of(opened: XlaSubject) -> bytes:
    """The content of a trace file: one slice per kernel, in microseconds."""
    if opened.prediction is None:
        raise XlapipeError(
            "--trace: the dump has no predicted time, because it names no GPU or TPU whose speeds "
            "are known, or has no complete HLO module; fix: add --target NAME"
        )
    rows = timeline_rows(opened)
    events = [*_names(opened), *map(_slice, [*rows, *gaps(rows), *lines_of_source(rows)])]
    text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":"))
    return text.encode()


def _names(opened: XlaSubject) -> Iterator[Mapping[str, Any]]:
    prediction = opened.prediction
    whole = prediction is not None and prediction.step_seconds is not None
    word = prediction.verb if prediction is not None and whole else "a part, at least"
    about: Sequence[tuple[str, int, str]] = (
        (
            "process_name",
            0,
            f"{opened.program.title} ({word})",
        ),
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
