"""What became of a compile for an AMD GPU, as `mi300x.jsonl` has it: a line of JSON per program."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import compile_dump, write_new
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.readers import read_path
from xlapipe.errors import XlapipeError
from xlapipe.plans import Plan
from xlapipe.registry import WorkloadReference

RECORD = Path(__file__).with_name("mi300x.jsonl")
TARGET = "mi300x"
_SMALLEST_NORMAL = 2.0**-126
_REAL = re.compile(r"real=[^,]*")


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
        line = str(error).splitlines()[0].partition("; the child's log")[0]
        return {"refused": line.replace(f"{ROOT}/", "")}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "dump"
        write_new(compiled, folder)
        by_proto = read_path(folder)
        for proto in folder.glob("*.hlo.pb*"):
            proto.unlink()
        _refuse_difference(by_proto, read_path(folder), job.reference.name)
    plan = compiled.dump.plan
    backends = sorted({str(gemm.backend) for gemm in plan.gemms})
    missing = sorted({str(item.kind) for item in plan.missing_memory})
    return {
        "memory": dict(compiled.dump.manifest.memory_analysis),
        **({"gemms": backends} if backends else {}),
        **({"not in the plan": missing} if missing else {}),
    }


def _refuse_difference(by_proto: Plan, by_text: Plan, name: str) -> None:
    """Refuses plans that differ, but for constants so small that XLA's text has 0 for them."""
    pairs = zip(by_proto.module.instructions(), by_text.module.instructions(), strict=True)
    for (_, one), (_, other) in pairs:
        if one != other:
            assert abs(one.real or 0) < _SMALLEST_NORMAL, (name, one, other)
            assert _REAL.sub("", repr(one)) == _REAL.sub("", repr(other)), (name, one, other)
    assert replace(by_proto, module=None) == replace(by_text, module=None), name
