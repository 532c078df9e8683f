"""How far each fitted constant of a calibration is from what fits a record best.

    python tests/gpu/calibration/fit_constants.py RECORD.tar.xz CALIBRATION [NAME]

Multiplies one constant after another, all others unchanged, and prints for each: its value in
CALIBRATION (a target of the package, such as h200), the factor that fits best, and the deviation
of the logarithm of measured over formula within kinds, as it is and with that factor. Lengths of
similarity are judged by kernels that are predicted from those of other programs of CALIBRATION.
A constant that no kernel of the record depends on has no row.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

from xlapipe.devices.targets.device import Device
from xlapipe.run.calibration.fit import Sample, device_of_record, samples_of
from xlapipe.run.calibration.record import ProgramProfile, read_record
from xlapipe.time.predict import gpu, kernel_work
from xlapipe.time.predict.calibration import Calibration, Constants, TimedKind, shipped_calibration
from xlapipe.time.predict.interpolation import interpolated
from xlapipe.time.predict.kernel_time import formula_seconds

FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0)
_FOLDS, _OF_A_KIND = 5, 60
# Constants that no formula of a kernel has alone.
_APART = ("scales", "similar", "features")
# Kinds of kernels by the constants of their features.
_KINDS = {
    "convolutions": "__cudnn[$]conv",
    "scatters": ".*scatter",
    "libraries": "cu[s_]|__cublas[$]tri|__gpu[$]TopK|xla.gpu|.*sort",
    "programs": "pallas",
}


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


def scaled(value: Any, path: str = "") -> Iterator[tuple[str, float, Callable[[float], Any]]]:
    """Name and value of each constant in a record, and the record with a multiple of it."""
    if isinstance(value, float | int):
        yield path, value, lambda by: value * by
        return
    parts: Mapping[Any, Any] = {}
    if is_dataclass(value):
        parts = {item.name: getattr(value, item.name) for item in fields(value)}
    elif isinstance(value, Mapping):
        parts = value
    elif isinstance(value, tuple):
        parts = dict(enumerate(value))
    for key, part in parts.items():
        if key in _APART:
            continue
        name = f"{path}.{key}".lstrip(".") if is_dataclass(value) else f"{path}[{key}]"
        for place, own, with_factor in scaled(part, name):
            yield place, own, lambda by, key=key, make=with_factor: _with(value, key, make(by))


def _with(value: Any, key: Any, part: Any) -> Any:
    if isinstance(value, Mapping):
        return {**value, key: part}
    if isinstance(value, tuple):
        return (*value[:key], part, *value[key + 1 :])
    return replace(value, **{key: part})


def formula_rows(samples: Sequence[Sample], constants: Constants) -> Iterator[str]:
    for name, value, with_factor in scaled(constants.fitted):
        found = {
            by: deviation(samples, replace(constants, fitted=with_factor(by))) for by in FACTORS
        }
        if len(set(found.values())) > 1:
            best = min(found, key=lambda by: found[by])
            yield f"| {name} | {value:.3g} | {best} | {found[1.0]:.4f} | {found[best]:.4f} |"


def feature_rows(
    profiles: Sequence[ProgramProfile], device: Device, constants: Constants, pattern: str = ""
) -> Iterator[str]:
    """Rows of the constants of features, by the programs that have kernels of their kinds."""
    of_program = {profile.name: samples_of([profile], device) for profile in profiles}
    features = constants.fitted.features
    for group, kinds in _KINDS.items():
        has = re.compile(kinds).match
        own = [p for p in profiles if any(has(s.work.kind) for s in of_program[p.name])]
        for name, value, with_factor in scaled(getattr(features, group), group):
            if pattern not in name or not own:
                continue
            found = {}
            for by in FACTORS:
                changed = replace(features, **{group: with_factor(by)})
                fitted = replace(constants.fitted, features=changed)
                kernel_work.forget()
                with patch.object(gpu, "fitted_to", lambda _, fitted=fitted: fitted):
                    samples = [s for s in samples_of(own, device) if s.seconds > 0]
                    found[by] = deviation([s for s in samples if has(s.work.kind)], constants)
            kernel_work.forget()
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
    programs = list(profiles)
    samples = [sample for sample in samples_of(programs, device) if sample.seconds > 0]
    print("| constant | value | best factor | deviation | with it |", flush=True)
    print("|---|--:|--:|--:|--:|")
    for row in formula_rows(samples, calibration.constants):
        if pattern in row:
            print(row, flush=True)
    for row in feature_rows(programs, device, calibration.constants, pattern):
        print(row, flush=True)
    for row in similarity_rows(calibration, pattern):
        print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
