"""Every registered workload, compiled for an H200 that is not here."""

import hashlib
import json
import os
import subprocess
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB, NEVER_TUNED, RESNETS, ROOT, TORCH_TWINS
from xlapipe.api.testing.goldens import golden_changes
from xlapipe.compile.make_jobs import CompileSettings, locked_jobs
from xlapipe.compile.pipeline import dump_folder
from xlapipe.devices.platforms.dump_files import SOURCE_LINES
from xlapipe.dump.dump import (
    TARGET_CONFIG,
    open_dump,
    read_checked_file,
    read_file,
    read_manifest,
)
from xlapipe.dump.manifest import MANIFEST, with_digests
from xlapipe.dump.normal_form.plan import differences, read_normal_form
from xlapipe.dump.readers import read_path
from xlapipe.dump.run_record import RUN_RECORD
from xlapipe.dump.same_dump import notes_if_same
from xlapipe.expect import check_all
from xlapipe.files.contents import plain_name
from xlapipe.registry import registered_workloads
from xlapipe.report.findings import finding_lines

pytestmark = pytest.mark.jax

MAX_LINES = 60
CASES = [
    (reference.name, policy)
    for reference in registered_workloads()
    for policy in ("cublas", "triton", "tuned")
    if (policy != "tuned" or reference.name not in NEVER_TUNED)
    # Their dumps are large, and nearly all of their products are convolutions.
    and (policy != "triton" or reference.name not in RESNETS)
]
# What `tests.slim_goldens` removes from large dumps.
# Facts of the call that manifests had when the H200 was recorded.
REMOVED_FACTS = {"calls": 1, "programs": [], "processes": "", "refused": "", "settles": None}
REMOVED = ("after_optimizations.txt", "compile_times.json", "tuning_times.json")
H100 = "NVIDIA H100 80GB HBM3"
TUNED = [workload for workload, policy in CASES if policy == "tuned"]


# Workloads that take more than 6 s of CPU for one compile.
LARGE = {
    "qwen3-generate",
    "qwen3-generate-persistent",
    "qwen3-prefill",
    "qwen3-prompts",
    "qwen3-prompts-hopper",
    "qwen3-train",
}

# Whose untuned plans the quick tests compile too: one of each family.
QUICK_UNTUNED = {"float8-linear-forward", "fsdp-mlp", "qwen3-decode", "spectral-diffusion"}


def params(policies: Collection[str]) -> list[Any]:
    """Cases of the policies: of large workloads, only the tuned ones are quick.

    A large workload without a tuned golden is compiled for cuBLAS in the slow suite, and there are
    most untuned plans of those that are tuned.
    """

    def marks(workload: str, policy: str) -> Any:
        if workload in RESNETS | TORCH_TWINS:
            return pytest.mark.exhaustive
        if policy != "tuned" and workload in TUNED and workload not in LARGE:
            quick = policy == "cublas" and workload in QUICK_UNTUNED
            return () if quick else pytest.mark.slow
        if policy == "tuned" or workload not in LARGE:
            return ()
        in_ci = policy == "cublas" and workload not in TUNED
        return pytest.mark.slow if in_ci else pytest.mark.exhaustive

    return [pytest.param(*case, marks=marks(*case)) for case in CASES if case[1] in policies]


ALL = params(("cublas", "triton", "tuned"))


@pytest.mark.parametrize(("workload", "policy"), ALL)
def test_expectations_hold(workload: str, policy: str, compiled: Any) -> None:
    dump = compiled(workload, policy).dump
    findings = check_all(dump.expectations, dump)
    assert findings
    failed = [finding for finding in findings if not finding.holds]
    lines = [line for finding in failed for line in (finding.expectation, *finding_lines(finding))]
    if failed:
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize(("workload", "policy"), ALL)
def test_plan_is_the_golden(
    workload: str,
    policy: str,
    compiled: Any,
    goldens: Path,
    jaxlib_version: str,
    golden_jaxlib: str,
) -> None:
    made = compiled(workload, policy)
    golden = dump_folder(goldens, made.dump.manifest)
    if jaxlib_version != golden_jaxlib and not golden.exists():
        pytest.skip(
            f"goldens are kept for jaxlib {golden_jaxlib}, this is {jaxlib_version}: "
            "its plans are checked against the expectations alone"
        )
    assert golden.exists(), f"{golden} is missing: `make dump` writes it"
    found = differences(read_normal_form(golden), made.normal, name=workload)
    if found:
        # What changed in words, before the texts that differ.
        sentences = golden_changes(open_dump(golden), made.dump)
        pytest.fail("\n".join((*sentences, "", *found[:MAX_LINES])), pytrace=False)


@pytest.mark.parametrize(("workload", "policy"), params(("cublas", "triton")))
def test_make_dump_leaves_the_golden_as_it_is(
    workload: str, policy: str, compiled: Any, goldens: Path, jaxlib_version: str
) -> None:
    """What the normal form leaves out too. A device's golden has the files that it wrote."""
    if jaxlib_version != GOLDEN_JAXLIB:
        pytest.skip(f"goldens are kept for jaxlib {GOLDEN_JAXLIB}, this is {jaxlib_version}")
    made = compiled(workload, policy)
    golden = dump_folder(goldens, made.dump.manifest)
    manifest = with_digests(made.dump.manifest, made.files)
    assert notes_if_same(golden, manifest, made.files, made.normal) is not None


@pytest.mark.parametrize(("workload", "policy"), ALL)
def test_both_readers_read_the_same_plan(
    workload: str, policy: str, compiled: Any, tmp_path: Path
) -> None:
    folder = compiled(workload, policy).dump.path
    from_proto = open_dump(folder).plan
    for name in ("buffer-assignment.txt", "buffer-assignment-values.txt", "live-range.txt"):
        (tmp_path / name).write_bytes(read_file(folder, name))
    for name in ("after_optimizations.txt", "thunk_sequence.txt", SOURCE_LINES):
        (tmp_path / name).write_bytes(read_file(folder, name))
    from_text = read_path(tmp_path / "buffer-assignment.txt")
    # The text has nothing of what the author states, of hosts, and of what Pallas kernels do.
    unstated = {"stated_costs": (), "stated_trips": None, "topology": None, "kernel_codes": ()}
    assert from_text == replace(from_proto, **unstated)


@pytest.mark.parametrize(("workload", "policy"), ALL)
def test_dump_holds_no_machine_path(workload: str, policy: str, compiled: Any) -> None:
    folder = compiled(workload, policy).dump.path
    roots = [str(Path.cwd()), os.path.expanduser("~") + "/", "/tmp/", "site-packages/nvidia"]
    for file in folder.iterdir():
        content = read_file(folder, plain_name(file.name))
        assert [root for root in roots if root.encode() in content] == [], file.name


def test_goldens_of_no_workload_are_left(goldens: Path) -> None:
    known = {reference.name for reference in registered_workloads()}
    assert {folder.name for folder in goldens.iterdir() if folder.is_dir()} <= known


def test_make_dump_compiles_qwen_and_one_workload_of_each_other_model() -> None:
    folders = {it.name: it.target.split(".")[1] for it in registered_workloads()}
    commands = subprocess.check_output(["make", "-n", "dump", "WORKLOADS="], cwd=ROOT, text=True)
    dumped = folders.keys() & set(commands.split())
    assert sorted(name for name in dumped if folders[name] == "qwen3") == sorted(
        name for name, folder in folders.items() if folder == "qwen3"
    )
    others = sorted(folders[name] for name in dumped if folders[name] != "qwen3")
    assert others == sorted({*folders.values()} - {"qwen3"})


def test_locks_are_those_of_the_gpu_that_is_named(goldens: Path, jaxlib_version: str) -> None:
    if jaxlib_version != GOLDEN_JAXLIB:
        pytest.skip(f"locks are kept for jaxlib {GOLDEN_JAXLIB}, this is {jaxlib_version}")

    def devices(target: str | None) -> set[str]:
        jobs = locked_jobs(["qwen3-decode", "fsdp-mlp"], goldens, CompileSettings(target=target))
        return {job.lock.device for job in jobs if job.lock is not None}

    assert devices("h200") == {"NVIDIA H200"}
    assert devices("h100_sxm") == {H100}
    assert devices(None) == {H100, "NVIDIA H200"}


@pytest.mark.parametrize("workload", sorted(QUICK_UNTUNED))
def test_a_plan_with_the_devices_lock_is_labelled_tuned(workload: str, compiled: Any) -> None:
    made = compiled(workload, "tuned")
    assert made.dump.manifest.tuned is True
    assert f"autotuning: tuned on {H100}" in made.normal.plan
    untuned = compiled(workload, "cublas")
    assert "autotuning: untuned" in untuned.normal.plan


def test_run_records_hold_the_digests_of_the_devices_goldens(goldens: Path) -> None:
    records = sorted(goldens.glob(f"*/*/{RUN_RECORD}"))
    # One for each topology that was tuned for; of qwen3-train, four GPUs instead of its eight.
    names = {path.parent.parent.name for path in records}
    assert names == {*TUNED, "qwen3-train"}
    for path in records:
        record = json.loads(path.read_text())
        target, _, _ = path.parent.name.partition("-")
        assert record["device"] == {"h100_sxm": H100, "h200": "NVIDIA H200"}[target]
        assert record["versions"]["jaxlib"] == GOLDEN_JAXLIB
        manifest = read_manifest(path.parent)
        for name, digest in record["sha256"].items():
            if name == MANIFEST and manifest.kernel_codes:
                continue  # Counted by xlapipe, which writes some of the counts otherwise by now.
            stored = path.parent / name
            if not stored.is_file() and name.startswith(REMOVED):
                continue
            if stored.is_file():
                content = stored.read_bytes()
            elif name == TARGET_CONFIG:
                content = read_checked_file(path.parent, manifest, name)
            else:
                content = read_file(path.parent, name)
            if name == MANIFEST and target == "h200":
                facts = json.loads(content)
                facts["call"] |= REMOVED_FACTS
                content = f"{json.dumps(facts, indent=1, sort_keys=True)}\n".encode()
            assert hashlib.sha256(content).hexdigest() == digest, name
