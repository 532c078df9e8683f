"""Predicted locks: makes the tables of known results, and compares predictions with devices.

No GPU is needed: both start from the autotune locks in `hlo_dumps/`.

  python -m tests.gpu.predicted_locks tables
      Writes `xlapipe/predicted_locks/tables/TARGET.jsonl`.
  python -m tests.gpu.predicted_locks evaluate [WORKLOAD…]
      For each lock, predicts it from the locks of other programs, and from those of other families
      of programs; compiles without a lock, with both predictions, and with the device's lock; and
      writes `predicted_locks.json`.
"""

import gzip
import json
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod, sqrt
from pathlib import Path
from typing import Any

from tests.gpu.fidelity.record import references
from xlapipe.compiling.child_process import compile_workload
from xlapipe.compiling.job import Job
from xlapipe.compiling.known_locks import about_lock, known_results
from xlapipe.compiling.make_jobs import CompileOptions, jobs_of
from xlapipe.compiling.module_text import fingerprint_text
from xlapipe.dumps.autotune_lock import ANY_WORKLOAD, LOCK, AutotuneLock, read_lock
from xlapipe.errors import XlapipeError
from xlapipe.plans import Plan
from xlapipe.predicted_locks.fingerprint import fingerprint
from xlapipe.predicted_locks.form import Form, form_of
from xlapipe.predicted_locks.instructions import chosen_algorithms, tuned_instructions
from xlapipe.predicted_locks.known_results import (
    TABLES,
    KnownResult,
    KnownResults,
    results_of_lock,
)
from xlapipe.predicted_locks.predict import predict_lock
from xlapipe.readers import read_path
from xlapipe.sizing.planned_memory import planned_memory
from xlapipe.targets.target_config import target_attached

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_suffix(".json")
_LEFT_OUT = ("program", "family")
_CUBLASLT = (
    "backend: CUBLASLT_FISSION backend_config { gemm { autotune_workspace_size: 33554432 } }"
)
_VERSIONS = {
    "TRITON": "a77e7c793abc0d0c923a9afb275058e2fe57a198",
    "CUBLASLT_FISSION": "13.0.0",
    "CUDNN": "9.19.0",
}


@dataclass(frozen=True)
class LockedProgram:
    """A program with a device's lock, and its tuned instructions."""

    path: Path
    lock: AutotuneLock
    job: Job
    instructions: tuple[str, ...]

    @property
    def forms(self) -> dict[str | None, Form | None]:
        return {fingerprint(text): form_of(text) for text in self.instructions}


def programs(names: Sequence[str] = ()) -> Iterator[LockedProgram]:
    """The programs of the goldens with locks, the small ones first."""
    paths = sorted(ROOT.glob(f"hlo_dumps/*/*/{LOCK}"), key=lambda path: path.stat().st_size)
    for path in paths:
        workload = path.parent.parent.name
        if names and workload not in names:
            continue
        (job,) = jobs_of([workload], CompileOptions(autotune_lock=path, use_cache=False))
        print(path.parent, flush=True)
        yield LockedProgram(path, read_lock(path), job, _instructions(job))


def _instructions(job: Job) -> tuple[str, ...]:
    """The tuned instructions of a program."""
    with compile_workload(replace(job, plan_only=True)) as compiled:
        files = sorted(compiled.dump_folder.glob("*.before_config_assignment.hlo.pb"))
        texts = [fingerprint_text(file.read_bytes()) for file in files]
    return tuned_instructions("\n".join(texts))


def make_tables() -> None:
    tables: dict[str, KnownResults] = {}
    for program in programs():
        lock = program.lock
        keys, results = results_of_lock(lock.results, program=lock.workload)
        known = tables.get(lock.target) or KnownResults(*keys, about_lock(lock), ())
        assert keys == (known.device, known.codegen), lock.target
        tables[lock.target] = known.with_results(_with_forms(results, program.instructions))
    for target, record in (("h200", "h200"), ("h100_sxm", "h100")):
        for name, (results_text, instructions) in _of_fidelity(record):
            _, results = results_of_lock(results_text, program=f"fidelity/{name}")
            tables[target] = tables[target].with_results(_with_forms(results, instructions))
    for records in ("zoo", "unseen"):
        for name, plan, modules in zoo_plans(records):
            rows = [*_products(plan, name), *_convolutions(modules, name)]
            tables["h200"] = tables["h200"].with_results(rows)
    for target, known in tables.items():
        (TABLES / f"{target}.jsonl").write_text(known.to_lines(), encoding="utf-8")


def _with_forms(
    results: Sequence[KnownResult], instructions: Sequence[str]
) -> Iterator[KnownResult]:
    """The results of the program's own instructions; a file may have those of several programs."""
    forms = {fingerprint(text): form_of(text) for text in instructions}
    for row in results:
        if row.fingerprint in forms:
            yield replace(row, form=forms[row.fingerprint])


def _of_fidelity(record: str) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """Autotune results, and tuned instructions, of the programs of a record of fidelity."""
    path = ROOT / f"tests/gpu/fidelity/{record}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    known, target = references(), target_attached(data["target_config"])

    def one(item: tuple[str, Mapping[str, Any]]) -> tuple[str, tuple[str, tuple[str, ...]]] | None:
        name, program = item
        content = path.with_name(f"{path.stem}_results_{program['results']}.pbtxt.gz").read_bytes()
        lock = AutotuneLock(
            workload=ANY_WORKLOAD,
            gemm_policy="auto",
            target=target.name,
            device=target.description,
            compute_capability=target.compute_capability,
            device_memory_bytes=target.device_memory_bytes,
            versions=data["versions"],
            target_config=data["target_config"],
            results=gzip.decompress(content).decode(),
            workspaces=program.get("workspaces", {}),
        )
        job = Job(reference=known[name], target=target, lock=lock, plan_only=True)
        try:
            return name, (lock.results, _instructions(job))
        except XlapipeError as error:
            print(f"{name}: {error}", flush=True)
            return None

    with ThreadPoolExecutor(2) as pool:
        yield from filter(None, pool.map(one, data["programs"].items()))


def zoo_plans(records: str) -> Iterator[tuple[str, Plan, str]]:
    """Name, plan and module of each program of a record of the time zoo, as tuned on an H200."""
    folder = ROOT / "tests/gpu/time_zoo/records"
    data = json.loads((folder / f"{records}.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as plans:
        with tarfile.open(folder / f"{records}.plans.tar.xz") as archive:
            archive.extractall(plans, filter="data")
        for name in data["programs"]:
            (module,) = (Path(plans) / name).glob("*.hlo.pb")
            text = fingerprint_text(module.read_bytes())
            yield f"{records}/{name}", read_path(Path(plans) / name), text


def _products(plan: Plan, name: str) -> Iterator[KnownResult]:
    """The backend of each product; the plan does not state the instruction that was tuned."""
    backends = {"triton": "backend: TRITON", "cublaslt": _CUBLASLT}
    for gemm in plan.gemms:
        left, right, *_, result = gemm.shapes
        result = result.parts[0] if result.parts else result
        config = backends.get(str(gemm.backend))
        if config is None or not (left.dims and right.dims and result.dims):
            continue
        batch = prod(result.dims[:-2])
        k = sqrt(prod(left.dims) * prod(right.dims) / prod(result.dims) / batch)
        m, n = (round(prod(shape.dims) / batch / k) for shape in (left, right))
        kind = f"dot {left.element},{right.element}"
        form = Form(kind, "", (batch, max(m, n), min(m, n), round(k)))
        yield KnownResult("", config, _VERSIONS[config.split()[1]], form, (name,))


def _convolutions(module_text: str, name: str) -> Iterator[KnownResult]:
    for text, algorithm in chosen_algorithms(module_text).items():
        data, key = json.loads(algorithm), fingerprint(text)
        knobs = "".join(
            f"tuning_knobs {{ key: {knob} value: {value} }} "
            for knob, value in sorted(data["tuning_knobs"].items(), key=lambda item: int(item[0]))
        )
        size = f"value: {data['workspace_size']} " if int(data["workspace_size"]) else ""
        config = (
            f"backend: CUDNN backend_config {{ algorithm {{ algo_id: {data['algo_id']} {knobs}"
            f"workspace_size {{ {size}}} }} }}"
        )
        assert key is not None
        yield KnownResult(key, config, _VERSIONS["CUDNN"], form_of(text), (name,))


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
            if form is not None and form.kind.startswith("dot "):
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
