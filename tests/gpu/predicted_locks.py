"""Predicted locks: makes the tables of known results, and predicts their products from others.

No GPU is needed: both start from the autotune locks in `hlo_dumps/`.

  python -m tests.gpu.predicted_locks goldens
      Writes `xlapipe/time/predicted_locks/tables/TARGET-jaxVERSION.jsonl` for the installed jaxlib,
      from goldens. What is there of a calibration's probes stays: products of int8, which no golden
      has. `TARGET.jsonl` is of jax 0.11.2, whose goldens are in git no longer.
  python -m tests.gpu.predicted_locks tuned FOLDER LOCK
      Adds to such a table what `tune_programs.py` wrote into a folder; LOCK is one of its device.
  python -m tests.gpu.predicted_locks compare
      Predicts the products of each program that an H200 tuned from the others: how many have the
      device's backend, and in how many programs the device has a workspace otherwise.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.compile_program import fingerprint_text
from xlapipe.compile.job import Job
from xlapipe.compile.known_locks import about_lock, known_results
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.dump.autotune_lock import LOCK, AutotuneLock, read_lock
from xlapipe.time.predicted_locks.fingerprint import fingerprint
from xlapipe.time.predicted_locks.form import Form, form_of
from xlapipe.time.predicted_locks.instructions import tuned_instructions
from xlapipe.time.predicted_locks.known_results import (
    TABLES,
    KnownResult,
    KnownResults,
    results_of_lock,
)
from xlapipe.time.predicted_locks.predict import has_workspace, nearest, other_choice

ROOT = Path(__file__).resolve().parents[2]
JAXLIB = version("jaxlib")


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
    with compile_workload(replace(job, plan_only=True)) as (started, _):
        files = sorted(started.dump_folder.glob("*.before_config_assignment.hlo.pb"))
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


def compare() -> None:
    """Predicts the products of each program of an H200 from the others."""
    known, _ = known_results("h200", "auto") or sys.exit("no tables for this jaxlib")
    by_program: dict[str, list[KnownResult]] = defaultdict(list)
    for row in known.results:
        if row.form is not None and row.form.is_product and not row.other_device:
            for name in row.programs:
                by_program[name].append(row)
    right: list[bool] = []
    by_chance: dict[int, list[bool]] = defaultdict(list)
    for name, rows in by_program.items():
        if name.startswith(("calibration/", _TUNED)):
            continue
        others, found = known.without(name), list[tuple[KnownResult, float]]()
        same = others.by_fingerprint()
        for row in rows:
            assert row.form is not None
            result, agreement = same.get(row.fingerprint), 1.0
            if result is None:
                result, agreement = nearest(row.form, others)
            if result is not None:
                found.append((result, agreement))
                right.append(result.backend == row.backend)
        differs = any(map(has_workspace, rows)) != any(has_workspace(row) for row, _ in found)
        by_chance[int(other_choice(found) * 10)].append(differs)
    print(f"backends: {sum(right)} of {len(right)}; a workspace or none, by the stated chance:")
    for tenth, other in sorted(by_chance.items()):
        print(f"{tenth * 10} to {tenth * 10 + 10} %: otherwise in {sum(other)} of {len(other)}")


def main(command: str = "compare", folder: str = "", lock: str = "") -> None:
    commands = {
        "compare": compare,
        "goldens": make_tables_of_goldens,
        "tuned": lambda: add_tuned(Path(folder), read_lock(Path(lock))),
    }
    commands[command]()


if __name__ == "__main__":
    main(*sys.argv[1:])
