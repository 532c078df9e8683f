"""The first day: programs that a GPU timed, compiled without a lock beside the device's plans.

    python -m tests.gpu.first_day RECORD MODULE.py OUT.json    # needs the jax of the record

RECORD is one of `time_zoo/records`, MODULE.py the programs that it is of. Each is compiled without
a lock, by what is known, and predicted; OUT.json gets a row per program, with the plan and the
prediction of the device's own results, which are in the record. `tests/figures.py` prints it.
"""

import json
import runpy
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax

from xlapipe import Workload
from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.tuning import Tuned
from xlapipe.devices.targets.device import device_of_target
from xlapipe.dump.readers import read_path
from xlapipe.errors import XlapipeError
from xlapipe.plans import Plan
from xlapipe.run.calibration.record import read_record
from xlapipe.time.predict.prediction import Prediction
from xlapipe.time.predicted_locks.plan_error import other_plan, plan_error_bytes
from xlapipe.time.study import Study

_ROW = "tests.gpu.first_day:workload"
TARGET = "h200"


@cache
def _programs(module: str) -> Mapping[str, Any]:
    programs: Mapping[str, Any] = runpy.run_path(module)["programs"]()
    return programs


def workload(module: str, name: str) -> Workload:
    """A program of a zoo as a workload."""
    program = _programs(module)[name]
    donated = (0,) if program.carried else ()
    label = name.replace("/", "-").replace("_", "-")
    return Workload(name=label, fn=program.fn, args=program.structs(), donate_argnums=donated)


def rows(record: Path, module: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each program's row; times in seconds, memory in bytes."""
    device = device_of_target(TARGET)
    _, profiles = read_record(record)
    for profile in profiles:
        reference = f"{_ROW}(module={str(module.resolve())!r}, name={profile.name!r})"
        settings = CompileSettings(target=TARGET, tuning=Tuned.AUTO, use_cache=False)
        (job,) = jobs_of([reference], settings)
        try:
            with compile_workload(job) as compiled:
                facts = compiled.record
                plan = facts.in_plan(read_path(compiled.dump_folder))
        except XlapipeError as error:
            print(f"{profile.name}: {error!s:.300}", flush=True)
            continue
        own = Study(profile.plan, device).prediction
        without = Study(plan, device, predicted_lock=facts.predicted_lock).prediction
        other = other_plan(plan, facts.other_choice)
        error = plan_error_bytes(plan, tuned=False, predicted_lock=facts.predicted_lock)
        yield (
            profile.name,
            {
                "measured": {
                    "total_bytes": _total(profile.plan),
                    "kernel_seconds": profile.times.kernel_seconds,
                    "step_seconds": profile.times.step_seconds,
                },
                "with": _figures(own),
                "without": {
                    **_figures(without),
                    "total_bytes": _total(plan),
                    "error_bytes": error,
                    "other": other and [other.chance, other.more_bytes],
                    "basis": facts.predicted_lock,
                },
            },
        )


def _total(plan: Plan) -> int:
    return plan.totals.total_allocation_bytes - plan.totals.thread_local_bytes


def _figures(prediction: Prediction | None) -> dict[str, Any]:
    assert prediction is not None
    return {
        "kernel_seconds": prediction.kernel_seconds,
        "step_seconds": prediction.step_seconds,
        "interval": [prediction.low_seconds, prediction.high_seconds],
    }


def main(record: str, module: str, out: str) -> None:
    about, _ = read_record(Path(record))
    assert about.versions["jax"] == jax.__version__, "install the jax of the record"
    own = {"jax": jax.__version__, "device": about.device, "driver": about.driver}
    programs = {}
    for name, row in rows(Path(record), Path(module)):
        programs[name] = row
        text = json.dumps({**own, "date": about.date, "programs": programs}, indent=1)
        Path(out).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
