"""Checks that a workload's expectations fail on programs that were broken on purpose."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from xlapipe import Workload
from xlapipe.cli import main
from xlapipe.dump.dump import Dump, open_dump
from xlapipe.expect import check_all


def compile_dumps(
    references: Sequence[str], out: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> list[Dump]:
    """Dumps of workloads, compiled for the H200 under the GEMM policy `cublas`."""
    command = ["dump", *references, "--gemm", "cublas", "--out", str(out), "--jobs", "2"]
    assert main([*command, *options, "--json"]) == 0
    return [open_dump(Path(row["path"])) for row in json.loads(capsys.readouterr().out)["dumps"]]


def each_expectation_fails_on_one(make: Callable[[], Workload], dumps: Sequence[Dump]) -> None:
    """Checks that each broken program breaks some expectations of `make()`, and all some program.

    Raises:
      AssertionError: a program breaks no expectation or every one, or one is broken by none.
    """
    expectations = tuple(e for e in make().expectations if e.under in (None, "cublas"))
    unbroken = set(expectations)
    for dump in dumps:
        findings = check_all(expectations, dump)
        broken = {e for e, f in zip(expectations, findings, strict=True) if not f.holds}
        assert broken, f"{dump.manifest.workload} breaks no expectation"
        assert broken != set(expectations), f"{dump.manifest.workload} breaks every expectation"
        unbroken -= broken
    assert unbroken == set()
