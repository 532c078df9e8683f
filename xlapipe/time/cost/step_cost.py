"""The cost of one step: bytes, operations and floor of every kernel and of the whole.

The floor of a kernel is its roofline time: its bytes in device memory at full bandwidth, its
operations at the peak, or its bytes on the wire at the link's bandwidth, whichever takes longest.
Launches, latencies and uncoalesced accesses take additional time.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.device import Device
from xlapipe.plans import Collective, Computation, Instruction, Plan
from xlapipe.plans.dataflow import operand_index
from xlapipe.plans.kernel_code import KernelCode, StatedCost
from xlapipe.plans.short_repr import short_repr
from xlapipe.time.cost.elements import size_of
from xlapipe.time.cost.flops import VECTOR, Flops
from xlapipe.time.cost.kernel import Kernel, KernelCost
from xlapipe.time.cost.residency import Residency
from xlapipe.time.cost.schedule import (
    SEPARATE_FIRST_TRIPS,
    BranchNode,
    LoopNode,
    Node,
    Site,
    schedule_of,
)
from xlapipe.time.cost.stated_cost import stated_in
from xlapipe.time.cost.thunks import graphs_of, thunks_of
from xlapipe.time.cost.touched import Access, Touched, TouchedBytes

if TYPE_CHECKING:
    from xlapipe.devices.targets.network import Network

_TRITON = "__gpu$xla.gpu.triton"
# Figures of a kernel that its launches add up.
_FIGURES = (
    *("launches", "read_bytes", "written_bytes", "cached_bytes", "unknown_bytes"),
    *("memory_seconds", "compute_seconds", "link_seconds"),
)


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the most of a figure; the most is None if a trip count is unknown."""

    low: float
    high: float | None

    def __add__(self, other: "Range") -> "Range":
        known = self.high is not None and other.high is not None
        return Range(self.low + other.low, self.high + other.high if known else None)  # type: ignore[operator]

    def either(self, other: "Range") -> "Range":
        """The range if either of two branches runs."""
        known = self.high is not None and other.high is not None
        high = max(self.high, other.high) if known else None  # type: ignore[type-var]
        return Range(min(self.low, other.low), high)


_ZERO = Range(0, 0)


@dataclass(frozen=True)
class StepCost:
    """The cost of one step.

    Attributes:
      kernels: in the order of their first launch.
      traffic: bytes read and written; the least with the cheapest branches, the most with the
        most expensive ones and everything that kernels may touch in addition.
      floors: least seconds of kernels that run one after another, and of asynchronous, overlapped
        ones, with the cheapest branches.
      kernel_of: each kernel, by name.
      device: that runs the step; None if unknown.
    """

    __repr__ = short_repr

    kernels: tuple[KernelCost, ...]
    traffic: Range
    floors: tuple[float, float] | None
    kernel_of: Mapping[str, Kernel] = field(default_factory=dict)
    device: Device | None = None

    @property
    def traffic_bytes(self) -> int:
        """Bytes that a step must read and write."""
        return int(self.traffic.low)

    @property
    def traffic_at_most_bytes(self) -> int | None:
        """Bytes that a step may read and write; None if a loop's trip count is unknown."""
        return None if self.traffic.high is None else int(self.traffic.high)

    @property
    def floor_seconds(self) -> float | None:
        """The lower bound of a step's time; asynchronous kernels may overlap with the others."""
        return None if self.floors is None else max(self.floors)

    @property
    def launches(self) -> int:
        """Number of kernels that a step launches."""
        return sum(kernel.launches for kernel in self.kernels)

    def bound_seconds(self) -> Mapping[str, float]:
        """Sum of the floors of the kernels that each bound limits."""
        seconds: dict[str, float] = {}
        for kernel in self.kernels:
            if kernel.bound is not None and kernel.floor_seconds is not None:
                seconds[kernel.bound] = seconds.get(kernel.bound, 0.0) + kernel.floor_seconds
        return seconds


def step_cost(
    plan: Plan, device: Device | None = None, network: "Network | None" = None
) -> StepCost | None:
    """The cost of one step; None without a complete module. Without a device, no floors."""
    if plan.module is None or not plan.module.complete:
        return None
    return _Walk(plan, device, network).cost()


@dataclass(frozen=True, slots=True)
class _Totals:
    """Bytes of kernels, and the least seconds of those on the stream and of asynchronous ones."""

    traffic: Range = _ZERO
    floor: float = 0.0
    asynchronous: float = 0.0

    def __add__(self, other: "_Totals") -> "_Totals":
        floor, beside = self.floor + other.floor, self.asynchronous + other.asynchronous
        return _Totals(self.traffic + other.traffic, floor, beside)

    def either(self, other: "_Totals") -> "_Totals":
        floor = min(self.floor, other.floor)
        beside = min(self.asynchronous, other.asynchronous)
        return _Totals(self.traffic.either(other.traffic), floor, beside)

    def unbounded(self) -> "_Totals":
        """The same without an upper end, for a loop of unknown trip count."""
        traffic = replace(self.traffic, high=None) if self.traffic.high else self.traffic
        return replace(self, traffic=traffic)


class _Walk:
    """Walk over the kernels in order: those of loops twice, except in deeply nested loops."""

    def __init__(self, plan: Plan, device: Device | None, network: "Network | None") -> None:
        assert plan.module is not None
        self._plan = plan
        self._device = device
        self._network = network
        self._nodes = schedule_of(plan.module)
        self._cache = Residency(device.l2_bytes if device is not None else 0)
        self._depth = 0
        self._touched = TouchedBytes(plan, plan.module)
        self._flops = Flops(plan, plan.module)
        self._collectives: Mapping[str, Collective] = {
            collective.instruction: collective for collective in plan.collectives or ()
        }
        self._kernels: dict[str, KernelCost] = {}
        self._kernel_of: dict[str, Kernel] = {}
        self._thunks = thunks_of(plan, self._nodes)
        self._graphs = graphs_of(plan, self._nodes, self._thunks)
        self._graph_sizes = Counter(self._graphs.values())

    def cost(self) -> StepCost:
        totals = self._run(self._nodes, 1)
        floors = (totals.floor, totals.asynchronous) if self._device is not None else None
        return StepCost(
            tuple(self._kernels.values()),
            totals.traffic,
            floors,
            self._kernel_of,
            self._device,
        )

    def _run(self, nodes: tuple[Node, ...], times: int) -> _Totals:
        totals = _Totals()
        for node in nodes:
            if isinstance(node, Site):
                totals += self._launch(node, times)
            elif isinstance(node, LoopNode):
                self._depth += 1
                totals += self._loop(node, times)
                self._depth -= 1
            else:
                totals += self._branches(node, times)
        return totals

    def _loop(self, loop: LoopNode, times: int) -> _Totals:
        """Count the first trip separately: later ones hit in the L2 cache what it touched."""
        if loop.trips is None:
            totals = self._run(loop.condition, 2 * times)
            return (totals + self._run(loop.body, times)).unbounded()
        # With a known trip count XLA does not compute the condition.
        first = min(loop.trips, 1) if self._depth <= SEPARATE_FIRST_TRIPS else loop.trips
        totals = self._run(loop.body, times * first) if first else _Totals()
        if loop.trips > first:
            totals += self._run(loop.body, times * (loop.trips - first))
        return totals

    def _branches(self, node: BranchNode, times: int) -> _Totals:
        before = self._cache.mark()
        combined: _Totals | None = None
        for branch in node.branches:
            totals = self._run(branch, times)
            self._cache.restore(before)
            combined = totals if combined is None else combined.either(totals)
        return combined or _Totals()

    def _launch(self, site: Site, times: int) -> _Totals:
        name = site.name
        if name not in self._kernel_of:
            self._kernel_of[name] = self._kernel(site)
        one, touched = self._kernel_of[name].cost, self._kernel_of[name].touched
        cached = self._cache.launch(touched) if self._device is not None else 0
        one = self._with_floor(replace(one, cached_bytes=cached))
        self._kernels[name] = _launched(self._kernels.get(name), one, times)
        low = times * one.touched_bytes
        traffic = Range(low, low + times * one.unknown_bytes)
        floor = times * (one.floor_seconds or 0.0)
        if one.asynchronous:
            return _Totals(traffic, 0.0, floor)
        return _Totals(traffic, floor, 0.0)

    def _kernel(self, site: Site) -> Kernel:
        """One launch of a kernel, without its floor."""
        inner, scope, name = site.inner, site.scope, site.name
        graph, collective = self._graphs.get(name), self._collectives.get(name)
        flops: Mapping[str, int] | None
        code = self._code_of(inner, scope) if collective is None else None
        if collective is not None:
            touched, flops = _touched_by(collective), {}
        elif code is not None:
            touched = self._touched.of_code(inner, scope, code)
            # Loops and branches that depend on data have no known lower bound.
            flops = None if code.undecided else code.flops
        else:
            touched, flops = self._touched.of(inner, scope), self._flops.of(inner, scope)
        stated = self._stated(inner)
        if stated is not None:
            touched, code = touched.of_total(stated.accessed_bytes), None
            element = inner.shape.arrays[0].element if inner.shape.arrays else ""
            flops = {element: stated.flops} if stated.flops else flops
        return Kernel(
            site,
            self._cost(site, touched, flops, code, stated=stated is not None),
            touched,
            thunk=self._thunks.get(name),
            graph=graph,
            graph_size=self._graph_sizes[graph] if graph is not None else 0,
            wire_bytes=(collective.wire_bytes or 0) if collective is not None else 0,
            stated=stated,
        )

    def _cost(
        self,
        site: Site,
        touched: Touched,
        flops: Mapping[str, int] | None,
        code: KernelCode | None,
        *,
        stated: bool,
    ) -> KernelCost:
        instruction, inner = site.instruction, site.inner
        collective = self._collectives.get(instruction.name)
        return KernelCost(
            name=instruction.name,
            kind=inner.fusion_backend_kind
            or inner.fusion_kind
            or inner.kernel_name
            or inner.custom_call_target
            or inner.opcode,
            op_name=instruction.op_name or inner.op_name,
            source=instruction.source or self._plan.nearest_source(instruction.name),
            launches=1,
            read_bytes=touched.read_bytes,
            written_bytes=touched.written_bytes,
            unknown_bytes=touched.unknown_bytes,
            flops=flops,
            asynchronous=(
                instruction.opcode.endswith("-start")
                if collective is None
                else collective.asynchronous
            ),
            stated=stated,
            code=code,
        )

    def _stated(self, call: Instruction) -> StatedCost | None:
        """What the author of a Pallas kernel states, of which XLA does not have the code."""
        sizes = (None, call.shape.size_bytes)
        costs = (cost for cost in self._plan.stated_costs if cost.kernel == call.kernel_name)
        given = next((cost for cost in costs if cost.result_bytes in sizes), stated_in(call))
        return given if given is not None and given.is_possible else None

    def _code_of(self, call: Instruction, scope: Computation) -> KernelCode | None:
        """The code of a Pallas kernel for Triton; None of other instructions."""
        if call.custom_call_target != _TRITON or not self._plan.kernel_codes:
            return None
        operands = tuple(
            size_of(operand.shape.at(operand_index(call, position)))
            for position, name in enumerate(call.operands)
            if (operand := scope.by_name.get(name)) is not None
        )
        codes = self._plan.kernel_codes
        size_bytes = sum(size_of(shape) for shape in call.shape.arrays)
        return next((c for c in codes if c.is_of(call.kernel_name, operands, size_bytes)), None)

    def _with_floor(self, kernel: KernelCost) -> KernelCost:
        """One launch with its bounds in seconds."""
        device = self._device
        if device is None:
            return kernel
        compute = 0.0
        for element_type, flops in (kernel.flops or {}).items():
            peak = device.vector_flops if element_type == VECTOR else device.peak_of(element_type)
            compute += flops / peak if peak else 0.0
        collective = self._collectives.get(kernel.name)
        link = 0.0 if collective is None else self._link_seconds(collective, device)
        return replace(
            kernel,
            memory_seconds=(kernel.touched_bytes - kernel.cached_bytes) / device.bandwidth,
            compute_seconds=compute,
            link_seconds=link,
        )

    def _link_seconds(self, collective: Collective, device: Device) -> float:
        """The least that links need; within a host, those of the GPU."""
        from xlapipe.time.collectives.layout import least_seconds, spans_hosts

        topology, network = self._plan.topology, self._network
        if network is not None:
            seconds = least_seconds(collective, topology, network)
            if seconds or network.link_bytes_per_second:
                return seconds
        rate = device.most_link_bandwidth
        # Between hosts of GPUs, the link within a host is not the bottleneck.
        in_hosts = not platform_named(self._plan.platform).has_chip_grid
        if (
            collective.between_slices
            or not rate
            or (in_hosts and spans_hosts(collective, topology))
        ):
            return 0.0
        return _link_bytes(collective) / rate


def _touched_by(collective: Collective) -> Touched:
    """A collective reads its operands and writes its results; their memory is not followed."""
    read, written = collective.operand_bytes or 0, collective.output_bytes or 0
    name = collective.instruction
    return Touched((Access((name, "in"), read, read),), (Access((name, "out"), written, written),))


def _link_bytes(collective: Collective) -> int:
    """Bytes that a device must send; of an all-reduce, half if the network reduces."""
    wire = collective.wire_bytes or 0
    return wire // 2 if collective.kind == "all-reduce" else wire


def _launched(earlier: KernelCost | None, one: KernelCost, times: int) -> KernelCost:
    """The total of earlier launches of a kernel and further ones, of the same types and models."""

    def total(before: float | None, more: float | None) -> float | None:
        return None if before is None or more is None else before + times * more

    figures: dict[str, Any] = {
        name: total(getattr(earlier, name) if earlier is not None else 0, getattr(one, name))
        for name in _FIGURES
    }
    before, more = earlier.flops if earlier is not None else {}, one.flops
    figures["flops"] = None
    if before is not None and more is not None:
        figures["flops"] = {key: before.get(key, 0) + times * more[key] for key in more}
    return replace(earlier or one, **figures)
