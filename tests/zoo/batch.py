"""Compiles the programs of the zoo in one child process, and captures each as xlapipe does."""

import ast
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xlapipe.compile.capture import capture
from xlapipe.compile.job import Job
from xlapipe.compile.messages import CompileRecord
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.dump import Dump
from xlapipe.files.typed_data import typed
from xlapipe.registry import WorkloadReference

PROGRAMS = Path(__file__).with_name("programs")
DTYPES = (
    *("bool_", "int2", "int4", "int8", "int16", "int32"),
    *("uint2", "uint4", "uint8", "uint16", "uint32"),
    *("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    *("float16", "bfloat16", "float32", "complex64"),
)


def programs() -> tuple[WorkloadReference, ...]:
    """Every program of the zoo, found without importing jax."""
    others = ("step", "short", "dtypes")
    modules = sorted(path for path in PROGRAMS.glob("*.py") if path.stem not in others)
    short = re.findall(r'^    "(\w+)": \(', (PROGRAMS / "short.py").read_text(), re.MULTILINE)
    return (
        *(it for path in modules for it in programs_in(path)),
        *(WorkloadReference(name, "short:of", {"name": name}, PROGRAMS) for name in short),
        *(WorkloadReference(f"dtype_{it}", "dtypes:of", {"dtype": it}, PROGRAMS) for it in DTYPES),
    )


def programs_in(path: Path) -> tuple[WorkloadReference, ...]:
    """The programs of one module."""
    return tuple(
        WorkloadReference(name, f"{path.stem}:{name}", folder=path.parent)
        for name in _workloads_of(path)
    )


def _workloads_of(path: Path) -> Iterator[str]:
    """Names of the public functions that are annotated to return a Workload."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name, returns=ast.Name("Workload")) if name[0] != "_":
                yield name


@dataclass(frozen=True)
class Batch:
    """The results of a batch, one folder per program.

    Attributes:
      log: what the child printed.
    """

    folder: Path
    jobs: Mapping[str, Job]
    log: str

    def captured(self, name: str) -> Dump:
        """The dump of a program, captured from XLA's files.

        Raises:
          AssertionError: the program did not compile; the message is the child's.
        """
        result = json.loads((self.folder / name / "result.json").read_text(encoding="utf-8"))
        assert "error" not in result, f"{name}: {result['error']}\n{self.log[-2000:]}"
        record = typed(CompileRecord, result)
        source = self.jobs[name].reference.folder or PROGRAMS
        job = replace(self.jobs[name], scratch=self.folder / name, source_root=str(source))
        dump, _ = capture(job, record, where=name)
        return dump

    def cpu_seconds(self, name: str) -> float:
        """CPU time of lowering and compiling a program."""
        return float(self._measured(name)["cpu_seconds"])

    def _measured(self, name: str) -> dict[str, Any]:
        measured: dict[str, Any] = json.loads((self.folder / name / "measured.json").read_text())
        return measured


def dumps_of(batch: Batch) -> Callable[[str], Dump]:
    """`batch.captured`, which can be called once only, with a memory."""
    return functools.cache(batch.captured)


def compile_batch(
    references: Iterable[WorkloadReference],
    folder: Path,
    *,
    python: Path | None = None,
    packages: Path | None = None,
    more_paths: Iterable[Path] = (),
) -> Batch:
    """Compiles the programs for the H200 in one child process.

    Args:
      python: the interpreter of an environment with another jax; None for this one.
      packages: a folder of further packages; None for none.
      more_paths: folders that follow on the path of modules.
    """
    jobs = {
        reference.name: Job(
            reference=reference,
            target=target_named("h200"),
            # Optimisation of the kernels comes after buffer assignment and changes no plan.
            options={"xla_backend_optimization_level": 0},
        )
        for reference in references
    }
    paths = [str(packages)] if packages is not None else []
    paths += map(str, more_paths)
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    variables = {"PYTHONPATH": os.pathsep.join(paths)}
    return Batch(folder, jobs, run_child(jobs, folder, python=python, variables=variables))


def run_child(
    jobs: Mapping[str, Job],
    folder: Path,
    *,
    python: Path | None = None,
    variables: Mapping[str, str],
) -> str:
    """Compiles all jobs in one child process, and returns what it printed.

    Args:
      jobs: by the name of their folder below `folder`.
      variables: of the child's environment, in addition to those of xlapipe's compiling child.

    Raises:
      AssertionError: the child failed; the message ends with what it printed.
    """
    for name, job in jobs.items():
        own = replace(job, scratch=folder / name, started_seconds=time.monotonic())
        own.scratch.mkdir(parents=True)
        (own.scratch / "job.json").write_bytes(own.to_bytes())
    # Without variables that change what is compiled.
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "XLA_FLAGS" and not name.startswith("JAX_")
    }
    child = Path(__file__).with_name("batch_child.py")
    log = folder / "child.log"
    with log.open("w") as output:
        ended = subprocess.run(
            [str(python or sys.executable), "-P", str(child), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**kept, "JAX_PLATFORMS": "cpu", **variables},
            timeout=900,
            check=False,
        )
    text = log.read_text(errors="replace")
    assert ended.returncode == 0, f"exit code {ended.returncode}: {text[-4000:]}"
    return text
