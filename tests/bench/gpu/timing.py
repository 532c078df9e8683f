"""How a side of a GPU benchmark times its cases. Imports no framework: sides differ in theirs.

A side is a module of this folder. It is run in a process of its own and prints JSON:

    if __name__ == "__main__":
        print_timings(framework="jax 0.11.2", device="NVIDIA H200", timings=[...])
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

SAMPLES = 15
SAMPLE_SECONDS = 0.02
# Gemms without a pause draw so much power that an H200 lowers its clock after some 50 ms, and the
# first samples of a run would be faster than the last.
PAUSE_SECONDS = 0.1
WARM_UP_CALLS = 5
# Of a sample, so that the wait at its end is little of it; fewer where they would last longer
# than a sample should.
FEWEST_CALLS = 10
LONGEST_SAMPLE_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One way of computing one case.

    Attributes:
      case: what is computed; equal names of different sides are compared.
      variant: how.
      median_seconds: of one call, or of one of its parts, over samples of `calls` calls each.
      least_seconds, most_seconds: the same in the fastest and the slowest sample.
      least_bytes: every input read once and every output written once; None where not counted.
      moved_bytes: what the compiler counts that its kernels read and write; None where unknown.
    """

    case: str
    variant: str
    median_seconds: float
    least_seconds: float
    most_seconds: float
    calls: int
    least_bytes: int | None = None
    moved_bytes: int | None = None


def timed(
    case: str,
    variant: str,
    call: Callable[[int], Any],
    wait: Callable[[Any], object],
    *,
    parts: int = 1,
    calls: int | None = None,
    least_bytes: int | None = None,
    moved_bytes: int | None = None,
) -> Timing:
    """Times `call`, many calls in a row and the device waited for at the end of them.

    What the host needs per call shows only where the device needs less.

    Args:
      call: starts the work number i and returns what to wait for. Inputs rotate with i where one
        set of them would stay in the GPU's L2 cache from call to call.
      parts: equal parts that a call consists of, such as tokens; seconds and bytes are of one.
      calls: in a sample; None for as many as fill one. Where several processes take part, all
        must make the same calls.
      wait: returns when the device has done that work and all before it.
    """
    for number in range(WARM_UP_CALLS):
        wait(call(number))
    if calls is None:
        # As many calls as fill a sample, from a trial that hides the wait as a sample does.
        fewest = max(1, min(FEWEST_CALLS, int(LONGEST_SAMPLE_SECONDS / _seconds(call, wait, 1))))
        trial = _seconds(call, wait, fewest) / fewest
        calls = max(fewest, min(20_000, round(SAMPLE_SECONDS / trial)))
    samples = []
    for _ in range(SAMPLES):
        time.sleep(PAUSE_SECONDS)
        samples.append(_seconds(call, wait, calls) / calls / parts)
    return Timing(
        case=case,
        variant=variant,
        median_seconds=median(samples),
        least_seconds=min(samples),
        most_seconds=max(samples),
        calls=calls,
        least_bytes=least_bytes,
        moved_bytes=moved_bytes,
    )


def _seconds(call: Callable[[int], Any], wait: Callable[[Any], object], calls: int) -> float:
    started = time.perf_counter()
    last = None
    for number in range(calls):
        last = call(number)
    wait(last)
    return time.perf_counter() - started


def print_timings(*, framework: str, device: str, timings: Iterable[Timing]) -> None:
    """Prints what `compare.py` reads: a line with all timings so far, whenever there is another.

    A side that is stopped has then told what it had.
    """
    found: list[dict[str, Any]] = []
    for timing in timings:
        found.append(asdict(timing))
        line = json.dumps({"framework": framework, "device": device, "timings": found})
        print(line, flush=True)
