"""The predicted time of a step: a pure function of a plan and a calibration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xlapipe.plans import Computation, Plan
from xlapipe.plans.wording import counted
from xlapipe.time.collectives.exchange import DATASHEET, TABLE
from xlapipe.time.cost.schedule import most_launches, schedule_of
from xlapipe.time.cost.step_cost import StepCost
from xlapipe.time.predict.calibration import Calibration, Constants
from xlapipe.time.predict.gpu import gpu_of
from xlapipe.time.predict.interval import shipped_errors, spreads_of, traits
from xlapipe.time.predict.kernel_time import (
    ASSUMED,
    KernelTime,
    exchange_time,
    least_time,
    time_of,
)
from xlapipe.time.predict.kernel_work import touches_host, work_of
from xlapipe.time.predict.launches import (
    KernelLaunch,
    LoopLaunches,
    Step,
    launches_of,
    parts_of_a_call,
)
from xlapipe.time.predict.measured_products import measured_products, product_time
from xlapipe.time.predict.prediction import (
    ASYNCHRONOUS,
    COMPUTE,
    PredictedKernel,
    Prediction,
    TimelineEvent,
)
from xlapipe.time.predict.product_work import is_untuned
from xlapipe.time.predict.sustained import is_at_power_limit, sustained_factor
from xlapipe.time.predict.unmodelled import exchanges_of, sentences
from xlapipe.time.predict.work import KernelWork
from xlapipe.time.prediction_settings import DEFAULT_SETTINGS, PredictionSettings

# Kernels of the command buffer with which `graph_interval_seconds` was measured.
_TIMED_GRAPH = 11
# The host takes as long to launch a cuDNN convolution as this number of kernels.
_CONVOLUTION_INTERVALS = 3
# Least share of the error of a GPU that was not measured, whatever share of its time a table has.
_LEAST_SCALED_SHARE = 0.5
# Few kernels of the programs that intervals were fitted to have a greater spread.
_FITTED_SPREAD = 0.25
# Fewer launches bound no step; the host takes longer to dispatch it.
_FEW_LAUNCHES = 16
_FEWER_TRIPS = (
    "lax.scan(..., unroll=N), a scan over larger blocks, several problems in one call by jax.vmap, "
    "the body as one kernel, or jax.lax.associative_scan"
)
_FEWER_KERNELS = "a larger batch, several problems in one call by jax.vmap, or several steps in one"
# Rows that follow Zipf's law took 28 to 78 times as long where threads try again.
_TRIED_LONGER = 30
# Share of the time below which an assumption is not listed.
_SHOWN_SHARE = 0.05


def predict(
    plan: Plan,
    cost: StepCost,
    calibration: Calibration,
    settings: PredictionSettings = DEFAULT_SETTINGS,
    *,
    guessed: bool = False,
) -> Prediction:
    """The predicted time of a step, by a calibration that need not be the settings'.

    `guessed` where the device's tuner may choose otherwise than the plan's results.
    """
    if settings.host != 1:
        calibration = calibration.with_host(settings.host)
    return _Predictor(plan, cost, calibration, settings, guessed).run()


@dataclass
class _Sum:
    launches: int = 0
    seconds: float = 0.0
    longest: KernelTime | None = None

    def add(self, time: KernelTime, times: int) -> None:
        self.launches += times
        self.seconds += time.seconds * times
        if self.longest is None or time.seconds > self.longest.seconds:
            self.longest = time


@dataclass
class _Clock:
    """Progress through a step; times are in seconds after the first launch.

    Attributes:
      device, host: clocks of the device and of the host.
      busy: time that the device needs if it never waits for the host.
      beside: time at which the last asynchronous, overlapped kernel ends.
      exchanging: the same of the last collective among them.
      pending: (scope, position of its done instruction, end) of kernels not yet waited for.
      graph: number of the command buffer of the last launch.
      timeline: all launches; of conditionals, those of the slowest branch.
    """

    device: float = 0.0
    host: float = 0.0
    busy: float = 0.0
    beside: float = 0.0
    exchanging: float = 0.0
    pending: list[tuple[str, int, float]] = field(default_factory=list)
    graph: int | None = None
    timeline: list[TimelineEvent] = field(default_factory=list)

    def slow_down(self, start: float, duration: float, contention: float) -> float:
        """Seconds by which a kernel and the collective beside it take longer together."""
        overlap = max(0.0, min(start + duration, self.exchanging) - start)
        more = contention * overlap
        if more:
            self.beside += more
            self.exchanging += more
            self.pending = [
                (scope, done, end + more if end > start else end)
                for scope, done, end in self.pending
            ]
        return more


class _Predictor:
    def __init__(
        self,
        plan: Plan,
        cost: StepCost,
        calibration: Calibration,
        settings: PredictionSettings,
        guessed: bool,
    ) -> None:
        assert plan.module is not None
        self._plan = plan
        self._module = plan.module
        self._cost = cost
        self._calibration = calibration
        self._unknown_trips = settings.unknown_trips or plan.stated_trips
        self._gpu = gpu_of(cost.device)
        self._untuned = is_untuned(plan.module, self._gpu)
        self._guessed = guessed
        self._floors = {
            kernel.name: (kernel.floor_seconds or 0.0) / max(kernel.launches, 1)
            for kernel in cost.kernels
        }
        self._exchanges = exchanges_of(plan, cost.device, settings.network, calibration)
        self._products = measured_products(plan, cost)
        self._work: dict[str, KernelWork] = {}
        self._times: dict[tuple[int, float, bool], KernelTime] = {}
        self._named: dict[tuple[int, float, bool], tuple[str, KernelTime]] = {}
        self._assumptions: dict[str, None] = {}
        self._uncounted: dict[str, None] = {}
        if plan.thunks and not any(kernel.thunk for kernel in cost.kernel_of.values()):
            self._assumptions[
                "the thunks do not correspond to the kernels, so the number of their threads and "
                "which of them are in command buffers is assumed"
            ] = None
        self._in_loop = False
        self._constants, self._clock = calibration.constants, _Clock()
        self._position_of: dict[str, Mapping[str, int]] = {}

    def run(self) -> Prediction:
        constants = self._calibration.constants
        steps = launches_of(self._plan, self._cost, int(constants.l2_bytes))
        step, launched, latency = self._times_of_a_call(steps)
        if self._sustain():
            step, launched, latency = self._times_of_a_call(steps)
        seconds = self._span(steps, constants)
        sums: dict[str, _Sum] = {}
        for event in self._clock.timeline:
            if event.time is not None:
                sums.setdefault(event.name, _Sum()).add(event.time, event.launches)
        kernels = tuple(self._predicted(name, total) for name, total in sums.items())
        total = sum(kernel.seconds for kernel in kernels)
        floor = self._cost.floor_seconds or 0.0
        errors, more = shipped_errors(), self._unmeasured_spread(kernels, total)
        shares = [kernel.share for kernel in kernels]
        untuned = sum(kernel.seconds for kernel in kernels if kernel.work.as_tuned)
        low, high = errors.factors(
            traits(shares, seconds),
            more=more,
            untuned=untuned > _SHOWN_SHARE * total,
            guessed=self._guessed,
        )
        assumed = [k for k in kernels if k.launch.basis == ASSUMED]
        calls = [k for k in assumed if k.work.is_library_call]
        if calls:
            names = ", ".join(sorted({k.work.kind for k in calls})[:4])
            count = sum(k.launches for k in calls)
            times = "once" if count == 1 else f"{count:,} times"
            self._uncounted[
                f"a library is called {times}, in ways that were not timed ({names}): the least "
                "that this needs is counted"
            ] = None
        exchanges = self._exchanges
        self._uncounted |= dict.fromkeys(sentences(self._plan, exchanges.unknown))
        self._assumptions |= dict.fromkeys(sentences(self._plan, exchanges.assumed))
        others = [k for k in assumed if k not in calls and k.name not in exchanges.unknown]
        unknown = sum(k.seconds for k in others)
        if unknown:
            kinds = sorted({k.work.kind for k in others})
            self._assumptions[
                f"{unknown / total:.0%} of the time is of kernels of a kind that was not timed, or "
                f"of Pallas kernels whose code is partly unknown: {', '.join(kinds[:4])}"
            ] = None
        self._state_scatters(kernels, total)
        if untuned > _SHOWN_SHARE * total:
            self._assumptions[
                f"{untuned / total:.0%} of the time is of products with XLA's default tiles or "
                "another GPU's, or of convolutions without an engine: they are predicted as a "
                "tuner would choose them, and take longer if nothing tunes them"
            ] = None
        whole = not self._uncounted
        return Prediction(
            kernels=kernels,
            step_seconds=step if whole else None,
            at_least_seconds=None if whole else step,
            low_seconds=max(floor, step * low) if whole else None,
            high_seconds=step * high if whole else None,
            latency_seconds=latency if whole else None,
            span_seconds=seconds,
            device=self._calibration.device,
            scaled_from=self._calibration.scaled_from,
            assumptions=(*self._uncounted, *self._assumptions),
            uncounted=tuple(self._uncounted),
            network=exchanges.network,
            timeline=tuple(self._clock.timeline),
            spreads=spreads_of(shares),
            launch_bound=self._launch_bound(launched, total),
        )

    def _sustain(self) -> bool:
        """Slow down products if the step has them for long; whether it has."""
        total = products = 0.0
        peaks = dict(self._calibration.constants.peak_flops)
        for event in self._clock.timeline:
            if event.time is not None:
                seconds = event.time.seconds * event.launches
                total += seconds
                if is_at_power_limit(event.time, self._work[event.name], peaks):
                    products += seconds
        factor = sustained_factor(self._cost.device, products, total)
        if factor == 1:
            return False
        for key, (name, time) in self._named.items():
            if is_at_power_limit(time, self._work[name], peaks):
                self._times[key] = replace(time, seconds=time.seconds * factor, sustained=factor)
        self._assumptions[
            f"{products / total:.0%} of the time is of products that last, each {factor} times as "
            "long as in a probe: at the limit of its power, the GPU lowers its clock"
        ] = None
        return True

    def _launch_bound(self, seconds: float, kernel_seconds: float) -> str:
        """By which launches the step is bound, with remedies; empty if by something else."""
        launches, where = most_launches(schedule_of(self._module))
        waiting = max(0.0, seconds - kernel_seconds)
        by_launches = launches * self._calibration.constants.launch_seconds + waiting
        if launches < _FEW_LAUNCHES or by_launches <= seconds / 2:
            return ""
        fix = _FEWER_TRIPS if where else _FEWER_KERNELS
        return f"bound by launches: {where or counted(launches, 'launch', 'launches')} (fix: {fix})"

    def _times_of_a_call(self, steps: Sequence[Step]) -> tuple[float, float, float]:
        """Seconds of a step in a loop, of its launches, and of one call that is awaited.

        In a loop, the host dispatches a step while the device runs the one before.
        """
        constants = self._calibration.constants
        span = self._span(steps, constants.unprofiled)
        calls, leaves, slept = parts_of_a_call(self._plan, span, constants.fitted.asleep_seconds)
        dispatch = calls * constants.call_seconds + leaves * constants.leaf_seconds
        floor = self._cost.floor_seconds or 0.0
        launched = max(self._clock.busy, self._clock.host, floor)
        step = max(launched, self._clock.host + dispatch)
        return step, launched, span + dispatch + slept * constants.wake_seconds

    def _span(self, steps: Sequence[Step], constants: Constants) -> float:
        """Seconds from the first kernel to the last, by the host's intervals of some constants."""
        self._constants, self._clock = constants, _Clock()
        self._steps(steps, 1)
        ends = (end for _, _, end in self._clock.pending)
        return max(self._clock.device, self._cost.floor_seconds or 0.0, *ends)

    def _unmeasured_spread(self, kernels: Sequence[PredictedKernel], total: float) -> float:
        """What is added to the error on both sides for what was measured on no such GPU or link."""
        more = 0.0
        if total:
            by_datasheet = (k for k in kernels if k.launch.basis == DATASHEET)
            beyond = (max(0.0, k.launch.spread - _FITTED_SPREAD) * k.seconds for k in by_datasheet)
            more = sum(beyond) / total
        if self._calibration.scaled_from is None:
            return more
        measured = sum(k.seconds for k in kernels if k.launch.basis == TABLE)
        share = max(_LEAST_SCALED_SHARE, 1 - measured / total) if total else 1.0
        scaled = share * shipped_errors().scaled
        text = "nothing was measured on this GPU"
        if share < 1:
            part = f"{measured / total:.0%} of the time"
            text = f"only products and collectives, {part}, were measured on this GPU"
        self._assumptions[
            f"{text}: the interval is wider by a factor of {math.exp(scaled):.2f} on both sides, "
            "by the error of nine of ten products of bfloat16 on four GPUs that datasheets "
            "predicted; no other kernels were compared"
        ] = None
        return more + scaled

    def _state_scatters(self, kernels: Sequence[PredictedKernel], total: float) -> None:
        """State the share of scatters that take longer if rows contend, which depends on data."""
        spread = [
            (kernel, updates)
            for kernel in kernels
            if (updates := kernel.work.updates)
            and (updates.tried or updates.several_of_a_place or updates.rows_of_a_constant)
        ]
        seconds = sum(kernel.seconds for kernel, _ in spread)
        longer = sum(k.seconds * (_TRIED_LONGER if u.tried else 1) for k, u in spread)
        if longer <= _SHOWN_SHARE * total:
            return
        text = f"{seconds / total:.1%} of the time is of scatters whose updates are assumed to be "
        text += "spread evenly"
        if any(updates.rows_of_a_constant for _, updates in spread):
            text += ", but for those to which a select gives a constant index"
        text += ": where rows meet in one place, they wait for each other"
        if any(updates.tried for _, updates in spread):
            text += (
                ", many times as long where threads try again; fix: add them in float32, and no "
            )
            text += "update -x, but 0 - x"
        self._assumptions[text] = None

    def _predicted(self, name: str, total: _Sum) -> PredictedKernel:
        assert total.longest is not None
        floor = self._floors.get(name, 0.0) * total.launches
        return PredictedKernel(
            name,
            total.launches,
            max(total.seconds, floor),
            total.longest,
            self._work[name],
            total.seconds < floor,
        )

    def _steps(
        self, steps: Sequence[Step], times: int, sync: float = 0.0, *, outer: int = 1
    ) -> None:
        """Advance the clocks over steps that run so often, each with `sync` seconds of the host."""
        clock = self._clock
        device, host, busy, pending = clock.device, clock.host, clock.busy, len(clock.pending)
        for step in steps:
            if isinstance(step, KernelLaunch):
                self._launch(step, times * outer)
            elif isinstance(step, LoopLaunches):
                self._loop(step, times * outer)
            else:
                self._branches(step.branches, times * outer)
        clock = self._clock
        # An iteration, or a whole program, waits for its asynchronous kernels at its end.
        for *_, end in clock.pending[pending:]:
            clock.busy += max(0.0, end - clock.device)
            clock.device = max(clock.device, end)
        del clock.pending[pending:]
        if sync:
            # The device waits for the host, also in steps back to back.
            clock.device = clock.host = max(clock.device, clock.host) + sync
            clock.busy = busy + clock.device - device
        end = clock.device
        if times > 1 and sync:
            passed = (clock.device - device) * (times - 1)
            clock.device = clock.host = clock.device + passed
            clock.busy += passed
        elif times > 1:
            # In steady state, the slower of the device and the host is the bottleneck.
            clock.host += (clock.host - host) * (times - 1)
            clock.device += (clock.busy - busy) * (times - 1)
            clock.device = max(clock.device, clock.host)
            clock.busy += (clock.busy - busy) * (times - 1)
        if times > 1:
            further = TimelineEvent("", end, clock.device - end, COMPUTE, 0, None, times - 1)
            clock.timeline.append(further)

    def _loop(self, loop: LoopLaunches, times: int) -> None:
        outer, self._in_loop = self._in_loop, True
        trips = loop.trips
        if trips is None:
            trips = self._unknown_trips
            text = "a loop whose number of trips is unknown: "
            if trips is None:
                self._uncounted[f"{text}one is counted"] = None
            else:
                self._assumptions[f"{text}{trips:,} are counted, as stated"] = None
            trips = 1 if trips is None else trips
        sync = self._constants.sync_seconds if loop.trips is None else 0.0
        first = trips if loop.first is loop.other else min(trips, 1)
        for steps, count in ((loop.first, first), (loop.other, trips - first)):
            if count > 0:
                self._clock.graph = None
                self._steps(steps, count, sync, outer=times)
        self._in_loop, self._clock.graph = outer, None

    def _branches(self, branches: Sequence[Sequence[Step]], times: int) -> None:
        """Advance the clocks by the slowest branch of a conditional."""
        before, slowest = self._clock, None
        for branch in branches:
            self._clock = replace(before, pending=[*before.pending], graph=None, timeline=[])
            self._steps(branch, 1, outer=times)
            if slowest is None or self._clock.device > slowest.device:
                slowest = self._clock
        if len(branches) > 1:
            self._assumptions["for each conditional, the slowest branch is counted"] = None
        self._clock = before
        before.graph = None
        if slowest is not None:
            before.timeline.extend(slowest.timeline)
            self._clock = replace(slowest, timeline=before.timeline)

    def _launch(self, launch: KernelLaunch, times: int) -> None:
        kernel, name, constants = launch.kernel, launch.kernel.name, self._constants
        time = self._time(launch)
        clock = self._clock
        at_once = self._work[name].at_once
        duration = max(time.seconds / at_once, self._floors.get(name, 0.0))
        self._wait(launch)
        opcode = kernel.site.instruction.opcode
        if opcode.endswith("-start") and (
            opcode != "async-start" or kernel.wire_bytes or touches_host(kernel.site)
        ):
            start = self._start(launch, duration)
            event = TimelineEvent(name, start, duration, ASYNCHRONOUS, times, time)
            clock.timeline.append(event)
            return
        first = clock.device == 0.0
        if kernel.graph is not None and kernel.graph == clock.graph:
            start = clock.device + constants.graph_gap_seconds
            duration += clock.slow_down(start, duration, constants.fitted.contention)
            clock.timeline.append(TimelineEvent(name, start, duration, COMPUTE, times, time))
            clock.device += constants.graph_gap_seconds + duration
            clock.busy += constants.graph_gap_seconds + duration
            return
        clock.graph = kernel.graph
        if not first:
            interval = constants.kernel_interval_seconds
            if self._in_loop:
                interval = constants.loop_interval_seconds
            if kernel.graph is not None:
                interval = constants.graph_interval_seconds * kernel.graph_size / _TIMED_GRAPH
            elif self._work[name].kind.startswith("__cudnn$conv"):
                interval *= _CONVOLUTION_INTERVALS
            clock.host += interval
        launches = max(0.0, time.launches - 1)
        start = max(clock.device + (0.0 if first else constants.gap_seconds), clock.host)
        duration += clock.slow_down(start, duration, constants.fitted.contention)
        # Additional kernels of a library call wait for their own launches by the host.
        waiting = 0.0
        if kernel.graph is None and launches:
            clock.host += launches * constants.kernel_interval_seconds
            waiting = max(
                0.0,
                launches * constants.kernel_interval_seconds - duration * launches / (launches + 1),
            )
        clock.timeline.append(TimelineEvent(name, start, duration, COMPUTE, times, time))
        clock.device = start + duration + waiting
        clock.busy += constants.gap_seconds + duration

    def _start(self, launch: KernelLaunch, duration: float) -> float:
        """Overlap an asynchronous kernel with those before its done instruction; its start."""
        name, scope, clock = launch.kernel.name, launch.kernel.site.caller, self._clock
        begin = max(clock.device, clock.beside)
        clock.beside = begin + duration
        if launch.kernel.wire_bytes:
            clock.exchanging = clock.beside
        done = next((item.name for item in scope.instructions if name in item.operands), None)
        if done is not None:
            clock.pending.append((scope.name, self._positions(scope)[done], clock.beside))
        return begin

    def _wait(self, launch: KernelLaunch) -> None:
        """Wait for the asynchronous kernels whose done instruction precedes a kernel."""
        clock = self._clock
        if not clock.pending:
            return
        scope = launch.kernel.site.caller
        position = self._positions(scope).get(launch.kernel.name, 0)
        for item in list(clock.pending):
            if item[0] == scope.name and item[1] < position:
                clock.pending.remove(item)
                clock.busy += max(0.0, item[2] - clock.device)
                clock.device = max(clock.device, item[2])

    def _positions(self, scope: Computation) -> Mapping[str, int]:
        if scope.name not in self._position_of:
            names = (item.name for item in scope.instructions)
            self._position_of[scope.name] = {name: number for number, name in enumerate(names)}
        return self._position_of[scope.name]

    def _time(self, launch: KernelLaunch) -> KernelTime:
        kernel, name = launch.kernel, launch.kernel.name
        if name not in self._work:
            self._work[name] = work_of(kernel, self._module, untuned=self._untuned, gpu=self._gpu)
        work = self._work[name]
        key = (id(work), launch.cached_bytes, kernel.graph is not None)
        # Collectives of equal work may have other groups.
        if name in self._exchanges.unknown:
            return least_time(self._floors[name], self._calibration.constants)
        if name in self._exchanges.times:
            return exchange_time(self._exchanges.times[name])
        if name in self._products:
            constants = self._calibration.constants
            return product_time(*self._products[name], work, launch.cached_bytes, constants)
        if key not in self._times:
            in_graph = kernel.graph is not None
            time = time_of(work, launch.cached_bytes, in_graph, self._calibration)
            if work.or_else is not None:
                other = time_of(work.or_else, launch.cached_bytes, in_graph, self._calibration)
                if other.basis != ASSUMED and other.seconds < time.seconds:
                    self._work[name], time = work.or_else, other
                    key = (id(work.or_else), *key[1:])
            self._times[key] = time
            self._named[key] = name, time
        return self._times[key]
