"""Compares plans compiled here with those of a GPU: programs, their record, the comparison.

    python tests/gpu/fidelity/record.py references [LIST]     # what to dump on the GPU
    python tests/gpu/fidelity/record.py record DUMPS OUT.json # from the GPU's dumps
    python tests/gpu/fidelity/record.py compare OUT.json [NAME…]

On the GPU, `xlapipe dump REFERENCES --target attached --tuning tune --out DUMPS` makes the dumps,
in a folder with the programs of the zoo, and `programs.py`.
LIST is the name programs. A record has the digests of each
program's canonical forms and the autotune results; `compare` compiles the programs without a GPU.
"""

import gzip
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo import batch as zoo
from xlapipe.compile.capture import capture
from xlapipe.compile.child_process import Compiled
from xlapipe.compile.job import Job
from xlapipe.compile.messages import CompileRecord
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.dump.autotune_lock import LOCK
from xlapipe.dump.dump import open_dump, read_file
from xlapipe.dump.manifest import MANIFEST
from xlapipe.dump.normal_form.plan import NormalForm, normal_form
from xlapipe.files.typed_data import typed
from xlapipe.plans.workspaces import workspaces_of
from xlapipe.registry import WorkloadReference, find_workload

HERE = Path(__file__).parent
# Lines of a plan's head that name the target, not the plan.
_HEAD = ("target:", "autotuning:", "extra options:")
# Modules of programs, each with a list of references: for one GPU, for two and for four.
_MODULES = ("programs",)
_HLO_TEXTS = ("after_optimizations.txt", "before_optimizations.txt")
_ENTRY = re.compile(r"(?m)^(?=entries \{)")
_KEY = re.compile(r"(?s)entries \{\n(  key \{.*?\n  \})\n")


@dataclass(frozen=True)
class Outcome:
    """The comparison of one program.

    Attributes:
      state: `equal`, `labelled` if the plan states that it differs, `different`, or `changed` if
        the program is another one than on the device.
      why: the label, or the sections that differ.
    """

    name: str
    state: str
    why: str = ""


def references() -> dict[str, WorkloadReference]:
    """Every program: those of the zoo for one device, and those of `_MODULES`."""
    small = {it.name: it for it in zoo.programs() if not it.target.startswith("sharded:")}
    lists = {
        module: (HERE / f"{module}.txt").read_text(encoding="utf-8").splitlines()
        for module in _MODULES
    }
    return small | {
        name: _reference(module, name) for module, names in lists.items() for name in names
    }


def _reference(module: str, name: str) -> WorkloadReference:
    found = find_workload(f"{module}:{name}")
    return WorkloadReference(name, found.target, found.arguments, HERE)


def digests(form: NormalForm) -> dict[str, str]:
    """Digests of the canonical plan, of the canonical HLO and of the module before optimisation."""
    canonical = form.canonical
    lines = canonical.plan.splitlines()
    plan = "\n".join(line for line in lines if not line.startswith(_HEAD))
    return {
        "plan": _digest(plan),
        "hlo": _digest(canonical.hlo),
        "lowered": form.lowered_sha256[:16],
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record(dumps: Path, out: Path, provenance: Mapping[str, Any]) -> None:
    """Writes the record of a device's dumps, and its autotune results beside it."""
    by_workload = {
        json.loads(path.read_text(encoding="utf-8"))["workload"]: path.parent
        for path in dumps.glob(f"*/*/{MANIFEST}")
    }
    groups: list[dict[str, str]] = []
    programs: dict[str, Any] = {}
    head, config = "", ""
    for name, workload in sorted(_workload_names().items()):
        folder = by_workload.get(workload)
        if folder is None:
            continue
        dump = open_dump(folder)
        lock = json.loads(read_file(folder, LOCK))
        head, *entries = _ENTRY.split(lock["results"])
        config = lock["target_config"]
        texts = {text: read_file(folder, text) for text in _HLO_TEXTS}
        workspaces = dict(workspaces_of(dump.plan.calls_finished_on_device))
        programs[name] = {
            **digests(normal_form(dump, texts)),
            "total_bytes": dump.plan.totals.total_allocation_bytes,
            "temp_bytes": dump.plan.totals.temp_bytes,
            **({"workspaces": workspaces} if workspaces else {}),
            "results": _group(groups, {_key(entry): entry for entry in entries}),
        }
    data = {**provenance, "target_config": config, "programs": programs}
    out.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for number, group in enumerate(groups):
        content = (head + "".join(group.values())).encode()
        _results_path(out, number).write_bytes(gzip.compress(content, mtime=0))


def _workload_names() -> dict[str, str]:
    """Names of the workloads by reference; imports jax and the programs."""
    from xlapipe.compile.lowering.load_workload import load_workload

    return {
        name: reference.name
        if reference.folder != HERE
        else load_workload(reference, devices=None).name
        for name, reference in references().items()
    }


def _key(entry: str) -> str:
    match = _KEY.match(entry)
    assert match is not None, entry[:200]
    return match[1]


def _group(groups: list[dict[str, str]], entries: Mapping[str, str]) -> int:
    """The first group of results that agrees; two tuning runs can choose different kernels."""
    for number, group in enumerate(groups):
        if all(group.get(key, entry) == entry for key, entry in entries.items()):
            group.update(entries)
            return number
    groups.append(dict(entries))
    return len(groups) - 1


def _results_path(path: Path, group: int) -> Path:
    return path.with_name(f"{path.stem}_results_{group}.pbtxt.gz")


def compare(path: Path, names: Iterable[str] = (), *, scratch: Path) -> Iterator[Outcome]:
    """Compiles the programs of a record without a GPU, and compares each with the record."""
    data = json.loads(path.read_text(encoding="utf-8"))
    chosen = {name: data["programs"][name] for name in (names or data["programs"])}
    for group in sorted({program["results"] for program in chosen.values()}):
        folder = scratch / str(group)
        members = [name for name in chosen if chosen[name]["results"] == group]
        workspaces = {name: chosen[name].get("workspaces", {}) for name in members}
        batch = _compile(workspaces, data["target_config"], _results_path(path, group), folder)
        for name in members:
            yield _outcome(name, chosen[name], batch)


def _compile(
    workspaces: Mapping[str, Mapping[str, int]], config: str, results: Path, folder: Path
) -> zoo.Batch:
    known = references()
    jobs = {
        name: Job(
            reference=known[name],
            target=target_attached(config),
            options={"xla_backend_optimization_level": 0},
        )
        for name in workspaces
    }
    requests = {}
    for number, (name, job) in enumerate(jobs.items()):
        child_folder = folder / str(number)
        requests[str(number)] = zoo.request_of(
            job, child_folder, locked=True, workspaces=workspaces[name]
        )
    folder.mkdir(parents=True)
    loaded = folder / "results.pbtxt"
    loaded.write_bytes(gzip.decompress(results.read_bytes()))
    flags = f"--xla_gpu_load_autotune_results_from={loaded}"
    log = zoo.run_child(requests, folder, variables={"XLA_FLAGS": flags})
    return zoo.Batch(folder, jobs, log)


def _outcome(name: str, expected: Mapping[str, Any], batch: zoo.Batch) -> Outcome:
    folder = batch.folder / str(list(batch.jobs).index(name))
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert "error" not in result, f"{name}: {result['error']}"
    compiled = Compiled(
        folder / "dump",
        typed(CompileRecord, result),
        zoo.PROGRAMS,
        autotune_results=None,
        tuning_logs=None,
        executable=None,
    )
    dump, files = capture(batch.jobs[name], compiled, where=name)
    found = digests(normal_form(dump, files))
    if found["lowered"] != expected["lowered"]:
        return Outcome(name, "changed", "the program, jax or the lowering is another one")
    differing = [part for part in ("plan", "hlo") if found[part] != expected[part]]
    if not differing:
        return Outcome(name, "equal")
    labels = [*(f"no workspace: {it.instruction}" for it in dump.plan.missing_memory)]
    if result["fusion_without_result"] is not None:
        labels.append("partly tuned")
    return Outcome(name, "labelled" if labels else "different", "; ".join(labels or differing))


def main(command: str, *arguments: str) -> None:
    if command == "references":
        module = f"{arguments[0]}:" if arguments else ""
        listed = references().values()
        print("\n".join(str(it) for it in listed if it.target.startswith(module)))
    elif command == "record":
        dumps, out = map(Path, arguments)
        run = json.loads(next(dumps.glob("*/*/run_record.json")).read_text(encoding="utf-8"))
        kept = ("device", "driver", "date", "versions")
        record(dumps, out, {key: run[key] for key in kept})
    else:
        with tempfile.TemporaryDirectory() as scratch:
            outcomes = list(compare(Path(arguments[0]), arguments[1:], scratch=Path(scratch)))
        for outcome in outcomes:
            if outcome.state != "equal":
                print(f"{outcome.state:10} {outcome.name}: {outcome.why}")
        states = sorted({outcome.state for outcome in outcomes})
        print({state: sum(it.state == state for it in outcomes) for state in states})


if __name__ == "__main__":
    main(*sys.argv[1:])
