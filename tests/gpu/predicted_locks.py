"""Predicted locks: makes the tables of known results, and compares predictions with devices.

No GPU is needed: both start from the autotune locks in `hlo_dumps/`.

  python -m tests.gpu.predicted_locks goldens
      Writes `xlapipe/time/predicted_locks/tables/TARGET-jaxVERSION.jsonl` for the installed jaxlib,
      from goldens. What is there of a calibration's probes stays: products of int8, which no golden
      has. `TARGET.jsonl` is of jax 0.11.2, whose goldens are in git no longer.
  python -m tests.gpu.predicted_locks zoo ZOOS
      Writes what the table of the H200 has from the time zoo alone.
  python -m tests.gpu.predicted_locks evaluate [REGEX [ZOOS]]
      For each golden with a lock, and each program of the time zoo that ran on an H200, compiles
      without a lock, unless that is recorded, and with one that is predicted from other programs;
      writes `predicted_locks.json`.

ZOOS is the folder with the programs of the time zoo; `time_zoo/records/README.md` states where it
is. Without it, `evaluate` compiles the goldens alone.
"""

import json
import re
import sys
import tempfile
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
from xlapipe.files.contents import read_packed
from xlapipe.plans import Plan
from xlapipe.plans.gemms import Gemm
from xlapipe.registry import find_workload
from xlapipe.run.calibration.record import read_record, unpack
from xlapipe.time.cost import step_cost
from xlapipe.time.predict import predict
from xlapipe.time.predict.study import calibration_for
from xlapipe.time.predicted_locks.fingerprint import fingerprint
from xlapipe.time.predicted_locks.form import Form, form_of
from xlapipe.time.predicted_locks.instructions import instruction_texts, tuned_instructions
from xlapipe.time.predicted_locks.known_results import (
    TABLES,
    KnownResult,
    KnownResults,
    results_of_lock,
)

ROOT = Path(__file__).resolve().parents[2]
JAXLIB = version("jaxlib")
RECORD = Path(__file__).with_suffix(".json")
RECORDS = ("zoo", "unseen")
# Programs that no table has results of, and no choice was made with.
LATER_RECORDS = ("third",)
# What XLA writes into a convolution once it has a result for it.
_ALGORITHM = re.compile(r'"algorithm":(\{(?:[^{}]|\{[^{}]*\})*\}),')
_WORKSPACE = re.compile(r"u8\[\d+\]\{0\}\) custom-call")
_CUBLASLT = (
    "backend: CUBLASLT_FISSION backend_config { gemm { autotune_workspace_size: 33554432 } }"
)
_CUBLASLT_CALL = re.compile(
    r"custom-call\((\w+)\[([\d,]*)\]\S*, (\w+)\[([\d,]*)\]"
    r'.*custom_call_target="__cublas\$lt\$matmul"'
)
_DOT_NUMBERS = re.compile(r'"dot_dimension_numbers":(\{[^}]*\})')
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


def programs(names: Sequence[str] = ()) -> Iterator[LockedProgram]:
    """The programs of the goldens with locks, the small ones first."""
    paths = sorted(
        ROOT.glob(f"hlo_dumps/*/*-jax{JAXLIB}/{LOCK}"), key=lambda path: path.stat().st_size
    )
    for path in paths:
        workload = path.parent.parent.name
        if names and workload not in names:
            continue
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
        probes = (row for row in earlier if row.programs[0].startswith("calibration/"))
        path.write_text(known.with_results(probes).lines, encoding="utf-8")


def renew_zoo(zoos: Path) -> None:
    path = TABLES / "h200.jsonl"
    known = KnownResults.read(path)
    for name in {name for row in known.results for name in row.programs}:
        if name.startswith(RECORDS):
            known = known.without(name)
    path.write_text(known.with_results(_of_zoo(zoos)).lines, encoding="utf-8")


def _of_zoo(zoos: Path) -> Iterator[KnownResult]:
    """What the device chose for products and convolutions of the programs of the time zoo."""

    def one(item: tuple[str, Plan, str]) -> list[KnownResult]:
        name, _, module = item
        print(name, flush=True)
        products = _products(tuned_by_xla(_zoo_job(zoos, name)), module, name)
        return [*products, *_convolutions(module, name)]

    for records in RECORDS:
        with ThreadPoolExecutor(2) as pool:
            for rows in pool.map(one, zoo_plans(records)):
                yield from rows


def _zoo_job(zoos: Path, name: str) -> Job:
    """The compile of a program of the time zoo: `zoo/products/mlp_1`."""
    records, _, own = name.partition("/")
    reference = find_workload(f"timed_workloads:timed(records={records!r}, name={own!r})")
    reference = replace(reference, name=name, folder=zoos)
    return Job(reference=reference, target=known_results_of("h200")[1])


def _with_forms(
    results: Sequence[KnownResult], instructions: Sequence[str]
) -> Iterator[KnownResult]:
    """The results of the program's own instructions; a file may have those of several programs."""
    forms = {fingerprint(text): form_of(text) for text in instructions}
    for row in results:
        if row.fingerprint in forms:
            yield replace(row, form=forms[row.fingerprint])


def zoo_plans(records: str) -> Iterator[tuple[str, Plan, str]]:
    """Name, plan and module of each program of a record of the time zoo, as tuned on an H200."""
    path = ROOT / f"tests/gpu/time_zoo/records/{records}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        unpack(read_packed(path), Path(folder))
        for module in sorted(Path(folder).rglob("*.hlo.pb")):
            name = module.parent.relative_to(folder)
            text = fingerprint_text(module.read_bytes())
            yield f"{records}/{name}", read_path(module.parent), text


def _products(instructions: Sequence[str], module_text: str, name: str) -> Iterator[KnownResult]:
    """The backend of each product, by form: the optimised module has no key of the tuner.

    Args:
      instructions: those that XLA tunes, before it does.
      module_text: the module as tuned on the device.
    """
    configs = {"triton": "backend: TRITON", "cublaslt": _CUBLASLT}
    backends = _backends(module_text)
    for text in instructions:
        form = form_of(text) if " dot(" in text else None
        if form is None:
            continue
        left, _, right = form.layout.partition(";")
        # cuBLASLt may compute the transposed product.
        chosen = {
            *backends.get((form.layout, form.dimensions), ()),
            *backends.get((f"{right};{left}", form.dimensions), ()),
        }
        for backend in sorted(chosen):
            config = configs[backend]
            yield KnownResult("", config, _VERSIONS[config.split()[1]], form, (name,))


def _backends(module_text: str) -> dict[tuple[str, tuple[int, ...]], set[str]]:
    """The backends of the products of an optimised module, by layout and dimensions."""
    backends: dict[tuple[str, tuple[int, ...]], set[str]] = defaultdict(set)
    for text in instruction_texts(module_text):
        head = text.split("\n", 1)[0]
        call = _CUBLASLT_CALL.search(head)
        if call is not None:
            form = _form_of_call(call, text)
            backends[form.layout, form.dimensions].add("cublaslt")
        elif " fusion(" in head and " dot(" in text and "__triton" in text:
            fused = form_of(text)
            assert fused is not None
            backends[fused.layout, fused.dimensions].add("triton")
    return backends


def _form_of_call(call: re.Match[str], text: str) -> Form:
    """The form of a call of cuBLASLt."""
    numbers = _DOT_NUMBERS.search(text)
    assert numbers is not None
    named = json.loads(numbers[1])
    dims = [[int(size) for size in call[at].split(",") if size] for at in (2, 4)]

    def sizes(side: int, kind: str) -> list[int]:
        side_name = ("lhs", "rhs")[side]
        return [dims[side][int(at)] for at in named.get(f"{side_name}_{kind}_dimensions", [])]

    batch, k = prod(sizes(0, "batch")), prod(sizes(0, "contracting"))
    m, n = (prod(shape) // max(batch * k, 1) for shape in dims)
    layout = ";".join(
        ",".join(named.get(f"{side}_contracting_dimensions", [])) for side in ("lhs", "rhs")
    )
    dimensions = tuple(max(size, 1) for size in (batch, max(m, n), min(m, n), k))
    return Form(f"dot {call[1]},{call[3]}", layout, dimensions)


def _chosen_algorithms(module_text: str) -> dict[str, str]:
    """The algorithms of cuDNN's convolutions in an optimised module.

    Returns:
      For the canonical text that the convolution had before, the algorithm as JSON.
    """
    chosen = {}
    for text in tuned_instructions(module_text):
        match = _ALGORITHM.search(text)
        if match is not None:
            before = _WORKSPACE.sub("u8[0]{0}) custom-call", _ALGORITHM.sub("", text))
            chosen[before] = match[1]
    return chosen


def _convolutions(module_text: str, name: str) -> Iterator[KnownResult]:
    for text, algorithm in _chosen_algorithms(module_text).items():
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


@dataclass(frozen=True)
class Case:
    """A program whose plan on the device is known, and from which results the lock is predicted.

    Attributes:
      group: programs whose names start so are left out of what is known.
      kernel_seconds: measured seconds of the device's kernels, by instruction; empty if unknown.
    """

    name: str
    job: Job
    plan: Plan
    group: str
    kernel_seconds: Mapping[str, float]


def cases(pattern: str, zoos: Path | None) -> Iterator[Case]:
    """The goldens with locks, and the programs of the time zoo, whose names match."""
    for path in sorted(ROOT.glob(f"hlo_dumps/*/*-jax{JAXLIB}/{LOCK}")):
        workload, device = path.parts[-3], path.parts[-2].partition("-auto")[0]
        if re.search(pattern, name := f"{workload}@{device}"):
            (job,) = jobs_of([workload], CompileSettings(tuning=path, use_cache=False))
            yield Case(name, replace(job, lock=None), read_path(path.parent), workload, {})
    for records in RECORDS + LATER_RECORDS if zoos is not None else ():
        _, profiles = read_record(ROOT / f"tests/gpu/time_zoo/records/{records}.tar.xz")
        measured = {profile.name: profile.times.measured for profile in profiles}
        for name, plan, _ in zoo_plans(records):
            own = name.removeprefix(f"{records}/")
            if re.search(pattern, name):
                kernels = {kernel.name: kernel.seconds for kernel in measured[own]}
                # Programs that were written for evaluation are left out together.
                group = name.rpartition("/")[0] if records == "zoo" else f"{records}/"
                yield Case(name, _zoo_job(zoos, name), plan, group, kernels)


def evaluate(pattern: str, zoos: Path | None) -> None:
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
        for future in [pool.submit(one, case) for case in cases(pattern, zoos)]:
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
    return predict(plan, cost, calibration).seconds


def _products_right(case: Case, plan: Plan) -> dict[str, Any]:
    """The products of the device by backend, of the device and as predicted."""
    predicted: dict[object, Counter[str]] = defaultdict(Counter)
    for gemm in plan.gemms:
        predicted[_key(gemm)][str(gemm.backend)] += 1
    confusion: Counter[str] = Counter()
    seconds = {"right": 0.0, "all": 0.0}
    for gemm in case.plan.gemms:
        own, backends = str(gemm.backend), predicted[_key(gemm)]
        backend = own if backends[own] else next(iter(+backends), "none")
        backends[backend] -= 1
        confusion[f"{own} {backend}"] += 1
        measured = case.kernel_seconds.get(gemm.instruction, 0.0)
        seconds["all"] += measured
        seconds["right"] += measured * (backend == own)
    return {"confusion": dict(sorted(confusion.items())), "seconds": seconds}


def _key(gemm: Gemm) -> object:
    sizes = sorted(prod(shape.dims) for shape in gemm.shapes[:2])
    return gemm.op_name, *sizes


def main(command: str = "evaluate", *arguments: str) -> None:
    if command == "evaluate":
        pattern, *folder = arguments or ("",)
        evaluate(pattern, Path(folder[0]).absolute() if folder else None)
    elif command == "goldens":
        make_tables_of_goldens()
    else:
        (zoos,) = arguments
        {"zoo": renew_zoo}[command](Path(zoos).absolute())


if __name__ == "__main__":
    main(*sys.argv[1:])
