"""The estimated time of a step on a TPU: its schedule as a timeline.

The cores run one operation after another. Asynchronous transfers are queued by what carries them
(HBM, links between chips, the host), and the cores wait where the schedule waits for their end.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from xlapipe.devices.platforms.tpu import MOSAIC_TPU_CALL
from xlapipe.devices.targets.chip_grid import ChipGrid
from xlapipe.devices.targets.device import Tpu
from xlapipe.plans import Collective, Computation, Instruction, Plan
from xlapipe.plans.opcodes import RENAMES
from xlapipe.time.cost import Kernel, StepCost
from xlapipe.time.cost.schedule import BranchNode, LoopNode, Node, Site, schedule_of, sites_of
from xlapipe.time.cost.stated_cost import stated_in
from xlapipe.time.predict.kernel_time import ASSUMED, KernelTime, TimePart
from xlapipe.time.predict.prediction import (
    ASYNCHRONOUS,
    COMPUTE,
    PredictedKernel,
    Prediction,
    TimelineEvent,
)
from xlapipe.time.predict.scheduled import rates
from xlapipe.time.predict.scheduled.losses import SerialLoop, losses
from xlapipe.time.predict.scheduled.operation import OperationTimes
from xlapipe.time.predict.scheduled.torus import Torus
from xlapipe.time.predict.work import KernelWork

_HBM, _LINKS, _SLICES, _HOST, _TO_HOST = "HBM", "links", "slices", "host", "to host"
_HOST_SPACE = 5
_CARRIERS = {
    _HBM: "prefetches from HBM",
    _LINKS: "collectives",
    _SLICES: "collectives between slices",
    _HOST: "transfers from the host, whose rate is assumed",
    _TO_HOST: "transfers to the host, whose rate is assumed",
}
# Share of the time below which an assumption is not listed.
_SHOWN_SHARE = 0.05
_HANDS_ON = RENAMES | {"async-update"}


def estimate(
    plan: Plan, cost: StepCost, device: Tpu, unknown_trips: int | None = None
) -> Prediction:
    return _Estimator(plan, cost, device, unknown_trips).run()


def _carrier(collective: Collective) -> str:
    return _SLICES if collective.between_slices else _LINKS


class _Pending(NamedTuple):
    end: float
    queue: str
    scope: str
    position: int


@dataclass
class _Clock:
    """Seconds since the step began.

    Attributes:
      now: of the cores.
      free: when each queue has ended all that was started.
      ends: of each transfer that was started and not yet waited for: its end, its queue, and the
        computation and position where the schedule waits for it.
      exposed: seconds that the cores waited, by queue and instruction.
      starts: seconds in which the cores waited for first bytes.
    """

    now: float = 0.0
    free: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ends: dict[str, "_Pending"] = field(default_factory=dict)
    exposed: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    starts: float = 0.0

    def waited(self, queue: str) -> float:
        """Seconds that the cores waited for one queue."""
        return sum(seconds for (of, _), seconds in self.exposed.items() if of == queue)


class _Estimator:
    def __init__(self, plan: Plan, cost: StepCost, device: Tpu, unknown_trips: int | None) -> None:
        assert plan.module is not None
        self._cost, self._device = cost, device
        self._unknown_trips = unknown_trips
        self._nodes = schedule_of(plan.module)
        self._operations = OperationTimes(plan, plan.module, device)
        grid = ChipGrid((1,) * device.grid_dimensions, device.devices_per_chip)
        if plan.topology is not None:
            grid = ChipGrid.parse(
                plan.topology,
                dimensions=device.grid_dimensions,
                devices_per_chip=device.devices_per_chip,
            )
        self._torus = Torus(device, grid)
        self._collectives = {item.instruction: item for item in plan.collectives or ()}
        self._times: dict[str, KernelTime] = {}
        self._sums: dict[str, tuple[int, float]] = {}
        self._assumptions: dict[str, None] = {}
        self._uncounted: dict[str, None] = {}
        self._timeline: list[TimelineEvent] = []
        self._clock = _Clock()
        self._loops: list[SerialLoop] = []
        self._positions: dict[str, tuple[Mapping[str, int], Mapping[str, int]]] = {}

    def run(self) -> Prediction:
        self._run(self._nodes, 1)
        self._wait()
        seconds = max([self._clock.now, *self._clock.free.values()])
        kernels = tuple(
            self._predicted(name, *totals) for name, totals in self._sums.items() if totals[0]
        )
        low, high = self._range(seconds, kernels)
        self._state(seconds)
        known = not self._uncounted
        return Prediction(
            kernels=kernels,
            step_seconds=seconds if known else None,
            at_least_seconds=None if known else seconds,
            low_seconds=low if known else None,
            high_seconds=high if known else None,
            latency_seconds=None,
            span_seconds=seconds,
            device=self._device.name,
            scaled_from=None,
            assumptions=tuple(self._assumptions),
            uncounted=tuple(self._uncounted),
            timeline=tuple(self._timeline),
            is_estimate=True,
            exposed={q: waited for q in _CARRIERS if (waited := self._clock.waited(q))},
            losses=tuple(
                losses(
                    seconds,
                    kernels,
                    self._cost.kernel_of,
                    self._clock.exposed,
                    self._loops,
                    self._operations.operations,
                )
            ),
        )

    def _run(self, nodes: Sequence[Node], times: int) -> None:
        started = {*self._clock.ends}
        for node in nodes:
            if isinstance(node, Site):
                self._launch(node, times)
            elif isinstance(node, LoopNode):
                self._loop(node, times)
            else:
                self._branches(node, times)
        self._wait(lambda name, _: name not in started)

    def _loop(self, loop: LoopNode, times: int) -> None:
        """Run the first trip, and another that represents the rest."""
        trips = loop.trips
        if trips is None:
            trips = self._unknown_trips
            text = "a loop whose number of trips is unknown: "
            if trips is None:
                self._uncounted[f"{text}one is counted"] = None
            else:
                self._assumptions[f"{text}{trips:,} are counted, as stated"] = None
            trips = 1 if trips is None else trips
        if not trips:
            return
        self._run(loop.body, times)
        if trips == 1:
            return
        before, exposed, starts = self._clock.now, dict(self._clock.exposed), self._clock.starts
        self._run(loop.body, times * (trips - 1))
        self._clock.starts = starts + (self._clock.starts - starts) * (trips - 1)
        lost = self._clock.starts - starts
        if 2 * lost > (self._clock.now - before) * (trips - 1):
            name = next((site.name for site in sites_of(loop.body)), "")
            self._loops.append(SerialLoop(name, trips, lost * times))
        further = (self._clock.now - before) * (trips - 2)
        for key, total in self._clock.exposed.items():
            self._clock.exposed[key] = total + (total - exposed.get(key, 0.0)) * (trips - 2)
        if further:
            event = TimelineEvent("", self._clock.now, further, COMPUTE, 0, None, trips - 2)
            self._timeline.append(event)
        self._clock.now += further
        for queue in self._clock.free:
            self._clock.free[queue] += further

    def _branches(self, node: BranchNode, times: int) -> None:
        """Run the slowest branch of a conditional."""
        before, slowest = self._clock, self._clock
        for branch in node.branches:
            self._clock = replace(
                before,
                free=before.free.copy(),
                ends=dict(before.ends),
                exposed=before.exposed.copy(),
            )
            self._run(branch, times)
            slowest = max(slowest, self._clock, key=lambda clock: clock.now)
        if len(node.branches) > 1:
            self._assumptions["for each conditional, the slowest branch is counted"] = None
        self._clock = slowest

    def _launch(self, site: Site, times: int) -> None:
        name, clock = site.name, self._clock
        positions, ends = self._positions_in(site.caller)
        self._wait(
            lambda _, item: item.scope == site.caller.name and item.position < positions[name]
        )
        time = self._time(site)
        launches, seconds = self._sums.get(name, (0, 0.0))
        self._sums[name] = launches + times, seconds + time.seconds * times
        queue = self._queue(site)
        if queue is None:
            event = TimelineEvent(name, clock.now, time.seconds, COMPUTE, times, time)
            clock.now += time.seconds
            if (collective := self._collectives.get(name)) is not None:
                clock.exposed[_carrier(collective), name] += time.seconds
            elif len(time.parts) > 1:
                clock.starts += time.seconds - time.parts[0].seconds
        else:
            start = max(clock.now, clock.free[queue])
            clock.free[queue] = start + time.seconds
            if name in ends:
                clock.ends[name] = _Pending(clock.free[queue], queue, site.caller.name, ends[name])
            event = TimelineEvent(name, start, time.seconds, ASYNCHRONOUS, times, time)
        self._timeline.append(event)

    def _queue(self, site: Site) -> str | None:
        """What carries an asynchronous transfer; None if the cores wait for the operation."""
        collective = self._collectives.get(site.name)
        if collective is not None:
            return _carrier(collective) if collective.asynchronous else None
        if not site.instruction.opcode.endswith("-start"):
            return None
        shape = site.instruction.shape
        spaces = [array.memory_space for array in shape.arrays]
        if _HOST_SPACE not in spaces:
            return _HBM
        # What is written: the second of the three parts; of a copy, the first.
        written = shape.parts[0 if site.instruction.opcode == "copy-start" else 1]
        to_host = any(array.memory_space == _HOST_SPACE for array in written.arrays)
        return _TO_HOST if to_host else _HOST

    def _wait(self, is_due: Callable[[str, _Pending], bool] = lambda *_: True) -> None:
        """Wait for the transfers that are due."""
        clock = self._clock
        for name, item in list(clock.ends.items()):
            if is_due(name, item):
                del clock.ends[name]
                clock.exposed[item.queue, name] += max(0.0, item.end - clock.now)
                clock.now = max(clock.now, item.end)

    def _positions_in(self, scope: Computation) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Position of each instruction, and of that which waits for each one that is started."""
        if scope.name not in self._positions:
            positions = {item.name: number for number, item in enumerate(scope.instructions)}
            started: dict[str, str] = {}
            ends: dict[str, int] = {}
            for item in scope.instructions:
                if item.opcode.endswith("-start"):
                    started[item.name] = item.name
                elif item.operands and (start := started.get(item.operands[0])) is not None:
                    if item.opcode.endswith("-done"):
                        ends[start] = positions[item.name]
                    elif item.opcode in _HANDS_ON:
                        started[item.name] = start
            for collective in self._collectives.values():
                if collective.instruction in positions and collective.done in positions:
                    ends[collective.instruction] = positions[collective.done]
            self._positions[scope.name] = positions, ends
        return self._positions[scope.name]

    def _time(self, site: Site) -> KernelTime:
        name = site.name
        if name not in self._times:
            self._times[name] = self._computed_time(site)
        return self._times[name]

    def _computed_time(self, site: Site) -> KernelTime:
        kernel = self._cost.kernel_of[site.name]
        collective = self._collectives.get(site.name)
        if collective is not None:
            time = self._torus.time_of(collective)
            if time is not None:
                return time
            what = "bytes or groups are unknown"
            if collective.between_slices and not self._device.slice_bandwidth:
                what = f"rate between slices of {self._device.row} is stated nowhere"
            self._uncounted[f"{collective.kind} whose {what}"] = None
        if self._queue(site) in (_HOST, _TO_HOST):
            moved = max(kernel.touched.read_bytes, kernel.touched.written_bytes)
            seconds = moved / self._device.host_bandwidth
            rate = f"{self._device.host_bandwidth / 1e9:.0f} GB/s"
            text = f"{moved / 1e6:,.2f} MB to or from the host at {rate}"
            return KernelTime(seconds, (TimePart(seconds, text),), 1.0, ASSUMED, 0.0)
        if site.inner.custom_call_target == MOSAIC_TPU_CALL:
            self._check_statement(site.inner, kernel)
        return self._operations.of(kernel)

    def _check_statement(self, call: Instruction, kernel: Kernel) -> None:
        """Say which Pallas kernel states no cost, or one that cannot be."""
        name, stated = call.kernel_name or call.name, stated_in(call)
        if stated is not None and not stated.is_possible:
            self._assumptions[
                f"the Pallas kernel {name} states {stated.flops:,} operations and "
                f"{stated.accessed_bytes:,} B, which cannot be: its cost_estimate is not used"
            ] = None
        if kernel.cost.flops is None:
            self._uncounted[
                f"the Pallas kernel {name} states no cost: only its bytes are counted; fix: "
                "cost_estimate=pl.CostEstimate(…) in pallas_call"
            ] = None

    def _predicted(self, name: str, launches: int, seconds: float) -> PredictedKernel:
        kernel, time = self._cost.kernel_of[name], self._times[name]
        cost = kernel.cost
        work = KernelWork(
            cost.kind,
            (),
            cost.read_bytes,
            cost.written_bytes,
            0.0,
            cost.flops or {},
            0,
            cost.kind,
            link_bytes=kernel.wire_bytes,
        )
        return PredictedKernel(name, launches, seconds, time, work, at_floor=False)

    def _range(self, seconds: float, kernels: Sequence[PredictedKernel]) -> tuple[float, float]:
        low, high = seconds * rates.LEAST_FACTOR, seconds * rates.MOST_FACTOR
        exposed = self._clock.waited(_HOST) + self._clock.waited(_TO_HOST)
        low -= exposed * (1 - 1 / rates.MOST_HOST_SHARE)
        high += exposed * (1 / rates.LEAST_HOST_SHARE - 1)
        assumed = sum(
            kernel.seconds
            for kernel in kernels
            if kernel.launch.basis == ASSUMED and self._cost.kernel_of[kernel.name].cost.stated
        )
        low -= assumed * (1 - rates.KERNEL_SHARE / rates.MOST_KERNEL_SHARE)
        high += assumed * (rates.KERNEL_SHARE / rates.LEAST_KERNEL_SHARE - 1)
        return low, high

    def _state(self, seconds: float) -> None:
        self._assumptions[
            "an estimate: rates are those that others published of single operations; no step was "
            "run on a TPU"
        ] = None
        for queue, text in _CARRIERS.items():
            exposed = self._clock.waited(queue)
            if exposed > _SHOWN_SHARE * seconds:
                self._assumptions[
                    f"{exposed / seconds:.0%} of the time the cores wait for {text}"
                ] = None
