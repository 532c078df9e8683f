"""Real `--json` outputs of the commands, of the dumps in this repository; nothing is compiled."""

import dataclasses
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.conftest import GOLDEN_JAXLIB
from tests.report.failure_logs import WRITTEN_LOGS
from tests.shared import tpu_texts
from tests.shared.sample_records import at_least, planned, predicted
from xlapipe.cli import main
from xlapipe.cli.choose_table import choice_figures
from xlapipe.cli.fit_table import fit_figures
from xlapipe.differences.changes import (
    HiddenChange,
    OperationName,
    OrderChange,
    OutputChange,
    PlacementChange,
    SpaceChange,
    ThunkChange,
)
from xlapipe.differences.compare import compare
from xlapipe.differences.comparing.base_checkout import BaseCheckout
from xlapipe.differences.comparing.two_commits import TwoCommits
from xlapipe.dump.dump import open_dump
from xlapipe.errors import XlapipeError
from xlapipe.files.typed_data import typed
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.usable_memory import OutsidePlan
from xlapipe.registry import find_workload
from xlapipe.report.changed_workloads import changed_workloads
from xlapipe.report.difference import difference_figures
from xlapipe.report.dump_row import dump_row
from xlapipe.report.records import plain_data
from xlapipe.report.subjects import open_subject
from xlapipe.run.capture_target import CapturedTarget
from xlapipe.run.run_result import DeviceRun, MemoryAccount, OutputDigest, RunResult
from xlapipe.search.candidate import Candidate, StepChange
from xlapipe.search.choosing.choose import Choice
from xlapipe.search.choosing.saved import SavedRow, SavedValues
from xlapipe.search.rows import Row, largest
from xlapipe.search.sweep import Axis, combinations
from xlapipe.time.recomputed import Recomputation

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "hlo_dumps"
# One device and several, tuned and not, donated and not; and XLA's own files of an old version.
DUMPS = (
    GOLDENS / f"float8-linear-step/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}",
    GOLDENS / f"qwen3-step-donated/h200-cublas-jax{GOLDEN_JAXLIB}",
    GOLDENS / f"fsdp-mlp/h200-1x2-cublas-jax{GOLDEN_JAXLIB}",
    ROOT / "tests/data/host_memory",
    ROOT / "tests/data/jaxlib-0.12.0.1/sharded",
    ROOT / "tests/data/jaxlib-0.4.30/cpu",
)
INDUCTOR_DUMPS = tuple(
    ROOT / "tests/inductor/data" / name
    for name in ("torch-2.13-cpu-dropout/forward0", "torch-2.13-cpu-loop/inference0")
)


def outputs(folder: Path) -> Iterator[tuple[str, Any]]:
    """(command, its JSON); files are written into `folder`."""
    for command in ("list", "targets", "doctor"):
        yield command, printed(command)
    for dump in DUMPS:
        yield "show", printed("show", dump)
        yield "check", printed("check", dump)
    yield "report", printed("report", DUMPS[0], "--out", folder / "report.html")
    yield "diff", printed("diff", DUMPS[1], GOLDENS / f"qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}")
    yield (
        "diff",
        printed("diff", DUMPS[2], GOLDENS / f"fsdp-mlp/h200-1x2-triton-jax{GOLDEN_JAXLIB}"),
    )
    yield "diff", _diff(folder / "tpu")
    twin = GOLDENS / f"torch-mlp/h200-triton-jax{GOLDEN_JAXLIB}"
    yield "diff-inductor", printed("diff", twin, INDUCTOR_DUMPS[0])
    yield "diff-inductor", printed("diff", INDUCTOR_DUMPS[1], twin)
    yield (
        "diff-markdown",
        printed("diff", "--markdown", GOLDENS / "qwen3-step", GOLDENS / "qwen3-step-donated"),
    )
    yield "diff-base", _changed_workloads(folder / "commits")
    for number, log in enumerate(WRITTEN_LOGS):
        path = folder / f"{number}.log"
        path.write_text(log.text)
        yield "explain", printed("explain", path)
        if number < 3:
            yield "explain", printed("explain", path, "--plan", DUMPS[0])
    path.write_text(_out_of_temp(DUMPS[0]))
    yield "explain", printed("explain", path, "--plan", DUMPS[0])
    rows = [dump_row(open_dump(dump), changed=True, seconds=1.5) for dump in DUMPS[:3]]
    yield "dump", {"dumps": rows, "errors": ["a: b"]}
    yield from (("build", row) for row in rows)
    yield "fit", _fit()
    for name in ("batch", None):
        yield "choose", {**_choose(saved=name is None), "maximise": name}
    yield from (("run", _run(memory=memory)) for memory in (True, False))
    yield "device-capture", _captured()
    for inductor in INDUCTOR_DUMPS:
        yield "show-inductor", printed("show", inductor)
        yield "check-inductor", printed("check", inductor)


def _changed_workloads(folder: Path) -> Any:
    """Two commits: a workload that changed, and one that does not compile."""
    before, after = (folder / side for side in ("before", "after"))
    shutil.copytree(GOLDENS / f"qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}", before / "step")
    shutil.copytree(DUMPS[1], after / "step")
    shutil.copytree(DUMPS[2], after / "new")
    base = BaseCheckout("main", "1" * 40, folder, folder, folder, (), ("a file is not committed",))
    both = TwoCommits(before, after, 3, {"w": "w: does not import"}, {})
    return plain_data(changed_workloads(base, both, {"memory": 0.0}))


_OPERATION = OperationName(label="dot_general", scope="jit(step)", source=SourceLine("step.py", 9))


def _diff(folder: Path) -> dict[str, Any]:
    """A plan of a TPU beside one of a GPU, and a change of each kind that they do not have."""
    tpu = open_subject(tpu_texts.write_dump(folder)).program
    gpu = open_subject(DUMPS[1]).program
    difference = compare(gpu, tpu)
    others = (
        OutputChange("out[0]", _OPERATION, _OPERATION),
        SpaceChange("vmem", 0, 1024),
        ThunkChange("kKernel", 2, 2, launches=1),
        OrderChange(2, 9),
        HiddenChange("a", "b"),
        PlacementChange("temp", "argument", 2, 1024),
    )
    return difference_figures(replace(difference, changes=(*difference.changes, *others)))


def _out_of_temp(dump: Path) -> str:
    temp_bytes = open_dump(dump).plan.totals.temp_bytes
    return f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {temp_bytes} bytes."


def printed(command: str, *arguments: object) -> Any:
    """What the command prints with `--json`."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        main([command, *map(str, arguments), "--json"])
    return json.loads(out.getvalue())


_MEMORY = planned()
_REMATERIALISED = replace(
    _MEMORY,
    recomputation=Recomputation(1),
    floor_seconds=1e-5,
    outside=OutsidePlan(
        parts={"context": 1}, unmeasured=("nccl",), device="NVIDIA H200", visible_bytes=100
    ),
)


def _fit() -> dict[str, Any]:
    axes = [Axis("batch", (1, 8, 64))]
    outcomes = (_MEMORY, _REMATERIALISED, XlapipeError("failed"))
    points = combinations("qwen3-decode", axes)
    rows = [Row(point, outcome) for point, outcome in zip(points, outcomes, strict=True)]
    return plain_data(fit_figures("qwen3-decode", "h200", rows, largest(rows, axes)))


_CHANGE = StepChange("recompute everything (scan bodies)", "import jax\n")


def _choose(*, saved: bool) -> dict[str, Any]:
    timed = replace(_MEMORY, predicted=predicted(1e-3, 8e-4, 2e-3))
    values = {"batch": 8, "rate": 0.1, "mesh": [1, 2], "policy": "a", "scan": True, "seed": None}
    written = Candidate(find_workload("step:train"), values, "h200")
    choice = Choice(
        workload="step:train",
        maximise="batch",
        rows=(
            Row(replace(written, change=_CHANGE), timed, items=8.0, chosen=True),
            Row(written, _MEMORY),
            Row(written, replace(_MEMORY, predicted=at_least(1e-3, "a loop")), items=8.0),
        ),
        failed=(
            Row(written, XlapipeError("a")),
            Row(replace(written, change=_CHANGE), XlapipeError("")),
        ),
        left_out=1,
        notes=("a",),
    )
    figures = choice_figures(replace(choice, saved=_saved() if saved else None))
    return plain_data(figures)


def _saved() -> SavedValues:
    kept = SavedRow(
        name="attn", primitive="name", shape=(8, 64), dtype="bfloat16", source="step.py:9", count=2,
        size_bytes=2048, peak_bytes=1024, allocations=(3,), again_seconds=1e-6, on_host=False,
        why="named",
    )  # fmt: skip
    return SavedValues(
        rows=(kept, replace(kept, name=None, source=None, peak_bytes=None, allocations=())),
        total_bytes=10**6,
        saved_bytes=64,
        arguments=1,
        arguments_bytes=64,
        names=("attn",),
    )


def _run(*, memory: bool) -> dict[str, Any]:
    """The form of a run, with the memory that a run on an H200 recorded."""
    record = json.loads((ROOT / "tests/gpu/h200_many_runs.json").read_text())
    devices = record["workloads"]["fsdp-mlp 1x2"]["devices"]
    runs = tuple(_device_run(device, memory=memory) for device in devices)
    result = RunResult(
        device="NVIDIA H200",
        autotuning="untuned",
        load_seconds=0.5,
        first_call_seconds=0.5,
        call_seconds=(0.25,) if memory else (),
        outputs=(OutputDigest("out[0]", (2, 3), "float32", "ab"),),
        devices=runs,
        processes=1,
    )
    return plain_data(result.to_json())


def _device_run(device: dict[str, Any], *, memory: bool) -> DeviceRun:
    fields = {field.name for field in dataclasses.fields(MemoryAccount)}
    known = {name: value for name, value in device["memory"].items() if name in fields}
    return typed(DeviceRun, {**device, "memory": known if memory else None})


def _captured() -> dict[str, Any]:
    config = (ROOT / "xlapipe/devices/targets/h200_device.txtpb").read_text()
    return plain_data(
        CapturedTarget("NVIDIA H200", "580.159.04", {"jaxlib": "0.11.2"}, "2026-11-22", config)
    )
