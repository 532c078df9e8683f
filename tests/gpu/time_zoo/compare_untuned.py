"""Compares predictions of plans without a lock with the time records of the tuned goldens.

    python -m tests.gpu.time_zoo.compare_untuned [REGEX]

Compiles each golden of an H200 with a time record twice, without a GPU: untuned, and with a lock
that is predicted from other programs, whose names do not begin with the golden's. Prints the errors
of the sum over the kernels and of the span, also of the tuned plan.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.job import Job
from xlapipe.compile.known_locks import known_results
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.devices.targets.device import device_of_target
from xlapipe.dump.autotune_lock import LOCK
from xlapipe.dump.readers import read_path
from xlapipe.inductor.open_path import open_path
from xlapipe.plans import Plan
from xlapipe.time.cost import step_cost
from xlapipe.time.predict import predict
from xlapipe.time.predict.calibration import shipped_calibration

DUMPS = Path(__file__).resolve().parents[3] / "hlo_dumps"


def predicted_seconds(plan: Plan) -> tuple[float, float]:
    """The sum over the kernels, and the span."""
    cost, calibration = step_cost(plan, device_of_target("h200")), shipped_calibration("h200")
    assert cost is not None
    assert calibration is not None
    prediction = predict(plan, cost, calibration)
    return prediction.kernel_seconds, prediction.seconds


def plan_of(job: Job) -> Plan:
    with compile_workload(replace(job, plan_only=True)) as compiled:
        return read_path(compiled.dump_folder)


def plans_of(folder: Path, workload: str) -> dict[str, Plan]:
    """The plans of a golden: untuned, with a predicted lock, and tuned."""
    (locked,) = jobs_of([workload], CompileSettings(tuning=folder / LOCK, use_cache=False))
    job = replace(locked, lock=None)
    both = known_results("h200", "auto")
    assert both is not None
    known, _ = both
    for program in {name for result in known.results for name in result.programs}:
        if program.startswith(workload):
            known = known.without(program)
    return {
        "untuned": plan_of(job),
        "predicted lock": plan_of(replace(job, known_results=known)),
        "tuned": read_path(folder),
    }


def main(pattern: str = "") -> None:
    errors: dict[str, list[tuple[float, float]]] = {}
    for record in sorted(DUMPS.glob("*/h200-auto-tuned-*/time_record.json")):
        workload = record.parent.parent.name
        # What these Pallas kernels read is stated in the manifest, which a plan does not have.
        if workload == "qwen3-generate-persistent" or not re.search(pattern, workload):
            continue
        time_record = open_path(record.parent).time_record
        assert time_record is not None
        measured = sum(time_record.seconds_of.values()), time_record.measured.span_seconds
        for kind, plan in plans_of(record.parent, workload).items():
            kernels, span = (
                p / m - 1 for p, m in zip(predicted_seconds(plan), measured, strict=True)
            )
            errors.setdefault(kind, []).append((kernels, span))
            print(f"{workload}, {kind}: kernels {kernels:+.1%}, span {span:+.1%}", flush=True)
    for kind, pairs in errors.items():
        kernels, span = (mean(abs(pair[part]) for pair in pairs) for part in (0, 1))
        print(f"{len(pairs)} {kind}: kernels {kernels:.1%}, span {span:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
