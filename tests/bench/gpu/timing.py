"""Times the cases of a side of a GPU benchmark. Imports no framework: each side has its own.

A side is a module of this folder. It runs in a separate process and prints JSON:

    if __name__ == "__main__":
        print_timings(framework="jax 0.11.2", device="NVIDIA H200", timings=[...])
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from xlapipe.devices.environment.machine import Machine

# The number of samples of each timing.
SAMPLES_VARIABLE = "BENCH_SAMPLES"
SAMPLES = int(os.environ.get(SAMPLES_VARIABLE, "15"))
SAMPLE_SECONDS = 0.02
# Pause between samples. Continuous gemms draw so much power that an H200 lowers its clock after
# about 50 ms, which would make the first samples faster than the last.
PAUSE_SECONDS = 0.1
WARM_UP_CALLS = 5
# Total size of the sets of inputs that rotate: larger than any L2 cache.
ROTATED_BYTES = 256 * 2**20
# Minimum calls per sample, so that the final wait is a small part of it; fewer if that takes longer
# than MAX_SAMPLE_SECONDS.
MIN_CALLS = 10
MAX_SAMPLE_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The timing of one variant of a case.

    Attributes:
      case: what is computed; cases with the same name are compared between sides.
      variant: how it is computed.
      median_seconds: median time of a call, or of one of its parts, over samples of `calls` calls.
      least_seconds, most_seconds: time in the fastest and in the slowest sample.
      least_bytes: traffic if each input is read once and each output written once; None if unknown.
      moved_bytes: bytes that kernels read and write, as counted by the compiler; None if unknown.
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
    samples: int = SAMPLES,
    least_bytes: int | None = None,
    moved_bytes: int | None = None,
) -> Timing:
    """Times samples of consecutive calls, each with one wait for the device at its end.

    The host's time per call matters only if it is longer than the device's.

    Args:
      call: starts call number i and returns the value to wait for. Inputs should rotate with i if
        one set of them would stay in the GPU's L2 cache.
      wait: returns when the device has finished that call and all calls before it.
      parts: number of equal parts of a call, such as tokens; seconds and bytes are for one part.
      calls: calls per sample; None chooses it from SAMPLE_SECONDS. If several processes take part,
        all must make the same number of calls.
      samples: number of samples; their median is reported.
    """
    for number in range(WARM_UP_CALLS):
        wait(call(number))
    if calls is None:
        # Estimates the time of a call from a trial with several calls and one wait.
        min_calls = max(1, min(MIN_CALLS, int(MAX_SAMPLE_SECONDS / _seconds(call, wait, 1))))
        call_seconds = _seconds(call, wait, min_calls) / min_calls
        calls = max(min_calls, min(20_000, round(SAMPLE_SECONDS / call_seconds)))
    seconds = []
    for _ in range(samples):
        time.sleep(PAUSE_SECONDS)
        seconds.append(_seconds(call, wait, calls) / calls / parts)
    return Timing(
        case=case,
        variant=variant,
        median_seconds=median(seconds),
        least_seconds=min(seconds),
        most_seconds=max(seconds),
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
    """Prints a line for `compare.py` after each timing, with all timings so far.

    `compare.py` reads the last line, also of a side that was stopped.
    """
    finished: list[dict[str, Any]] = []
    about = {"framework": framework, "device": device, "driver": driver_version()}
    for timing in timings:
        finished.append(asdict(timing))
        print(json.dumps({**about, "timings": finished}), flush=True)


def driver_version() -> str | None:
    """The version of the first GPU's driver; None if nvidia-smi does not report it."""
    gpu = Machine.local().gpu()
    return None if gpu is None else gpu.driver_version
