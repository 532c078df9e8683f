"""What makes a step on a TPU slow, by source line: waits, padding, copies, loops, recomputation."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from xlapipe.plans.phases import is_recomputed
from xlapipe.time.cost.kernel import Kernel
from xlapipe.time.predict.prediction import PredictedKernel
from xlapipe.time.predict.scheduled.operation import Operations

# Share of the step's time from which a loss is listed, and how many are.
_LEAST_SHARE, _MOST = 0.02, 8
_COPIES = frozenset({"copy", "transpose"})
WAITS = {
    "HBM": ("the cores wait for a prefetch from HBM", "start it earlier, or fuse what reads it"),
    "links": (
        "the cores wait for a collective",
        "overlap it: more work between its start and its use, or fewer bytes by another sharding",
    ),
    "slices": (
        "the cores wait for a collective between slices",
        "overlap it: more work between its start and its use, or a sharding that sends less there",
    ),
    "host": (
        "the cores wait for a transfer from the host",
        "keep the array on the device, or compute it again",
    ),
    "to host": (
        "the cores wait for a transfer to the host",
        "keep the array on the device, or compute it again",
    ),
}


@dataclass(frozen=True)
class SerialLoop:
    """A loop whose trips wait for each other.

    Attributes:
      kernel: one of its body, for the line.
      start_seconds: of all its trips, in which nothing but the first bytes is awaited.
    """

    kernel: str
    trips: int
    start_seconds: float


def losses(
    seconds: float,
    kernels: tuple[PredictedKernel, ...],
    kernel_of: Mapping[str, Kernel],
    waits: Mapping[tuple[str, str], float],
    loops: list[SerialLoop],
    operations: Callable[[Kernel], Operations],
) -> Iterator[str]:
    """Sentences, the largest loss first."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for (queue, name), lost in waits.items():
        found[" at ".join((WAITS[queue][0], _line(kernel_of[name]))), WAITS[queue][1]] += lost
    again: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        one = kernel_of[kernel.name]
        line = _line(one)
        if is_recomputed(one.cost.op_name or "") and not (one.cost.asynchronous or one.wire_bytes):
            again[line] += kernel.seconds
        done = operations(one)
        first = kernel.launch.parts[0].reason if kernel.launch.parts else ""
        if done.flops > 1.05 * done.unpadded_flops > 0 and "TFLOP/s" in first:
            text = f"products at {line} compute what pads the tiles of the matrix unit"
            fix = "sizes that are multiples of its side, e.g. a head of 128 or 256"
            found[text, fix] += kernel.seconds * (1 - done.unpadded_flops / done.flops)
        elif one.cost.kind in _COPIES and not one.cost.asynchronous and kernel.work.kind in _COPIES:
            fix = "the layout that the next operation reads, e.g. by the order of axes in einsum"
            found[f"copies to another layout at {line}", fix] += kernel.seconds
    for loop in loops:
        text = (
            f"a loop of {loop.trips:,} trips at {_line(kernel_of[loop.kernel])} whose operations "
            "are so short that they wait for their first bytes"
        )
        fix = "more work a trip: larger blocks, jax.vmap, or unroll"
        found[text, fix] += loop.start_seconds
    if again:
        text = "the backward pass computes values of the forward pass again (jax.checkpoint), most"
        fix = "a policy that saves what takes longest, e.g. jax.checkpoint_policies.dots_saveable"
        found[f"{text} at {max(again, key=lambda line: again[line])}", fix] += sum(again.values())
    largest = sorted(found.items(), key=lambda item: -item[1])[:_MOST]
    for (text, fix), lost in largest:
        if lost >= _LEAST_SHARE * seconds:
            yield f"{lost / seconds:.0%} of the time, {lost * 1e6:,.1f} µs: {text}; {fix}"


def _line(kernel: Kernel) -> str:
    return str(kernel.cost.source) if kernel.cost.source is not None else kernel.name
