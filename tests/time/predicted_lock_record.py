"""Errors of predicted tuning, from the record `tests/gpu/predicted_locks.json`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.conftest import ROOT

RECORD = ROOT / "tests/gpu/predicted_locks.json"
HALVES = ROOT / "tests/gpu/time_zoo/halves.json"


def record() -> dict[str, Any]:
    rows: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return rows


def error_bytes(row: Mapping[str, Any], kind: str) -> int:
    """Bytes of the total beyond the device's; `kind` is `predicted` or `untuned`."""
    return int(row[kind]["total_bytes"] - row["device"]["total_bytes"])


def error(row: Mapping[str, Any], kind: str) -> float:
    return error_bytes(row, kind) / float(row["device"]["total_bytes"])


def time_errors(rows: Mapping[str, Any], kind: str) -> list[float]:
    """Relative errors of the predicted step time, against that of the device's own plan."""
    return [
        abs(row[kind]["predicted_seconds"] / row["device"]["predicted_seconds"] - 1)
        for row in rows.values()
        if row["device"]["predicted_seconds"]
    ]


def right_share(rows: Mapping[str, Any]) -> float:
    """The share of the measured time in products whose backend is the device's."""
    seconds = [row["products"]["seconds"] for row in rows.values()]
    return float(sum(it["right"] for it in seconds) / sum(it["all"] for it in seconds))


def parts(rows: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of programs by what they were used for."""
    halves = json.loads(HALVES.read_text(encoding="utf-8"))
    part_of = {f"zoo/{name}": part for part, names in halves.items() for name in names}
    grouped: dict[str, list[str]] = {
        "goldens": [],
        "development half": [],
        "evaluation half": [],
        "unseen": [],
        "third zoo": [],
    }
    for name in rows:
        records = name.partition("/")[0]
        half = {"unseen": "unseen", "third": "third zoo"}.get(records, "goldens")
        if name in part_of:
            half = f"{part_of[name]} half"
        grouped[half].append(name)
    return grouped


def summary_lines(rows: Mapping[str, Any]) -> Iterator[str]:
    """Errors of totals and times, untuned and with predicted tuning, as Markdown."""
    yield "| programs | untuned | predicted tuning |"
    yield "|---|---:|---:|"
    kinds = ("untuned", "predicted")
    for limit in (0.0005, 0.02, 0.05):
        counts = [sum(abs(error(row, kind)) <= limit for row in rows.values()) for kind in kinds]
        yield f"| of {len(rows)}, total within {limit:.2%} | {counts[0]} | {counts[1]} |"
    worst = [max(abs(error(row, kind)) for row in rows.values()) for kind in kinds]
    mean = [sum(abs(error(row, kind)) for row in rows.values()) / len(rows) for kind in kinds]
    cells = [f"{a:.1%}, {b:.0%}" for a, b in zip(mean, worst, strict=True)]
    yield f"| mean, largest error of the total | {cells[0]} | {cells[1]} |"
    times = [time_errors(rows, kind) for kind in kinds]
    means = [sum(errors) / len(errors) for errors in times]
    yield f"| mean error of the predicted time | {means[0]:.1%} | {means[1]:.1%} |"


def table_lines(rows: Mapping[str, Any]) -> Iterator[str]:
    """By part of the programs, as Markdown."""
    yield "| programs | number | untuned within 2% | predicted within 2% | backend right |"
    yield "|---|---:|---:|---:|---:|"
    kinds = ("untuned", "predicted")
    for part, names in parts(rows).items():
        own = {name: rows[name] for name in names}
        within = [sum(abs(error(row, kind)) <= 0.02 for row in own.values()) for kind in kinds]
        timed = any(row["products"]["seconds"]["all"] for row in own.values())
        right = f"{right_share(own):.0%}" if timed else "not timed"
        yield f"| {part} | {len(own)} | {within[0]} | {within[1]} | {right} |"
