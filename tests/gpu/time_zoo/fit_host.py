"""Fits what the host takes between kernels and in a call to the records of the zoos.

    python tests/gpu/time_zoo/fit_host.py [ZOO...]     # of all zoos: an hour of CPU

Kernels take what was measured, so that only the rest is compared. Each zoo has the same weight, as
each ran on another host, and no program counts with more than 50 %. Constants of calibrations are
multiplied one after another while spans, or then calls, come closer; prints them, and the errors.
With `contention` as the only argument, by what kernels beside collectives are slowed down: what
suits the steps on two H200s, and on two H100s, is judged by the spans of the other.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from compare import RECORDS, TARGETS, ZOOS

from xlapipe.devices.targets.device import device_of_target
from xlapipe.run.calibration.record import ProgramProfile, read_record
from xlapipe.time.cost import step_cost
from xlapipe.time.predict.calibration import Constants, shipped_calibration
from xlapipe.time.predict.kernel_time import KernelTime
from xlapipe.time.predict.launches import KernelLaunch, Step, launches_of, parts_of_a_call
from xlapipe.time.predict.predict import _Predictor, predict

SPANS = (
    *("kernel_interval_seconds", "loop_interval_seconds", "graph_interval_seconds"),
    *("sync_seconds", "gap_seconds", "graph_gap_seconds"),
)
HOST = ("call_seconds", "leaf_seconds", "wake_seconds")
SHARES = tuple(f"unprofiled {name}" for name in SPANS)
_FACTORS = (0.7, 0.9, 0.97, 1.03, 1.1, 1.4)
_HOSTS = tuple(1.05**power for power in range(-15, 23))
_MOST = 0.5
_OF_THE_HOST = (*HOST, *(name for name in SPANS if "gap" not in name))
Constant = dict[str, float]


@dataclass(frozen=True, eq=False)
class Timed:
    """A recorded program that is predicted with its measured kernels."""

    zoo: str
    predictor: _Predictor
    steps: Sequence[Step]
    profile: ProgramProfile
    constants: Constants

    def span(self, constants: Mapping[str, float]) -> float:
        """Seconds from the first kernel to the last with some constants."""
        return self.predictor._span(self.steps, replace(self.constants, **constants))

    def call(self, constants: Mapping[str, float], host: float = 1.0) -> float:
        """Seconds of a call without the profiler, on a host that takes `host` times as long."""
        between = {name: constants[name] * host for name in _OF_THE_HOST}
        scaled = {**constants, **between}
        span = self.span({name: scaled[name] * constants[f"unprofiled {name}"] for name in SPANS})
        parts = parts_of_a_call(self.profile.plan, span, self.constants.fitted.asleep_seconds)
        return span + math.sumprod(parts, (scaled[name] for name in HOST))


def timed(zoo: str, profile: ProgramProfile, target: str) -> Timed:
    """A program whose kernels take what was measured."""
    device, calibration = device_of_target(target), shipped_calibration(target)
    assert calibration is not None
    cost = step_cost(profile.plan, device)
    assert cost is not None
    predictor = _Predictor(profile.plan, cost, calibration, None, {}, None)
    steps = launches_of(profile.plan, cost, int(calibration.constants.l2_bytes))
    ratios = {}
    measured = {kernel.name: kernel.seconds for kernel in profile.times.measured}
    for kernel in predictor.run().kernels:
        ratios[kernel.name] = measured.get(kernel.name, kernel.seconds) / kernel.seconds
    as_predicted = predictor._time

    def as_measured(launch: KernelLaunch) -> KernelTime:
        time = as_predicted(launch)
        return replace(time, seconds=time.seconds * ratios[launch.kernel.name])

    predictor._time = as_measured  # type: ignore[method-assign]
    return Timed(zoo, predictor, steps, profile, calibration.constants)


def error(items: Sequence[Timed], off: Callable[[Timed], float]) -> float:
    """Mean over zoos of the mean relative error."""
    zoos: dict[str, list[float]] = {}
    for item in items:
        zoos.setdefault(item.zoo, []).append(min(_MOST, abs(off(item))))
    return fmean(map(fmean, zoos.values()))


def off_span(constants: Mapping[str, float], item: Timed) -> float:
    """Relative error of the span."""
    span = item.span({name: constants[name] for name in SPANS})
    return span / item.profile.times.span_seconds - 1


def off_call(constants: Mapping[str, float], host: float, item: Timed) -> float:
    """Relative error of a call."""
    return item.call(constants, host) / item.profile.times.wall_seconds - 1


def fitted(start: Constant, names: Sequence[str], loss: Callable[[Constant], float]) -> Constant:
    """Constants of which no multiple of one makes the loss smaller."""
    best, least, before = start, loss(start), math.inf
    while least < before - 1e-5:
        before = least
        for name in names:
            for factor in _FACTORS:
                other = {**best, name: best[name] * factor}
                if (now := loss(other)) < least:
                    best, least = other, now
    return best


def programs(zoo: str) -> list[Timed]:
    """The programs of a zoo."""
    about, profiles = read_record(RECORDS / f"{zoo}.tar.xz")
    return [timed(zoo, profile, TARGETS[about.device]) for profile in profiles]


def contention() -> None:
    """Print what suits the steps of one kind of GPU, and the error of the other kind's spans."""
    one, other = (compared_at(zoo) for zoo in ("two", "two_h100"))
    for errors, held_out in ((one, other), (other, one)):
        best = min(errors, key=lambda share: errors[share])
        print(f"contention {best:.2f}: spans {errors[best]:.1%}, held out {held_out[best]:.1%}")


def compared_at(zoo: str) -> dict[float, float]:
    """Mean error of the spans of a zoo by the contention, with predicted kernels."""
    about, profiles = read_record(RECORDS / f"{zoo}.tar.xz")
    device = device_of_target(TARGETS[about.device])
    calibration = shipped_calibration(TARGETS[about.device])
    assert calibration is not None
    constants, errors = calibration.constants, {share / 20: 0.0 for share in range(21)}
    programs = [
        (item.plan, step_cost(item.plan, device), item.times.span_seconds) for item in profiles
    ]
    for share in errors:
        fitted_to = replace(constants.fitted, contention=share)
        slowed = replace(calibration, constants=replace(constants, fitted=fitted_to))
        errors[share] = fmean(
            abs((predict(plan, cost, slowed).seconds or 0.0) / span - 1)
            for plan, cost, span in programs
            if cost is not None
        )
    return errors


def main(*zoos: str) -> None:
    if zoos == ("contention",):
        contention()
        return
    items = [item for zoo in zoos or (*ZOOS, "blind") for item in programs(zoo)]
    constants = {name: getattr(items[0].constants, name) for name in (*SPANS, *HOST)}
    constants |= {f"unprofiled {n}": v for n, v in items[0].constants.fitted.unprofiled.items()}
    print(f"spans {error(items, partial(off_span, constants)):.2%}", flush=True)
    constants = fitted(constants, SPANS, lambda now: error(items, partial(off_span, now)))
    print(f"spans {error(items, partial(off_span, constants)):.2%}", flush=True)
    of_calls = (*HOST, *SHARES)
    constants = fitted(constants, of_calls, lambda now: error(items, partial(off_call, now, 1.0)))
    for name, value in constants.items():
        print(f"{name}: {value:.3g}")
    for zoo in dict.fromkeys(item.zoo for item in items):
        own = [item for item in items if item.zoo == zoo]
        errors = {host: error(own, partial(off_call, constants, host)) for host in _HOSTS}
        host = min(errors, key=lambda host: errors[host])
        print(f"{zoo}: calls {errors[1.0]:.1%}; host × {host:.2f}: {errors[host]:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
