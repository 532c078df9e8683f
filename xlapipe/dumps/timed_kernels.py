"""Times of kernels that ran before, from the time records of dumps."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from xlapipe.cost.fingerprint import fingerprint
from xlapipe.cost.schedule import schedule_of
from xlapipe.dumps.opened import open_path
from xlapipe.dumps.time_record import TIME_RECORD
from xlapipe.errors import DumpError
from xlapipe.predict.launches import sites_of


def timed_kernels(folder: Path, device: str) -> Mapping[str, float]:
    """Seconds of a launch by fingerprint, of every time record below a folder.

    Args:
      device: description of the GPU; records of others are passed over.

    Raises:
      DumpError: there is no time record of this GPU, or one of them or its dump is damaged.
    """
    seconds: dict[str, list[float]] = {}
    for path in sorted(folder.rglob(TIME_RECORD)):
        for key, value in _of(path.parent, device):
            seconds.setdefault(key, []).append(value)
    if not seconds:
        raise DumpError(
            f"{folder}: expected dumps with a {TIME_RECORD} of {device}, found none; fix: make one "
            "with `xlapipe run DIR --profile --record DUMP` on that GPU"
        )
    return {key: median(values) for key, values in seconds.items()}


def _of(folder: Path, device: str) -> Iterator[tuple[str, float]]:
    opened = open_path(folder)
    record, cost, module = opened.time_record, opened.step_cost, opened.plan.module
    dump = opened.dump
    if record is None or cost is None or module is None or dump is None:
        return
    if dump.manifest.target_description != device:
        return
    if cost.traffic_at_most_bytes is None:
        return  # a loop's trips are unknown, and so the launches that the seconds are of
    launches = {kernel.name: kernel.launches for kernel in cost.kernels}
    for site in sites_of(schedule_of(module)):
        name = site.instruction.name
        seconds = record.seconds_of.get(name)
        if seconds and launches.get(name):
            yield fingerprint(site, module), seconds / launches[name]
