"""Prints predicted beside published steps, the farthest off first.

python -m tests.published                   from the recorded predictions
python -m tests.published --compile [TEXT]  compiles again the runs whose name contains TEXT, and
                                            records what is predicted
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tests.published.runs import (
    PREDICTED,
    Compared,
    compared,
    compile_and_predict,
    median_error,
    runs,
)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--compile"]:
        for run in runs():
            if (arguments[1:] or [""])[0] in run.name:
                print(run.name, flush=True)
                record(run.name, asdict(compile_and_predict(run)))
    print(table(compared()))


def record(name: str, predicted: dict[str, object]) -> None:
    known = json.loads(PREDICTED.read_text(encoding="utf-8")) if PREDICTED.exists() else {}
    known = {
        run.name: {**known, name: predicted}[run.name]
        for run in runs()
        if run.name in {*known, name}
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in known.items())
    PREDICTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def table(items: Sequence[Compared]) -> str:
    """As Markdown."""
    lines = [
        "| run | date | published s | predicted s | interval | error | |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for item in sorted(items, key=lambda item: -abs(item.error)):
        run, predicted = item.run, item.predicted
        marks = ["held out"] * run.held_out + ["outside"] * (not item.within)
        lines.append(
            f"| {run.name} | {run.date[:7]} | {run.seconds:.4g} | {predicted.seconds:.4g} | "
            f"{predicted.low:.3g}–{predicted.high:.3g} | {item.error:+.1%} | {', '.join(marks)} |"
        )
    groups = {
        "one host": [item for item in items if item.run.hosts == 1],
        "several hosts": [item for item in items if item.run.hosts > 1],
        "held out": [item for item in items if item.run.held_out],
        "not held out": [item for item in items if not item.run.held_out],
    }
    lines.append("")
    for name, group in groups.items():
        if group:
            inside = sum(item.within for item in group)
            lines.append(
                f"{name}: {len(group)} runs, median error {median_error(group):.1%}, "
                f"{inside} within the interval"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
