"""Plans that are compiled here are those that an H200 and an H100 recorded.

A record has the digests of each program and its autotune results; docs/fidelity.md has all programs
that were compared.
"""

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.zoo import batch as zoo
from xlapipe.compile.capture import capture
from xlapipe.compile.job import Job
from xlapipe.compile.messages import CompileRecord
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.dump.autotune_lock import AutotuneLock
from xlapipe.dump.normal_form.plan import NormalForm, normal_form
from xlapipe.files.typed_data import typed
from xlapipe.registry import WorkloadReference, find_workload

JAXLIB = "0.11.2"
pytestmark = pytest.mark.skipif(
    version("jaxlib") != JAXLIB, reason=f"the records are of jaxlib {JAXLIB}"
)

HERE = Path(__file__).parent
RECORDS = {path.stem: path for path in (HERE / "h100.json", HERE / "h200.json")}
# CUB's scratch, values computed again at the memory limit, names of a loop.
PROGRAMS = {
    "h200": ("sort(dtype='float32', shape=(64, 32000))", "scan_gradient"),
    "h100": (
        *("sort(dtype='int32', shape=(1048576,))", "memory_limit(gib=60)", "sort_on_cub"),
        "special_functions",
    ),
}
CUDNN = "cudnn_attention_train(n=2, t=512, h=8, d=64)"
# Lines of a plan's head that name the target, not the plan.
_HEAD = ("target:", "autotuning:", "extra options:")


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


def reference_of(name: str) -> WorkloadReference:
    """A program of the zoo, or of `programs.py`."""
    if "(" not in name:
        return next(reference for reference in zoo.programs() if reference.name == name)
    reference = find_workload(f"programs:{name}")
    return WorkloadReference(name, reference.target, reference.arguments, HERE)


def digests(form: NormalForm) -> dict[str, str]:
    """Digests of the canonical plan, of the canonical HLO and of the module before optimisation."""
    lines = form.canonical.plan.splitlines()
    plan = "\n".join(line for line in lines if not line.startswith(_HEAD))
    texts = {"plan": plan, "hlo": form.canonical.hlo}
    hashes = {part: hashlib.sha256(text.encode()).hexdigest()[:16] for part, text in texts.items()}
    return {**hashes, "lowered": hashlib.sha256(form.lowered.encode()).hexdigest()[:16]}


def compare(path: Path, names: tuple[str, ...], *, scratch: Path) -> Iterator[Outcome]:
    """Compiles programs of a record without a GPU, and compares each with the record."""
    data = json.loads(path.read_text(encoding="utf-8"))
    chosen = {name: data["programs"][name] for name in names}
    for group in sorted({program["results"] for program in chosen.values()}):
        members = {name: it for name, it in chosen.items() if it["results"] == group}
        results = path.with_name(f"{path.stem}_results_{group}.pbtxt.gz")
        batch = _compile(members, data["target_config"], results, scratch / str(group))
        for name in members:
            yield _outcome(name, chosen[name], batch)


def _compile(
    programs: Mapping[str, Mapping[str, Any]], config: str, results: Path, folder: Path
) -> zoo.Batch:
    target, options = target_attached(config), {"xla_backend_optimization_level": 0}
    folder.mkdir(parents=True)
    loaded = folder / "results.pbtxt"
    loaded.write_bytes(gzip.decompress(results.read_bytes()))
    lock = AutotuneLock(
        workload="",
        gemm_policy="auto",
        target=target.name,
        device=target.description,
        compute_capability=target.compute_capability,
        device_memory_bytes=target.device_memory_bytes,
        versions={"jaxlib": JAXLIB},
        target_config=config,
        results="",
    )
    jobs, locked = {}, {}
    for number, (name, program) in enumerate(programs.items()):
        jobs[name] = Job(reference=reference_of(name), target=target, options=options)
        own = replace(lock, workspaces=program.get("workspaces", {}))
        locked[str(number)] = replace(jobs[name], lock=own)
    flags = f"--xla_gpu_load_autotune_results_from={loaded}"
    return zoo.Batch(folder, jobs, zoo.run_child(locked, folder, variables={"XLA_FLAGS": flags}))


def _outcome(name: str, expected: Mapping[str, Any], batch: zoo.Batch) -> Outcome:
    folder = batch.folder / str(list(batch.jobs).index(name))
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert "error" not in result, f"{name}: {result['error']}"
    job = replace(batch.jobs[name], scratch=folder, source_root=str(zoo.PROGRAMS))
    dump, files = capture(job, typed(CompileRecord, result), where=name)
    form = digests(normal_form(dump, files))
    if form["lowered"] != expected["lowered"]:
        return Outcome(name, "changed", "the program, jax or the lowering is another one")
    differing = [part for part in ("plan", "hlo") if form[part] != expected[part]]
    if not differing:
        return Outcome(name, "equal")
    labels = [*(f"no workspace: {it.instruction}" for it in dump.plan.missing_memory)]
    if result["fusion_without_result"] is not None:
        labels.append("partly tuned")
    return Outcome(name, "labelled" if labels else "different", "; ".join(labels or differing))


@pytest.mark.parametrize("device", ["h200", pytest.param("h100", marks=pytest.mark.slow)])
def test_plans_are_those_of_the_device(device: str, tmp_path: Path) -> None:
    outcomes = {it.name: it for it in compare(RECORDS[device], PROGRAMS[device], scratch=tmp_path)}
    assert outcomes == {name: Outcome(name, "equal") for name in PROGRAMS[device]}


@pytest.mark.slow
def test_what_differs_is_labelled(tmp_path: Path) -> None:
    (attention,) = compare(RECORDS["h200"], (CUDNN,), scratch=tmp_path / "recorded")
    assert attention.state == "equal", "with the workspaces and the results of the record"

    path = tmp_path / RECORDS["h200"].name
    record = json.loads(RECORDS["h200"].read_text(encoding="utf-8"))
    del record["programs"][CUDNN]["workspaces"]
    path.write_text(json.dumps(record), encoding="utf-8")
    for results in HERE.glob("h200_results_*"):
        text = gzip.decompress(results.read_bytes())
        (tmp_path / results.name).write_bytes(gzip.compress(text.partition(b"entries")[0]))
    (attention,) = compare(path, (CUDNN,), scratch=tmp_path / "without")
    assert attention.state == "labelled"
    assert attention.why.startswith("no workspace: ")
    assert attention.why.endswith("; partly tuned")
