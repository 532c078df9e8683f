"""Real `--json` outputs of the commands, of the dumps in this repository; nothing is compiled."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.reading.failure_logs import LOGS
from xlapipe.cli import main
from xlapipe.cli.cliff_table import cliff_figures
from xlapipe.cli.fit_table import fit_figures
from xlapipe.compiling.cliff import Cliff
from xlapipe.compiling.fit import PlannedMemory, Row, largest
from xlapipe.compiling.outside_plan import OutsidePlan
from xlapipe.compiling.recomputed import RecomputedKernel
from xlapipe.compiling.sweep import Axis, combinations
from xlapipe.dumps.dump import open_dump
from xlapipe.errors import XlapipeError
from xlapipe.report.dump_row import dump_row

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "hlo_dumps"
# One device and several, tuned and not, donated and not; and XLA's own files of an old version.
DUMPS = (
    GOLDENS / "float8-linear-step/h200-auto-tuned-jax0.11.2",
    GOLDENS / "qwen3-step-donated/h200-cublas-jax0.11.2",
    GOLDENS / "fsdp-mlp/h200-1x2-cublas-jax0.11.2",
    ROOT / "tests/reading/data/host_memory",
    ROOT / "tests/reading/data/jaxlib-0.12.0.1/sharded",
    ROOT / "tests/reading/data/jaxlib-0.4.30/cpu",
)


def outputs(folder: Path) -> Iterator[tuple[str, Any]]:
    """(command, its JSON); files are written into `folder`."""
    for command in ("list", "targets", "doctor"):
        yield command, printed(command)
    for dump in DUMPS:
        yield "show", printed("show", dump)
        yield "check", printed("check", dump)
    yield "show", printed("show", DUMPS[2], "--order")
    yield "report", printed("report", DUMPS[0], "--out", folder / "report.html")
    yield "report", printed("report", DUMPS[2], "--out", folder / "report.html")
    yield "diff", printed("diff", DUMPS[1], GOLDENS / "qwen3-step/h200-cublas-jax0.11.2")
    yield "diff", printed("diff", DUMPS[2], GOLDENS / "fsdp-mlp/h200-1x2-triton-jax0.11.2")
    yield "comment", printed("comment", GOLDENS / "qwen3-step", GOLDENS / "qwen3-step-donated")
    for number, log in enumerate(LOGS):
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
    yield "fit", _cliff()


def _out_of_temp(dump: Path) -> str:
    temp_bytes = open_dump(dump).plan.totals.temp_bytes
    return f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {temp_bytes} bytes."


def printed(command: str, *arguments: object) -> Any:
    """What the command prints with `--json`."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        main([command, *map(str, arguments), "--json"])
    return json.loads(out.getvalue())


_MEMORY = PlannedMemory(
    workload="w",
    topology=None,
    argument_bytes=1,
    output_bytes=2,
    temp_bytes=3,
    device_memory_bytes=100,
    usable_bytes=75,
    rematerialised=0,
    seconds={"all": 1.5},
)
_KERNEL = RecomputedKernel(
    instruction="fusion.3.remat",
    op_name="jit(step)/tanh",
    source="step.py:9",
    value_bytes=1000,
    launches=2,
    floor_seconds=1e-6,
)
_REMATERIALISED = replace(
    _MEMORY,
    rematerialised=1,
    recomputed=(_KERNEL,),
    floor_seconds=1e-5,
    order_bytes=3,
    outside=OutsidePlan(
        parts={"context": 1}, unmeasured=("nccl",), device="NVIDIA H200", visible_bytes=100
    ),
)


def _cliff() -> dict[str, Any]:
    points = combinations("qwen3-decode", [Axis("batch", (8, 9))])
    rows = [
        Row(point, memory) for point, memory in zip(points, (_MEMORY, _REMATERIALISED), strict=True)
    ]
    cliff = Cliff(
        vary="batch",
        below=(8, _MEMORY),
        above=(9, _REMATERIALISED),
        as_written=_MEMORY,
        compiled=((8, rows[0]), (9, rows[1])),
    )
    figures = {**fit_figures("qwen3-decode", "h200", rows, ()), "cliff": cliff_figures(cliff)}
    return json.loads(json.dumps(figures))


def _fit() -> dict[str, Any]:
    axes = [Axis("batch", (1, 8, 64))]
    outcomes = (_MEMORY, _REMATERIALISED, XlapipeError("failed"))
    points = combinations("qwen3-decode", axes)
    rows = [Row(point, outcome) for point, outcome in zip(points, outcomes, strict=True)]
    return json.loads(json.dumps(fit_figures("qwen3-decode", "h200", rows, largest(rows, axes))))
