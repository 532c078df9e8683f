"""Compares predicted times with the time records of the goldens: a table as Markdown.

python tests/gpu/time_zoo/compare_goldens.py [UNTUNED]

UNTUNED: a folder of dumps without a lock, as WORKLOAD/TARGET, to be compared with the tuned runs.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

from xlapipe.report.subjects import open_subject
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.prediction_settings import PredictionSettings

DUMPS = Path(__file__).resolve().parents[3] / "hlo_dumps"


def recorded(target: str) -> Iterator[tuple[str, XlaSubject]]:
    """The goldens of a GPU with a time record, and their workloads' names."""
    for path in sorted(DUMPS.glob(f"*/{target}-auto-tuned-*/time_record.json")):
        opened = open_subject(path.parent)
        if opened.time_record is not None:
            yield path.parent.parent.name, opened


def errors(predicted: XlaSubject, measured: XlaSubject) -> tuple[float, float]:
    """Relative errors of the sum over the kernels and of the span."""
    record, prediction = measured.time_record, predicted.prediction
    assert record is not None
    assert prediction is not None
    kernels = sum(record.seconds_of.values())
    return (
        prediction.kernel_seconds / kernels - 1,
        prediction.span_seconds / record.span_seconds - 1,
    )


def row(title: str, pairs: list[tuple[str, XlaSubject, XlaSubject]]) -> str:
    """A row of the table, and the error of each program on lines of its own."""
    found = {name: errors(predicted, measured) for name, predicted, measured in pairs}
    for name, (kernels, span) in found.items():
        print(f"{title}: {name} kernels {kernels:+.1%}, span {span:+.1%}", file=sys.stderr)
    means = [mean(abs(error[part]) for error in found.values()) for part in (0, 1)]
    return f"| {len(found)} {title} | {means[0]:.1%} | {means[1]:.1%} |".replace("%", " %")


def main(*arguments: str) -> None:
    h100 = list(recorded("h100_sxm"))
    own = shipped_calibration("h200")
    assert own is not None
    print("| programs | kernels, mean error | span, mean error |")
    print("|---|--:|--:|")
    print(row("goldens on an H100, with its calibration", [(n, o, o) for n, o in h100]))
    scaled = [(n, replace(o, settings=PredictionSettings(calibration=own)), o) for n, o in h100]
    print(row("the same, scaled from the H200 by datasheet", scaled))
    if arguments:
        folders = {path.parent.name: path for path in Path(arguments[0]).glob("*/*")}
        untuned = [(n, open_subject(folders[n]), o) for n, o in h100 if n in folders]
        print(row("of them untuned, compared with the tuned runs", untuned))


if __name__ == "__main__":
    main(*sys.argv[1:])
