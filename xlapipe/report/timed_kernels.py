"""Times of kernels that ran before, from the time records of dumps and from XLA's tuner."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from xlapipe.devices.targets.catalogue import is_same_device
from xlapipe.dump.dump import Dump, open_dump
from xlapipe.dump.manifest import TUNING_TIMES
from xlapipe.dump.time_record import TIME_RECORD
from xlapipe.dump.tuning_times import read_tuning_times
from xlapipe.errors import DumpError
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.time.cost.fingerprint import fingerprint
from xlapipe.time.cost.schedule import schedule_of, sites_of

# What two small kernels took longer by the tuner's events than by the profiler, on an H200.
_EVENT_SECONDS = 2.2e-6
_SHORTEST_SECONDS = 3 * _EVENT_SECONDS


def timed_kernels(folder: Path, device: str) -> Mapping[str, float]:
    """Seconds of a launch by fingerprint, of every dump below a folder.

    Times of the tuner count only for kernels that no time record has, and that take several
    microseconds: it measures with events, which the profiler does without.
    """
    tuned: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for path in sorted(folder.rglob(TUNING_TIMES)):
        for key, value in _tuned(path.parent, device):
            tuned.setdefault(key, []).append(value)
    for path in sorted(folder.rglob(TIME_RECORD)):
        for key, value in _of(path.parent, device):
            seconds.setdefault(key, []).append(value)
    seconds = {**tuned, **seconds}
    if not seconds:
        raise DumpError(
            f"{folder}: expected dumps with a {TIME_RECORD} or {TUNING_TIMES} of {device}, found "
            "none; fix: make one with `xlapipe run DIR --profile --record DUMP` or `xlapipe dump "
            "--target attached --tuning tune` on that GPU"
        )
    return {key: median(values) for key, values in seconds.items()}


def _is_of(dump: Dump, device: str) -> bool:
    return is_same_device(dump.manifest.target_description, device)


def _tuned(folder: Path, device: str) -> Iterator[tuple[str, float]]:
    """Seconds of the kernels that still have the name and shape with which they were tuned."""
    dump = open_dump(folder)
    module = dump.plan.module
    if module is None or not _is_of(dump, device):
        return
    seconds_of = {(item.name, item.shape): item.seconds for item in read_tuning_times(folder)}
    for site in sites_of(schedule_of(module)):
        seconds = seconds_of.get((site.instruction.name, site.instruction.shape.text))
        if seconds is not None and seconds > _SHORTEST_SECONDS:
            yield fingerprint(site, module), seconds - _EVENT_SECONDS


def _of(folder: Path, device: str) -> Iterator[tuple[str, float]]:
    dump = open_dump(folder)
    subject = XlaSubject(dump)
    record, cost, module = subject.time_record, subject.step_cost, dump.plan.module
    if record is None or cost is None or module is None or not _is_of(dump, device):
        return
    if cost.traffic_at_most_bytes is None:
        return  # a loop's trips are unknown, and so the launches that the seconds are of
    launches = {kernel.name: kernel.launches for kernel in cost.kernels}
    for site in sites_of(schedule_of(module)):
        name = site.instruction.name
        seconds = record.seconds_of.get(name)
        if seconds and launches.get(name):
            yield fingerprint(site, module), seconds / launches[name]
