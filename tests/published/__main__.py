"""Prints predicted beside published steps, the farthest off first.

python -m tests.published                   from the recorded predictions
python -m tests.published --compile [TEXT]  compiles again the runs whose name contains TEXT, each
                                            program once, and records what is predicted
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import log

from tests.published.runs import (
    PICTURE,
    PREDICTED,
    Compared,
    compared,
    compile_and_predict,
    median_error,
    runs,
)

# Classes of runs, with the colours of their points.
_CLASSES = {"one host": "#1d4ed8", "several hosts": "#c2410c"}


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--compile"]:
        chosen = [run for run in runs() if (arguments[1:] or [""])[0] in run.name]
        for same in {run.plan_key: run for run in chosen}.values():
            names = [run.name for run in runs() if run.plan_key == same.plan_key]
            print(*names, sep=", ", flush=True)
            record(dict.fromkeys(names, asdict(compile_and_predict(same))))
    items = compared()
    PICTURE.write_text(picture(items), encoding="utf-8")
    print(table(items))


def record(predicted: Mapping[str, object]) -> None:
    """Add to the recorded predictions, in the order of the runs."""
    known = json.loads(PREDICTED.read_text(encoding="utf-8")) | predicted
    items = ((run.name, known[run.name]) for run in runs() if run.name in known)
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in items)
    PREDICTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def class_of(item: Compared) -> str:
    return "one host" if item.run.hosts == 1 else "several hosts"


def table(items: Sequence[Compared], least_error: float = 0.0) -> str:
    """As Markdown, of errors from `least_error` on, with counts and medians of groups of runs."""
    lines = [
        "| run | date | published s | predicted s | interval | error | |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for item in (item for item in items if abs(item.error) >= least_error):
        run, (low, high) = item.run, item.interval
        marks = ["held out"] * run.held_out + ["outside"] * (not item.within)
        lines.append(
            f"| {run.name} | {run.date[:7]} | {run.seconds:.4g} | {item.predicted.seconds:.4g} | "
            f"{low:.3g}–{high:.3g} | {item.error:+.1%} | {', '.join(marks)} |"
        )
    groups = {name: [item for item in items if class_of(item) == name] for name in _CLASSES}
    groups["of other fields than language"] = [it for it in items if it.run.field != "language"]
    groups["held out"] = [item for item in items if item.run.held_out]
    groups["not held out"] = [item for item in items if not item.run.held_out]
    lines.append("")
    for name, group in groups.items():
        inside = sum(item.within for item in group)
        lines.append(
            f"{name}: {len(group)} runs, median error {median_error(group):.1%}, "
            f"{inside} within the interval"
        )
    return "\n".join(lines)


def picture(items: Sequence[Compared]) -> str:
    """Each run's published time as a multiple of the predicted, and the interval, as SVG."""
    left, width, row, low, high = 260, 440, 13, 0.4, 3.0

    def place(multiple: float) -> float:
        share = (log(max(low, min(high, multiple))) - log(low)) / (log(high) - log(low))
        return left + share * width

    bottom = 40 + row * len(items)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {bottom + 20}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{left + width + 20}" height="{bottom + 20}" fill="white"/>',
        *(
            f'<path d="M{place(at):.1f} 30V{bottom}" stroke="{"#444" if at == 1 else "#ddd"}"/>'
            f'<text x="{place(at):.1f}" y="{bottom + 13}" text-anchor="middle">{at:g}</text>'
            for at in (0.5, 0.75, 1, 1.25, 1.5, 2, 3)
        ),
        f'<text x="{left}" y="16">published / predicted, and the interval: '
        + "".join(f'<tspan fill="{fill}">● {name} </tspan>' for name, fill in _CLASSES.items())
        + "(○ held out)</text>",
    ]
    for number, item in enumerate(items):
        y, colour = 40 + row * number, _CLASSES[class_of(item)]
        ends = [place(end / item.predicted.seconds) for end in item.interval]
        parts.append(
            f'<text x="{left - 8}" y="{y + 3}" text-anchor="end">{item.run.name}</text>'
            f'<path d="M{ends[0]:.1f} {y}H{ends[1]:.1f}" stroke="#999"/>'
            f'<circle cx="{place(1 / (1 + item.error)):.1f}" cy="{y}" r="3.5" stroke="{colour}" '
            f'fill="{"white" if item.run.held_out else colour}"/>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
