"""How far each fitted constant of a calibration is from what fits a record best.

    python tests/gpu/calibration/fit_constants.py RECORD.tar.xz CALIBRATION [NAME]

Multiplies one constant after another, all others unchanged, and prints for each: its value in
CALIBRATION (a target of the package, such as h200), the factor that fits best, and the deviation
of the logarithm of measured over formula within kinds, as it is and with that factor. Lengths of
similarity are judged by kernels that are predicted from those of other programs of CALIBRATION.
A constant that no kernel of the record depends on has no row.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from xlapipe.run.calibration.fit import Sample, device_of_record, samples_of
from xlapipe.run.calibration.record import read_record
from xlapipe.time.predict.calibration import Calibration, Constants, TimedKind, shipped_calibration
from xlapipe.time.predict.fitted import Fitted
from xlapipe.time.predict.interpolation import interpolated
from xlapipe.time.predict.kernel_time import formula_seconds

FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0)
_FOLDS, _OF_A_KIND = 5, 60


def deviation(samples: Sequence[Sample], constants: Constants) -> float:
    """Mean deviation of the logarithm of measured over formula from its kind's median."""
    logs: dict[str, list[float]] = {}
    for sample in samples:
        seconds = formula_seconds(sample.work, sample.cached_bytes, constants)
        logs.setdefault(sample.work.kind, []).append(math.log(sample.seconds / seconds))
    return fmean(abs(log - median(own)) for own in logs.values() for log in own)


def held_out_error(timed: TimedKind) -> float:
    """Mean error of the logarithm of a kind's kernels, each predicted from other programs."""
    kernels = timed.kernels(range(len(timed.lines)))
    programs = sorted({kernel.program for kernel in kernels})
    fold_of = {program: number % _FOLDS for number, program in enumerate(programs)}
    errors = []
    for fold in range(_FOLDS):
        numbers = [n for n, kernel in enumerate(kernels) if fold_of[kernel.program] == fold]
        others = [n for n, kernel in enumerate(kernels) if fold_of[kernel.program] != fold]
        rest = replace(timed, lines=tuple(timed.lines[n] for n in others))
        for number in numbers[:: max(1, len(numbers) * _FOLDS // _OF_A_KIND)] if others else ():
            kernel = kernels[number]
            logarithm, _, _ = interpolated(kernel.point, kernel.in_graph, rest)
            errors.append(abs(logarithm - math.log(kernel.ratio)))
    return fmean(errors) if errors else math.nan


def scaled(fitted: Fitted) -> Iterator[tuple[str, Any, Callable[[float], Fitted]]]:
    """Name and value of each constant of the formula, and the others with a multiple of it."""
    for item in fields(Fitted):
        value, name = getattr(fitted, item.name), item.name
        if isinstance(value, float | int):
            yield (
                name,
                value,
                lambda by, name=name, value=value: replace(fitted, **{name: value * by}),
            )
        elif isinstance(value, Mapping) and name != "scales":
            for key, own in value.items():
                yield (
                    f"{name}[{key}]",
                    own,
                    lambda by, name=name, key=key, own=own, value=value: replace(
                        fitted, **{name: {**value, key: own * by}}
                    ),
                )


def formula_rows(samples: Sequence[Sample], constants: Constants) -> Iterator[str]:
    for name, value, with_factor in scaled(constants.fitted):
        found = {
            by: deviation(samples, replace(constants, fitted=with_factor(by))) for by in FACTORS
        }
        if len(set(found.values())) > 1:
            best = min(found, key=lambda by: found[by])
            yield f"| {name} | {value:.3g} | {best} | {found[1.0]:.4f} | {found[best]:.4f} |"


def similarity_rows(calibration: Calibration, pattern: str) -> Iterator[str]:
    kinds = sorted({kernel.kind for kernel in calibration.kernels if pattern in kernel.kind})
    for kind in kinds:
        timed = calibration.of_kind(kind)
        for name in ("reach", "noise"):
            value = getattr(timed.similarity, name)
            found = {
                by: held_out_error(
                    replace(timed, similarity=replace(timed.similarity, **{name: value * by}))
                )
                for by in FACTORS
            }
            if not math.isnan(found[1.0]):
                best = min(found, key=lambda by: found[by])
                cells = f"{value:.3g} | {best} | {found[1.0]:.4f} | {found[best]:.4f}"
                yield f"| {name} of {kind} | {cells} |"


def main(record: str, target: str, pattern: str = "") -> None:
    calibration = shipped_calibration(target)
    assert calibration is not None
    about, profiles = read_record(Path(record))
    device = device_of_record(Path(record), about)
    samples = [sample for sample in samples_of(profiles, device) if sample.seconds > 0]
    print("| constant | value | best factor | deviation | with it |", flush=True)
    print("|---|--:|--:|--:|--:|")
    for row in formula_rows(samples, calibration.constants):
        if pattern in row:
            print(row, flush=True)
    for row in similarity_rows(calibration, pattern):
        print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
