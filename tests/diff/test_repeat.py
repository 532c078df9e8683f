"""`xlapipe dump --repeat`: compiles in differing processes, and where two of them part."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.compile.pipeline import CompiledDump
from xlapipe.diff.comparing.repeat import first_parting, processes
from xlapipe.dump.dump import open_dump
from xlapipe.dump.normal_form.plan import read_normal_form

pytestmark = pytest.mark.jax


@pytest.fixture
def compiled(goldens: Path) -> CompiledDump:
    """A compile, read from a golden."""
    path = goldens / f"float8-linear-step/h200-cublas-jax{GOLDEN_JAXLIB}"
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    return CompiledDump(open_dump(path), read_normal_form(path), files, {}, seconds=0.0)


def test_seeds_and_threads_vary() -> None:
    cores = len(os.sched_getaffinity(0))
    varied = processes(4)
    assert len({process.hash_seed for process in varied}) == 4
    assert varied[0].threads == cores
    assert all(1 <= process.threads <= cores for process in varied)


def test_equal_compiles_do_not_part(compiled: CompiledDump) -> None:
    assert first_parting(compiled, compiled, 2, processes(2)[1]) is None


def test_the_first_stage_and_line_are_found(compiled: CompiledDump) -> None:
    files = dict(compiled.files)
    for name in ("after_optimizations.txt", "thunk_sequence.txt"):
        files[name] = files[name].replace(b"fusion", b"fission", 1)
    parting = first_parting(compiled, replace(compiled, files=files), 3, processes(3)[2])
    assert parting is not None
    assert (parting.number, parting.plan_differs) == (3, False)
    assert "optimi" in parting.stage.lower()
    text = files["after_optimizations.txt"].decode()
    assert parting.other == text.split("\n")[parting.line - 1].strip()
    assert parting.first == parting.other.replace("fission", "fusion", 1)


def test_a_difference_outside_the_stages_is_found_too(compiled: CompiledDump) -> None:
    name = "after_optimizations.hlo.pb"
    files = {**compiled.files, name: compiled.files[name] + b"x"}
    parting = first_parting(compiled, replace(compiled, files=files), 2, processes(2)[1])
    assert parting is not None
    assert parting.stage == name


def test_repeat_takes_one_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "qwen3-step", "qwen3-decode", "--repeat", "2"]) == 2
    assert "--repeat takes one workload" in capsys.readouterr().err


@pytest.mark.slow
def test_compiles_in_fresh_processes_are_equal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(STEPS)
    assert main(["dump", "sized_step:sized", "--repeat", "2"]) == 0
    assert "2 compiles are equal to the last byte" in capsys.readouterr().out
