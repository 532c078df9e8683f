"""Makes a calibration from the profiles of its programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from xlapipe.devices.targets.device import Device
from xlapipe.plans.plan import Plan
from xlapipe.run.calibration.profiles import ProgramProfile
from xlapipe.time.cost.schedule import schedule_of
from xlapipe.time.cost.step_cost import step_cost
from xlapipe.time.cost.thunks import graphs_of, thunks_of
from xlapipe.time.predict.calibration import (
    Calibration,
    CalibrationError,
    Constants,
    TimedKind,
    fitted_to,
)
from xlapipe.time.predict.gpu import gpu_of
from xlapipe.time.predict.kernel_time import formula_seconds
from xlapipe.time.predict.kernel_work import work_of
from xlapipe.time.predict.launches import (
    KernelLaunch,
    LoopLaunches,
    Step,
    launches_of,
    parts_of_a_call,
)
from xlapipe.time.predict.pallas_work import UNCOUNTED
from xlapipe.time.predict.work import KernelWork

# Share of L2 in which kernels find data again: L2 is set-associative and has two halves.
_L2_SHARE = 0.6
# The latency of device memory, for a kernel that starts with an empty cache.
_COLD_SECONDS = 0.45e-6
_NEEDED = (
    "launches/chain_256_no_graph",
    "launches/loop_100_of_3",
    "launches/loop_100_of_10",
    "launches/until_100_of_1",
)
# A program waits for the host if it takes longer than its kernels by this factor and seconds more.
_WAITING, _SHORT_WAIT = 1.3, 20e-6
_WEIGHTED_AGAIN = 30
# Operations on arrays of a Pallas kernel that mostly reads and writes.
_SHORT_SEQUENCE = 32


@dataclass(frozen=True, slots=True)
class Sample:
    """A kernel of a program, with its measured time and its work by today's formulas.

    `seconds` are of one of `launches`, and `cached_bytes` those of its reads that they find in the
    L2 cache on average.
    """

    program: str
    work: KernelWork
    cached_bytes: float
    in_graph: bool
    seconds: float
    launches: float


def calibration_of(
    profiles: Sequence[ProgramProfile], device: Device, provenance: Mapping[str, Any]
) -> Calibration:
    """The calibration that follows from the profiles of `probes`."""
    samples = [sample for profile in profiles for sample in _samples(profile, device)]
    constants = _constants({profile.name: profile for profile in profiles}, samples, device)
    return Calibration(provenance, constants, _timed(samples, constants))


def _timed(samples: Sequence[Sample], constants: Constants) -> dict[str, str]:
    """The lines of timed kernels: of those at one point, the geometric mean of their times."""
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        if sample.seconds > 0:
            point = tuple(round(number, 1) for number in sample.work.point)
            groups.setdefault((sample.work.kind, point, sample.in_graph), []).append(sample)
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for (kind, _, in_graph), group in groups.items():
        seconds = [sample.seconds for sample in group]
        ratios = [
            sample.seconds / formula_seconds(sample.work, sample.cached_bytes, constants)
            for sample in group
        ]
        row = (
            [round(number, 2) for number in group[0].work.point],
            in_graph,
            round(1e6 * geometric_mean(seconds), 2),
            round(geometric_mean(ratios), 3),
            round(group[0].launches, 2),
            group[0].program,
        )
        rows.setdefault(kind, []).append(row)
    return {kind: TimedKind(kind, *zip(*own, strict=True)).to_text() for kind, own in rows.items()}


def _samples(profile: ProgramProfile, device: Device) -> Iterator[Sample]:
    """Each kernel of a program, with the mean of what its launches find in the cache.

    Pallas kernels that mostly read and write are also as if their code was not counted: dumps of
    others lack it.
    """
    yield from _samples_of(profile, profile.plan, device)
    codes = profile.plan.kernel_codes
    if codes and all(code.sequence <= _SHORT_SEQUENCE and not code.flops for code in codes):
        samples = _samples_of(profile, replace(profile.plan, kernel_codes=()), device)
        yield from (sample for sample in samples if sample.work.kind == UNCOUNTED)


def _samples_of(profile: ProgramProfile, plan: Plan, device: Device) -> Iterator[Sample]:
    cost = step_cost(plan, device)
    if cost is None or plan.module is None:
        return
    seconds_of = {kernel.name: kernel for kernel in profile.times.measured}
    launches: dict[str, list[float]] = {}
    for launch, times in _flat(launches_of(plan, cost, int(_L2_SHARE * device.l2_bytes)), 1):
        count = launches.setdefault(launch.kernel.name, [0.0, 0.0])
        count[0] += times
        count[1] += times * launch.cached_bytes
    unknown = any(getattr(node, "trips", 0) is None for node in schedule_of(plan.module))
    for name, (runs_seen, cached) in launches.items():
        measured = seconds_of.get(name)
        if measured is None or not measured.launches:
            continue
        kernel = cost.kernel_of[name]
        runs = measured.launches if unknown else runs_seen
        yield Sample(
            profile.name,
            work_of(kernel, plan.module, gpu=gpu_of(device)),
            cached / runs_seen,
            kernel.graph is not None,
            measured.seconds / runs,
            max(1.0, measured.launches / runs),
        )


def _flat(steps: Sequence[Step], times: int) -> Iterator[tuple[KernelLaunch, int]]:
    for step in steps:
        if isinstance(step, KernelLaunch):
            yield step, times
        elif isinstance(step, LoopLaunches):
            trips = 1 if step.trips is None else step.trips
            yield from _flat(step.first, times)
            if trips > 1:
                yield from _flat(step.other, times * (trips - 1))
        elif step.branches:
            yield from _flat(step.branches[0], times)


def _constants(
    profiles: Mapping[str, ProgramProfile], samples: Sequence[Sample], device: Device
) -> Constants:
    """Each constant from the programs that isolate it."""

    def one(name: str) -> Sample:
        for sample in samples:
            if sample.program == name:
                return sample
        raise CalibrationError(f"{name}, from which a constant follows, was not timed")

    missing = [name for name in _NEEDED if name not in profiles]
    if missing:
        raise CalibrationError(
            f"not timed, and needed for the constants: {', '.join(missing)}; fix: run it on a GPU "
            "that nothing else uses"
        )

    launch = one("launches/add_256").seconds
    largest = one("launches/add_134217728")
    hot, hotter = one("launches/add_4194304"), one("launches/add_1048576")
    l2_bandwidth = (hot.work.touched_bytes - hotter.work.touched_bytes) / max(
        hot.seconds - hotter.seconds, 1e-9
    )
    arithmetic = one("launches/arithmetic")
    threads = one("launches/iota")
    chain, loop = (
        profiles["launches/chain_256_no_graph"].times,
        profiles["launches/loop_100_of_10"].times,
    )
    host_loop = profiles["launches/loop_100_of_3"].times
    until = profiles["launches/until_100_of_1"].times
    return Constants(
        launch_seconds=launch * 0.9,
        cold_seconds=_COLD_SECONDS,
        bandwidth=largest.work.touched_bytes / (largest.seconds - launch),
        l2_bandwidth=max(l2_bandwidth, device.bandwidth),
        l2_bytes=_L2_SHARE * device.l2_bytes,
        operation_rate=arithmetic.work.operations / arithmetic.seconds,
        thread_rate=threads.work.threads / threads.seconds,
        peak_flops={name: rate for name, rate in device.peak_flops.items() if rate},
        link_bandwidth=device.link_bandwidth or 1.0,
        kernel_interval_seconds=chain.span_seconds / 256,
        loop_interval_seconds=host_loop.span_seconds / 402,
        graph_interval_seconds=loop.span_seconds / 100,
        sync_seconds=until.span_seconds / 100 - 3 * host_loop.span_seconds / 402,
        **_gaps(profiles),
        **_call(profiles, fitted_to("h200").asleep_seconds),
        fitted=fitted_to("h200"),
    )


def _gaps(profiles: Mapping[str, ProgramProfile]) -> dict[str, float]:
    """Between kernels that are long enough for the host to be ahead of the device."""
    outside, inside = [], []
    for profile in profiles.values():
        measured, plan, kernels = profile.times, profile.plan, profile.times.measured
        count = sum(kernel.launches for kernel in kernels)
        if plan.module is None or count < 2:
            continue
        gap = (measured.span_seconds - measured.kernel_seconds) / (count - 1)
        nodes = schedule_of(plan.module)
        graphs = graphs_of(plan, nodes, thunks_of(plan, nodes))
        if len(graphs) == len(kernels):
            inside.append(gap)
        elif not graphs and all(k.seconds / max(k.launches, 1) > 12e-6 for k in kernels):
            outside.append(gap)
    return {
        "gap_seconds": max(1e-8, min([gap for gap in outside if gap > 0.5e-6] or [0.9e-6])),
        "graph_gap_seconds": max(1e-8, median(inside or [0.2e-6])),
    }


def _call(profiles: Mapping[str, ProgramProfile], asleep_seconds: float) -> dict[str, float]:
    """The host's part of a call, of programs that do not wait for the host between kernels.

    The sum of absolute errors is least, by least squares that are reweighted repeatedly
    (Schlossmacher, An iterative technique for absolute deviations curve fitting, 1973).
    """
    rows, rest = [], []
    for profile in profiles.values():
        measured, module = profile.times, profile.plan.module
        waits = measured.span_seconds > _WAITING * measured.kernel_seconds + _SHORT_WAIT
        if module is None or waits:
            continue
        rows.append(parts_of_a_call(profile.plan, measured.span_seconds, asleep_seconds))
        rest.append(measured.wall_seconds - measured.span_seconds)
    counts, seconds = np.array(rows), np.array(rest)
    weights = np.ones(len(seconds))
    parts = np.zeros(3)
    for _ in range(_WEIGHTED_AGAIN):
        parts = np.linalg.lstsq(counts * weights[:, None], seconds * weights)[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(seconds - counts @ parts), 1e-6))
    call, leaf, wake = (max(1e-7, float(part)) for part in parts)
    return {"call_seconds": call, "leaf_seconds": leaf, "wake_seconds": wake}
