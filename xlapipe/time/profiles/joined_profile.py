"""Join the kernels of a GPU profile with the instructions of a plan.

Outside a command buffer the profiler gives each kernel the name of its HLO instruction. Inside one
it gives every kernel the name of the command buffer, and the kernel's own name, which several
instructions share: kernels with the same name are then joined in the order of the schedule, and
kernels of libraries, whose names the plan does not have, by their neighbours.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from xlapipe.files.typed_data import Count, Seconds, Text
from xlapipe.plans.plan import Plan
from xlapipe.time.cost.schedule import LoopNode, Node, Site, schedule_of
from xlapipe.time.cost.thunks import thunks_of

# XLA numbers the calls of one Pallas kernel in the thunk sequence, not on the device.
_CALL_NUMBER = re.compile(r"__\d+$")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")
# Expanded loops are cut off here; no profile has that number of kernels in a step.
_MOST_LAUNCHES = 1_000_000


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """A kernel or copy in a profile.

    Attributes:
      hlo_op: the instruction or command buffer that launched it; None if the profile has none.
    """

    name: str
    hlo_op: str | None
    start_ns: float
    duration_ns: float

    @property
    def end_ns(self) -> float:
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class CallInterval:
    """A call of the program on the host, until its outputs are ready; same clock as the kernels."""

    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Kernels of one instruction: launches and seconds per step."""

    name: Text
    launches: Count
    seconds: Seconds


@dataclass(frozen=True)
class MeasuredStep:
    """A profile joined with a plan; seconds are per step, medians over the steps.

    Attributes:
      unmatched: by the kernel's own name.
      by_name_seconds, by_order_seconds: of the kernels joined by the instruction's name and by
        order.
      span_seconds: from the first kernel's start to the last one's end.
      busy_seconds: the part of it in which at least one kernel runs.
      steps: number of steps in the profile.
      before_seconds, after_seconds: from the start of the call on the host to the first kernel's
        start, and from the last kernel's end to the end of the call; None if the profile has no
        calls. With the span they are the call's wall time.
    """

    kernels: tuple[MeasuredKernel, ...]
    unmatched: tuple[MeasuredKernel, ...]
    by_name_seconds: Seconds
    by_order_seconds: Seconds
    span_seconds: Seconds
    busy_seconds: Seconds
    steps: Count
    before_seconds: Seconds | None = None
    after_seconds: Seconds | None = None

    @property
    def call_seconds(self) -> float | None:
        """Wall time of a call: before, span and after; None if the profile has no calls."""
        if self.before_seconds is None or self.after_seconds is None:
            return None
        return self.before_seconds + self.span_seconds + self.after_seconds

    @property
    def kernel_seconds(self) -> float:
        """Sum over all kernels."""
        return sum(kernel.seconds for kernel in (*self.kernels, *self.unmatched))

    @property
    def matched_share(self) -> float:
        """The share of the kernels' time that was joined with an instruction."""
        total = self.kernel_seconds
        return sum(kernel.seconds for kernel in self.kernels) / total if total else 1.0


def join_profile(
    plan: Plan, events: Iterable[KernelEvent], steps: int, calls: Sequence[CallInterval] = ()
) -> MeasuredStep:
    """Join the kernels of `steps` equal steps."""
    in_order = sorted(events, key=lambda event: event.start_ns)
    by_call = _split_by_call(in_order, calls)
    parts = by_call or split_steps(in_order, steps)
    expected = expected_launches(plan)
    joined = [_join_step(plan, expected, part) for part in parts]
    kernels = _medians([step.kernels for step in joined])
    return MeasuredStep(
        kernels=kernels,
        unmatched=_medians([step.unmatched for step in joined]),
        by_name_seconds=median([step.by_name_ns for step in joined] or [0.0]) * 1e-9,
        by_order_seconds=median([step.by_order_ns for step in joined] or [0.0]) * 1e-9,
        span_seconds=median([_span_ns(part) for part in parts] or [0.0]) * 1e-9,
        busy_seconds=median([_busy_ns(part) for part in parts] or [0.0]) * 1e-9,
        steps=len(parts),
        before_seconds=_median_seconds(
            part[0].start_ns - call.start_ns for part, call in zip(by_call, calls, strict=False)
        ),
        after_seconds=_median_seconds(
            call.end_ns - max(event.end_ns for event in part)
            for part, call in zip(by_call, calls, strict=False)
        ),
    )


def _split_by_call(
    events: Sequence[KernelEvent], calls: Sequence[CallInterval]
) -> list[Sequence[KernelEvent]]:
    """The events within each call; empty if a call has none, or an event is in no call."""
    parts = [
        [
            event
            for event in events
            if call.start_ns <= event.start_ns and event.end_ns <= call.end_ns
        ]
        for call in calls
    ]
    return list(parts) if all(parts) and sum(map(len, parts)) == len(events) else []


def _median_seconds(values_ns: Iterable[float]) -> float | None:
    values = list(values_ns)
    return median(values) * 1e-9 if values else None


def split_steps(events: Sequence[KernelEvent], steps: int) -> list[Sequence[KernelEvent]]:
    """The events of each step: equal numbers if they divide, otherwise at the longest gaps."""
    if steps <= 1 or len(events) < steps:
        return [events] if events else []
    if len(events) % steps == 0:
        size = len(events) // steps
        parts = [events[start : start + size] for start in range(0, len(events), size)]
        names = [sorted(event.name for event in part) for part in parts]
        if all(part == names[0] for part in names):
            return parts
    gaps = sorted(
        range(1, len(events)),
        key=lambda index: events[index - 1].end_ns - events[index].start_ns,
    )
    cuts = [0, *sorted(gaps[: steps - 1]), len(events)]
    return [events[start:end] for start, end in itertools.pairwise(cuts)]


@dataclass(frozen=True, slots=True)
class ExpectedLaunch:
    """A launch that the schedule has.

    Attributes:
      kernel: the kernel's own name, if known.
      wrapped: what an async-start wraps, by whose name the profiler gives its kernel; otherwise the
        instruction.
    """

    instruction: str
    kernel: str
    wrapped: str


def expected_launches(plan: Plan) -> tuple[ExpectedLaunch, ...]:
    """The launches of a step in schedule order; a loop with unknown trip count counts as one trip.

    Kernel names are those of the thunk sequence if it has one thunk for each launch of the
    schedule, otherwise the instructions' own.
    """
    if plan.module is None or not plan.module.complete:
        return ()
    nodes = schedule_of(plan.module)
    kernel_of = {
        name: thunk.detail.partition(" ")[0] for name, thunk in thunks_of(plan, nodes).items()
    }
    launches: list[ExpectedLaunch] = []
    for site in itertools.islice(_launches(nodes), _MOST_LAUNCHES):
        kernel = kernel_of.get(site.name) or _NOT_IN_A_NAME.sub("_", site.name)
        launches.append(ExpectedLaunch(site.name, _without_number(kernel), site.inner.name))
    return tuple(launches)


def _without_number(kernel: str) -> str:
    return _CALL_NUMBER.sub("", kernel)


def _launches(nodes: Sequence[Node]) -> Iterator[Site]:
    """The kernels of a schedule, as often as loops repeat them."""
    for node in nodes:
        if isinstance(node, Site):
            yield node
        elif isinstance(node, LoopNode):
            once = node.condition if node.trips is None else ()
            yield from _launches(once)
            for _ in range(1 if node.trips is None else node.trips):
                yield from _launches(node.body)
        else:
            for branch in node.branches:
                yield from _launches(branch)


@dataclass(frozen=True)
class _JoinedStep:
    kernels: Mapping[str, tuple[int, float]]
    unmatched: Mapping[str, tuple[int, float]]
    by_name_ns: float
    by_order_ns: float


def _join_step(
    plan: Plan, expected: Sequence[ExpectedLaunch], events: Sequence[KernelEvent]
) -> _JoinedStep:
    instruction_by_op = {launch.wrapped: launch.instruction for launch in expected}
    instruction_by_op |= {launch.instruction: launch.instruction for launch in expected}
    position_of: list[int | None] = [None] * len(events)
    instruction_of: list[str | None] = [
        instruction_by_op.get(event.hlo_op or "") for event in events
    ]
    by_name = [index for index, name in enumerate(instruction_of) if name is not None]
    direct = {instruction_of[index] for index in by_name}
    left = [position for position, item in enumerate(expected) if item.instruction not in direct]
    _join_by_kernel_name(expected, events, left, instruction_of, position_of)
    _join_by_neighbours(expected, left, instruction_of, position_of)
    kernels: defaultdict[str, list[float]] = defaultdict(list)
    unmatched: defaultdict[str, list[float]] = defaultdict(list)
    for event, instruction in zip(events, instruction_of, strict=True):
        group = unmatched[event.name] if instruction is None else kernels[instruction]
        group.append(event.duration_ns)
    by_name_ns = sum(events[index].duration_ns for index in by_name)
    matched_ns = sum(sum(durations) for durations in kernels.values())
    return _JoinedStep(
        {name: (len(durations), sum(durations)) for name, durations in kernels.items()},
        {name: (len(durations), sum(durations)) for name, durations in unmatched.items()},
        by_name_ns,
        matched_ns - by_name_ns,
    )


def _join_by_kernel_name(
    expected: Sequence[ExpectedLaunch],
    events: Sequence[KernelEvent],
    left: Sequence[int],
    instruction_of: list[str | None],
    position_of: list[int | None],
) -> None:
    """Join events with the launches of the same kernel name, in order."""
    launches: defaultdict[str, list[int]] = defaultdict(list)
    for position in left:
        launches[expected[position].kernel].append(position)
    indices_of: defaultdict[str, list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        kernel = _without_number(event.name)
        if instruction_of[index] is None and kernel in launches:
            indices_of[kernel].append(index)
    for kernel, indices in indices_of.items():
        positions = launches[kernel]
        whole = len(indices) % len(positions) == 0
        for number, index in enumerate(indices if whole else indices[: len(positions)]):
            position = positions[number % len(positions)]
            position_of[index] = position
            instruction_of[index] = expected[position].instruction


def _join_by_neighbours(
    expected: Sequence[ExpectedLaunch],
    left: Sequence[int],
    instruction_of: list[str | None],
    position_of: Sequence[int | None],
) -> None:
    """Join the events between two that are joined by order with the launches between those two.

    Events joined by the instruction's name may be among them: those of another stream, or between
    two command buffers.
    """
    taken = {position for position in position_of if position is not None}
    free = [position for position in left if position not in taken]
    joined = [(index, at) for index, at in enumerate(position_of) if at is not None]
    edges = [(-1, -1), *joined, (len(position_of), len(expected))]
    for (start, before), (end, after) in itertools.pairwise(edges):
        indices = [index for index in range(start + 1, end) if instruction_of[index] is None]
        between = [position for position in free if before < position < after]
        for number, index in enumerate(indices):
            if between:
                # More kernels than launches: a library runs several kernels per call.
                share = number * len(between) // len(indices)
                position = between[number if len(indices) <= len(between) else share]
                instruction_of[index] = expected[position].instruction


def _medians(steps: Sequence[Mapping[str, tuple[int, float]]]) -> tuple[MeasuredKernel, ...]:
    names = Counter(name for step in steps for name in step)
    return tuple(
        MeasuredKernel(
            name,
            int(median(step.get(name, (0, 0.0))[0] for step in steps)),
            median(step.get(name, (0, 0.0))[1] for step in steps) * 1e-9,
        )
        for name in names
    )


def _span_ns(events: Sequence[KernelEvent]) -> float:
    return max(event.end_ns for event in events) - events[0].start_ns if events else 0.0


def _busy_ns(events: Sequence[KernelEvent]) -> float:
    busy, end = 0.0, float("-inf")
    for event in events:
        busy += max(0.0, event.end_ns - max(end, event.start_ns))
        end = max(end, event.end_ns)
    return busy
