"""What all commands share: errors and exit codes, and the table of compiles."""

import argparse
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from xlapipe.cli import main
from xlapipe.cli.compile_options import TARGET, compile_settings
from xlapipe.cli.dump_table import DumpTable
from xlapipe.cli.options import add_options
from xlapipe.cli.output import named_error, run_command
from xlapipe.compile.job import Job
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.devices.targets.topology import Topology
from xlapipe.dump.dump import open_dump
from xlapipe.errors import XlapipeError
from xlapipe.registry import WorkloadReference
from xlapipe.report.dump_row import dump_row
from xlapipe.report.pages import aligned_rows

LONG_NAME = "package.module_with_a_long_name:workload(layers=28)"


def job(name: str) -> Job:
    return Job(reference=WorkloadReference(name, "m:w"), target=target_named("h200"))


def fail() -> int:
    raise XlapipeError("a.txt: expected b, found c")


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("2", "2")])
def test_commands_that_only_read_start_numpy_without_threads(
    given: str | None, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")  # so that it is restored
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert main(["targets"]) == 0
    assert "OPENBLAS_NUM_THREADS" not in os.environ  # a program that it compiles may need them
    if given is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    assert main(["show", "missing"]) == 2
    assert os.environ["OPENBLAS_NUM_THREADS"] == threads


@pytest.mark.parametrize("json_output", [False, True])
def test_an_error_is_one_line_on_stderr(
    json_output: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(fail, program="tool", json_output=json_output) == 2
    out, err = capsys.readouterr()
    assert err == "tool: error: a.txt: expected b, found c\n"
    if json_output:
        assert json.loads(out) == {"error": "a.txt: expected b, found c"}
    else:
        assert out == ""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(errno.ENOENT, "x"), "the current folder was removed; fix: change to"),
        (OSError(errno.EMFILE, "Too many open files", "a.txt"), "a.txt: Too many open files; fix"),
        (RecursionError("maximum recursion depth"), "maximum recursion depth; fix: give a smaller"),
        (MemoryError(), "out of memory; fix: give a smaller input"),
        (ModuleNotFoundError("No module named 'jax'", name="jax"), "jax is not installed in this"),
    ],
)
def test_what_the_machine_lacks_is_an_error_with_code_2(
    error: Exception, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback has code 1, which means that an expectation fails."""

    def raise_it() -> int:
        raise error

    assert run_command(raise_it, program="tool", json_output=False) == 2
    assert capsys.readouterr().err.startswith(f"tool: error: {message}")


def test_nested_brackets_and_long_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    deep = "[" * 50_000
    for arguments in (["check", f"step:f(n={deep})"], ["show", "x", "--network", f"{{a={deep}"]):
        assert main(arguments) == 2
    (tmp_path / "pyproject.toml").write_text(f"[tool.xlapipe]\nnetwork = {deep}")
    assert main(["list"]) == 2
    assert "not valid TOML: " in capsys.readouterr().err


def interrupt() -> int:
    raise KeyboardInterrupt


def test_an_interrupt_is_not_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(interrupt, program="tool", json_output=False) == 130
    assert capsys.readouterr().err == "tool: interrupted\n"


def test_an_error_names_its_workload_once() -> None:
    assert named_error(job("my-step"), XlapipeError("no memory")) == "my-step (auto): no memory"
    assert named_error(job("my-step"), XlapipeError("my-step: crashed")) == "my-step: crashed"


def test_rows_of_the_dump_table_fit_a_terminal(
    goldens: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(Console, "width", 80)
    (path,) = (goldens / "qwen3-decode").glob("h200-cublas-jax*")
    with DumpTable([job("qwen3-decode")], silent=False) as table:
        table.add(dump_row(open_dump(path), changed=False, seconds=1.25))
    header, row, *_ = [line for line in capsys.readouterr().out.splitlines() if "  " in line]
    assert header.split() == ["workload", "target", "tuned", "total", "temp", "seconds", "dump"]
    assert row.split()[-1] == "same"


def test_rows_of_the_dump_table_are_aligned(
    goldens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (goldens / "qwen3-decode").glob("h200-cublas-jax*")
    jobs = [job("qwen3-decode"), replace(job(LONG_NAME), topology=Topology.parse("16x8"))]
    with DumpTable(jobs, silent=False) as table:
        table.add(dump_row(open_dump(path), changed=False, seconds=1.25))
        table.add_failure(jobs[1])
    header, compiled, failed, summary, folder, following = capsys.readouterr().out.splitlines()
    column = header.index("dump ")
    assert compiled[column:].startswith("same ")
    assert failed[column:] == "FAILED"
    assert failed.split() == [LONG_NAME, "h200", "16x8", "auto", "FAILED"]
    end = header.index("total") + len("total")
    assert compiled[:end].endswith("  377.4 MiB")
    assert summary == (
        "1 plan is untuned; to tune, on the GPU: xlapipe dump WORKLOAD --target attached "
        "--tuning tune"
    )
    assert folder == f"in {path}"
    assert following == f"Next: xlapipe show {path}"


def test_columns_of_a_text_table() -> None:
    rows = [("name", "bytes"), ("longer name", "1,024"), ("a", "")]
    assert aligned_rows(rows, right={1}) == [
        "name         bytes",
        "longer name  1,024",
        "a",
    ]
    assert aligned_rows([]) == []


def test_changes_of_xla_that_are_left_out_are_read_by_name() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, TARGET)
    given = parser.parse_args(["--without-xla-patch", "cub-table"])
    assert compile_settings(given, None).without_xla_patches == {XlaPatch.CUB_TABLE}
    with pytest.raises(SystemExit):
        parser.parse_args(["--without-xla-patch", "cub"])
