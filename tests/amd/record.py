"""Compiles programs for an AMD GPU and records what became of each: a line of JSON per program.

    .venv-rocm/bin/python -m tests.amd.record zoo|models|public [OUT]

`mi300x.jsonl` beside this module holds what `make test-amd` compares a part of.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.zoo.batch import programs
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import compile_dump, write_new
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.readers import read_path
from xlapipe.errors import XlapipeError
from xlapipe.registry import WorkloadReference, registered_workloads

RECORD = Path(__file__).with_name("mi300x.jsonl")
TARGET = "mi300x"


def references(kind: str) -> Iterable[WorkloadReference]:
    """The programs of a kind."""
    if kind == "zoo":
        return programs()
    if kind == "models":
        return list(registered_workloads())
    from tests.public.steps import STEPS  # needs the projects on the path

    folder = ROOT / "tests" / "public"
    return [WorkloadReference(name, "steps:of", {"step": name}, folder) for name in STEPS]


def job_of(reference: WorkloadReference, target: str = TARGET) -> Job:
    # Optimisation of the kernels comes after buffer assignment and changes no plan.
    options = {"xla_backend_optimization_level": 0}
    return Job(reference=reference, target=target_named(target), options=options)


def outcome(job: Job) -> dict[str, Any]:
    """What became of a compile: its totals, which equal XLA's own, or the error's line.

    Raises:
      AssertionError: the readers disagree.
    """
    try:
        compiled = compile_dump(job, None)
    except XlapipeError as error:
        return {"refused": str(error).splitlines()[0]}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "dump"
        write_new(compiled, folder)
        by_proto = read_path(folder)
        for proto in folder.glob("*.hlo.pb*"):
            proto.unlink()
        assert by_proto == read_path(folder), job.reference.name
    plan = compiled.dump.plan
    backends = sorted({str(gemm.backend) for gemm in plan.gemms})
    missing = sorted({str(item.kind) for item in plan.missing_memory})
    return {
        "memory": dict(compiled.dump.manifest.memory_analysis),
        **({"gemms": backends} if backends else {}),
        **({"not in the plan": missing} if missing else {}),
    }


def rows(kind: str) -> Iterator[dict[str, Any]]:
    for reference in references(kind):
        try:
            yield {"kind": kind, "program": reference.name, **outcome(job_of(reference))}
        except Exception as error:  # noqa: BLE001 - recorded, and the next one is compiled
            text = f"{type(error).__name__}: {error}"
            yield {"kind": kind, "program": reference.name, "failed": text[:400]}


if __name__ == "__main__":
    kind, *out = sys.argv[1:]
    with Path(out[0] if out else RECORD).open("a", encoding="utf-8") as stream:
        for row in rows(kind):
            stream.write(json.dumps(row, sort_keys=True) + "\n")
            stream.flush()
