"""Predicted locks: makes the tables of known results, and compares predictions with devices.

No GPU is needed: both start from the autotune locks in `hlo_dumps/`.

  python -m tests.gpu.predicted_locks goldens
      Writes `xlapipe/time/predicted_locks/tables/TARGET-jaxVERSION.jsonl` for the installed jaxlib,
      from goldens. What is there of a calibration's probes stays: products of int8, which no golden
      has. `TARGET.jsonl` is of jax 0.11.2, whose goldens are in git no longer.
  python -m tests.gpu.predicted_locks tuned FOLDER LOCK
      Adds to such a table what `tune_programs.py` wrote into a folder; LOCK is one of its device.
  python -m tests.gpu.predicted_locks evaluate [REGEX]
      For each golden with a lock, compiles without a lock, unless that is recorded, and with one
      that is predicted from other programs; writes `predicted_locks.json`. Its rows of programs of
      the time zoo stay as they are (docs/lab/what_left.md).
"""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.compile_program import fingerprint_text
from xlapipe.compile.job import Job
from xlapipe.compile.known_locks import about_lock, known_results
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.devices.targets.device import device_of_config
from xlapipe.devices.targets.target import Target
from xlapipe.dump.autotune_lock import LOCK, AutotuneLock, read_lock
from xlapipe.dump.readers import read_path
from xlapipe.errors import XlapipeError
from xlapipe.plans import Plan
from xlapipe.plans.gemms import Gemm
from xlapipe.time.cost import step_cost
from xlapipe.time.predict import predict
from xlapipe.time.predict.scaled_calibration import calibration_for
from xlapipe.time.predicted_locks.fingerprint import fingerprint
from xlapipe.time.predicted_locks.form import Form, form_of
from xlapipe.time.predicted_locks.instructions import tuned_instructions
from xlapipe.time.predicted_locks.known_results import (
    TABLES,
    KnownResult,
    KnownResults,
    results_of_lock,
)

ROOT = Path(__file__).resolve().parents[2]
JAXLIB = version("jaxlib")
RECORD = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class LockedProgram:
    """A program with a device's lock, and its tuned instructions."""

    path: Path
    lock: AutotuneLock
    job: Job
    instructions: tuple[str, ...]


def programs() -> Iterator[LockedProgram]:
    """The programs of the goldens with locks, the small ones first."""
    paths = sorted(
        ROOT.glob(f"hlo_dumps/*/*-jax{JAXLIB}/{LOCK}"), key=lambda path: path.stat().st_size
    )
    for path in paths:
        workload = path.parent.parent.name
        (job,) = jobs_of([workload], CompileSettings(tuning=path, use_cache=False))
        print(path.parent, flush=True)
        yield LockedProgram(path, read_lock(path), job, tuned_by_xla(job))


def tuned_by_xla(job: Job) -> tuple[str, ...]:
    """The tuned instructions of a program."""
    with compile_workload(replace(job, plan_only=True)) as compiled:
        files = sorted(compiled.dump_folder.glob("*.before_config_assignment.hlo.pb"))
        texts = [fingerprint_text(file.read_bytes()) for file in files]
    return tuned_instructions("\n".join(texts))


def _tables_of_goldens() -> dict[str, KnownResults]:
    """By target, of the installed jaxlib."""
    tables: dict[str, KnownResults] = {}
    for program in programs():
        lock = program.lock
        keys, results = results_of_lock(lock.results, program=lock.workload)
        known = tables.get(lock.target) or KnownResults(*keys, about_lock(lock), ())
        assert keys == (known.device, known.codegen), lock.target
        tables[lock.target] = known.with_results(_with_forms(results, program.instructions))
    return tables


def make_tables_of_goldens() -> None:
    for target, known in _tables_of_goldens().items():
        path = TABLES / f"{target}-jax{JAXLIB}.jsonl"
        earlier = KnownResults.read(path).results if path.exists() else ()
        others = ("calibration/", _TUNED, "steps/")
        kept = (row for row in earlier if row.programs[0].startswith(others))
        path.write_text(known.with_results(kept).lines, encoding="utf-8")


_TUNED = "tune_programs"


def add_tuned(folder: Path, lock: AutotuneLock) -> None:
    """Adds the products and convolutions of `tune_programs.py` to a table."""
    keys, _ = results_of_lock(lock.results, program=_TUNED)  # options of XLA are in its own key
    _, results = results_of_lock((folder / "results.pbtxt").read_text(), program=_TUNED)
    chosen = {row.fingerprint: row for row in results}
    rows = {}
    for line in (folder / "tuned.jsonl").read_text().splitlines():
        item = json.loads(line)
        row, best = chosen.get(item["fingerprint"]), item["best"]
        if row is None:
            continue
        own = best.get(row.backend, [None])[0]
        others = [seconds for name, (seconds, _) in best.items() if name != row.backend]
        margin = round(math.log2(min(others) / own), 2) if own and others else None
        form = Form(**{**item["form"], "dimensions": tuple(item["form"]["dimensions"])})
        rows[form] = replace(row, fingerprint="", form=form, margin=margin)
    path = TABLES / f"{lock.target}-jax{lock.versions['jaxlib']}.jsonl"
    known = KnownResults(*keys, about_lock(lock), ())
    if path.exists():
        known = KnownResults.read(path)
        kept = tuple(row for row in known.results if row.programs != (_TUNED,))
        known = replace(known, results=kept)
    path.write_text(known.with_results(rows.values()).lines, encoding="utf-8")
    print(f"{path.name}: {len(rows)} instructions of {_TUNED}.py")


def _with_forms(
    results: Sequence[KnownResult], instructions: Sequence[str]
) -> Iterator[KnownResult]:
    """The results of the program's own instructions; a file may have those of several programs."""
    forms = {fingerprint(text): form_of(text) for text in instructions}
    for row in results:
        if row.fingerprint in forms:
            yield replace(row, form=forms[row.fingerprint])


@dataclass(frozen=True)
class Case:
    """A program whose plan on the device is known, and from which results the lock is predicted.

    Attributes:
      group: programs whose names start so are left out of what is known.
    """

    name: str
    job: Job
    plan: Plan
    group: str


def cases(pattern: str) -> Iterator[Case]:
    """The goldens with locks whose names match."""
    for path in sorted(ROOT.glob(f"hlo_dumps/*/*-jax{JAXLIB}/{LOCK}")):
        workload, device = path.parts[-3], path.parts[-2].partition("-auto")[0]
        if re.search(pattern, name := f"{workload}@{device}"):
            (job,) = jobs_of([workload], CompileSettings(tuning=path, use_cache=False))
            yield Case(name, replace(job, lock=None), read_path(path.parent), workload)


def evaluate(pattern: str) -> None:
    rows = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}

    def one(case: Case) -> None:
        try:
            rows[case.name] = _row(case, rows.get(case.name, {}).get("untuned"))
        except XlapipeError as error:
            print(f"{case.name}: {error}", flush=True)
            return
        print(case.name, json.dumps(rows[case.name]), flush=True)
        text = json.dumps(dict(sorted(rows.items())), indent=1)
        RECORD.write_text(text + "\n", encoding="utf-8")

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(one, case) for case in cases(pattern)]:
            future.result()


def _row(case: Case, untuned: Mapping[str, Any] | None) -> dict[str, Any]:
    """The row of a program.

    Args:
      untuned: figures of its untuned plan; None to compile it.
    """
    target = case.job.target
    assert target is not None
    known, _ = known_results_of(target.name)
    for name in {name for row in known.results for name in row.programs}:
        if name.startswith(case.group):
            known = known.without(name)
    if untuned is None:
        untuned, _ = _compiled(case.job)
    predicted, plan = _compiled(replace(case.job, known_results=known))
    totals = case.plan.totals
    return {
        "device": {
            "total_bytes": totals.total_allocation_bytes - totals.thread_local_bytes,
            "temp_bytes": totals.temp_bytes,
            "predicted_seconds": _seconds(case.plan, target),
        },
        "untuned": untuned,
        "predicted": predicted,
        "products": _products_right(case, plan),
    }


def known_results_of(target: str) -> tuple[KnownResults, Target]:
    known = known_results(target, "auto")
    assert known is not None
    return known


def _compiled(job: Job) -> tuple[dict[str, Any], Plan]:
    with compile_workload(replace(job, plan_only=True)) as compiled:
        plan, record = read_path(compiled.dump_folder), compiled.record
    totals = plan.totals
    assert job.target is not None
    figures = {
        "total_bytes": totals.total_allocation_bytes - totals.thread_local_bytes,
        "temp_bytes": totals.temp_bytes,
        "predicted_seconds": _seconds(plan, job.target),
        "compile_seconds": round(record.seconds["compile"], 2),
    }
    basis = {} if record.predicted_lock is None else {"basis": dict(record.predicted_lock)}
    return {**figures, **basis}, plan


def _seconds(plan: Plan, target: Target) -> float | None:
    device = device_of_config(target.config_text)
    calibration = calibration_for(device) if device is not None else None
    cost = step_cost(plan, device)
    if calibration is None or cost is None:
        return None
    return predict(plan, cost, calibration).span_seconds


def _products_right(case: Case, plan: Plan) -> dict[str, Any]:
    """The products of the device by backend, of the device and as predicted."""
    predicted: dict[object, Counter[str]] = defaultdict(Counter)
    for gemm in plan.gemms:
        predicted[_key(gemm)][str(gemm.backend)] += 1
    confusion: Counter[str] = Counter()
    for gemm in case.plan.gemms:
        own, backends = str(gemm.backend), predicted[_key(gemm)]
        backend = own if backends[own] else next(iter(+backends), "none")
        backends[backend] -= 1
        confusion[f"{own} {backend}"] += 1
    # Rows of the time zoo have measured seconds of products too; of goldens there are none.
    return {"confusion": dict(sorted(confusion.items())), "seconds": {"right": 0.0, "all": 0.0}}


def _key(gemm: Gemm) -> object:
    sizes = sorted(prod(shape.dims) for shape in gemm.shapes[:2])
    return gemm.op_name, *sizes


def main(command: str = "evaluate", pattern: str = "", lock: str = "") -> None:
    commands = {
        "evaluate": lambda: evaluate(pattern),
        "goldens": make_tables_of_goldens,
        "tuned": lambda: add_tuned(Path(pattern), read_lock(Path(lock))),
    }
    commands[command]()


if __name__ == "__main__":
    main(*sys.argv[1:])
