"""Predicted locks: makes the tables of known results, and compares predictions with devices.

No GPU is needed: both start from the autotune locks in `hlo_dumps/`.

  python -m tests.gpu.predicted_locks tables
      Writes `xlapipe/predicted_locks/tables/TARGET.jsonl`.
  python -m tests.gpu.predicted_locks evaluate [WORKLOAD…]
      For each lock, predicts it from the locks of other programs, and from those of other families
      of programs; compiles without a lock, with both predictions, and with the device's lock; and
      writes `predicted_locks.json`.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xlapipe.compiling.child_process import compile_workload
from xlapipe.compiling.job import Job
from xlapipe.compiling.known_locks import about_lock, known_results
from xlapipe.compiling.make_jobs import CompileOptions, jobs_of
from xlapipe.compiling.module_text import fingerprint_text
from xlapipe.dumps.autotune_lock import LOCK, AutotuneLock, read_lock
from xlapipe.predicted_locks.fingerprint import fingerprint
from xlapipe.predicted_locks.form import Form, form_of
from xlapipe.predicted_locks.instructions import tuned_instructions
from xlapipe.predicted_locks.known_results import TABLES, KnownResults, results_of_lock
from xlapipe.predicted_locks.predict import predict_lock
from xlapipe.sizing.planned_memory import planned_memory

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_suffix(".json")
_LEFT_OUT = ("program", "family")


@dataclass(frozen=True)
class LockedProgram:
    """A program with a device's lock, and its tuned instructions."""

    path: Path
    lock: AutotuneLock
    job: Job
    instructions: tuple[str, ...]

    @property
    def forms(self) -> dict[str | None, Form]:
        return {fingerprint(text): form_of(text) for text in self.instructions}


def programs(names: Sequence[str] = ()) -> Iterator[LockedProgram]:
    """The programs of the goldens with locks, the small ones first."""
    paths = sorted(ROOT.glob(f"hlo_dumps/*/*/{LOCK}"), key=lambda path: path.stat().st_size)
    for path in paths:
        workload = path.parent.parent.name
        if names and workload not in names:
            continue
        (job,) = jobs_of([workload], CompileOptions(autotune_lock=path, use_cache=False))
        with compile_workload(replace(job, plan_only=True)) as compiled:
            files = sorted(compiled.dump_folder.glob("*.before_config_assignment.hlo.pb"))
            texts = [fingerprint_text(file.read_bytes()) for file in files]
        print(path.parent, flush=True)
        yield LockedProgram(path, read_lock(path), job, tuned_instructions("\n".join(texts)))


def make_tables() -> None:
    tables: dict[str, KnownResults] = {}
    for program in programs():
        lock = program.lock
        keys, results = results_of_lock(lock.results, program=lock.workload)
        known = tables.get(lock.target) or KnownResults(*keys, about_lock(lock), ())
        assert keys == (known.device, known.codegen), lock.target
        forms = program.forms
        rows = (replace(row, form=forms.get(row.fingerprint)) for row in results)
        tables[lock.target] = known.with_results(rows)
    for target, known in tables.items():
        (TABLES / f"{target}.jsonl").write_text(known.to_lines(), encoding="utf-8")


def family(program: str) -> str:
    return program.partition("-")[0]


def evaluate(names: Sequence[str]) -> None:
    rows = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    done = {(row["program"], row["device"]) for row in rows}
    for program in programs(names):
        row = _row(program)
        if (row["program"], row["device"]) in done:
            rows = [
                old
                for old in rows
                if (old["program"], old["device"]) != (row["program"], row["device"])
            ]
        rows.append(row)
        print(json.dumps(row), flush=True)
        ordered = sorted(rows, key=lambda row: (row["program"], row["device"]))
        RECORD.write_text(json.dumps({"rows": ordered}, indent=1) + "\n", encoding="utf-8")


def _row(program: LockedProgram) -> dict[str, Any]:
    lock, job = program.lock, replace(program.job, cache_folder=None)
    known, _ = known_results(lock.target, lock.gemm_policy)
    without = known.without(lock.workload)
    others = {name for row in known.results for name in row.programs}
    unrelated = without
    for name in others:
        if family(name) == family(lock.workload):
            unrelated = unrelated.without(name)
    untuned = replace(job, lock=None)
    row: dict[str, Any] = {
        "program": lock.workload,
        "device": program.path.parent.name.partition("-auto")[0],
        "known_lock": _plan(job),
        "untuned": _plan(untuned),
    }
    truth = {
        result.fingerprint: result
        for result in results_of_lock(lock.results, program=lock.workload)[1]
    }
    for left_out, table in zip(_LEFT_OUT, (without, unrelated), strict=True):
        predicted = predict_lock(program.instructions, table)
        confusion: Counter[str] = Counter()
        seconds = {"right": 0.0, "all": 0.0}
        for key, form in program.forms.items():
            if key not in truth:
                continue
            chosen = predicted.chosen.get(key)
            backend = chosen.backend if chosen is not None else "default"
            confusion[f"{truth[key].backend} {backend}"] += 1
            if form.kind.startswith("dot "):
                floor = _floor_seconds(form.dimensions)
                seconds["all"] += floor
                seconds["right"] += floor * (backend == truth[key].backend)
        row[f"without_{left_out}"] = {
            **_plan(replace(untuned, known_results=table)),
            "basis": dict(predicted.basis),
            "confusion": dict(sorted(confusion.items())),
            "product_floor_seconds": seconds,
        }
    return row


def _floor_seconds(dimensions: tuple[int, ...]) -> float:
    """The least time of a product on an H200 in bfloat16, which weights the choices."""
    batch, m, n, k = dimensions
    return batch * max(2 * m * n * k / 989e12, 2 * (m * n + n * k + m * k) / 4.8e12)


def _plan(job: Job) -> dict[str, Any]:
    memory, _ = planned_memory(job, None, whole=False, with_floors=False, with_times=True)
    return {
        "total_bytes": memory.total_bytes,
        "temp_bytes": memory.temp_bytes,
        "predicted_seconds": memory.predicted.seconds if memory.predicted is not None else None,
        "compile_seconds": memory.seconds["compile"],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["tables"]:
        make_tables()
    else:
        evaluate(sys.argv[2:])
