"""The files that `xlapipe report` writes; bad input writes none."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.cli import main
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.errors import XlapipeError
from xlapipe.files.writing import write_files
from xlapipe.plans import Plan
from xlapipe.report.html_page import render_page
from xlapipe.report.pages import page_lines
from xlapipe.report.plan_page import plan_page
from xlapipe.report.xla_subject import XlaSubject

DECODE = f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}"


def test_the_default_is_a_page_here(
    goldens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: object
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(goldens / DECODE)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_json_names_the_written_file(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new folder" / "r.html"
    assert main(["report", "--json", str(goldens / DECODE), "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == {"written": [str(out)]}
    assert out.is_file()


def test_a_file_that_cannot_be_written(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    target = tmp_path / "file" / "below"  # root may write where others may not
    assert main(["report", str(goldens / DECODE), "--out", str(target)]) == 2
    error = capsys.readouterr().err
    assert str(target) in error
    assert "cannot be written" in error
    assert "choose another place" in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into any folder")
def test_a_folder_without_permission(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    try:
        assert main(["report", str(goldens / DECODE), "--out", str(tmp_path / "r.html")]) == 2
    finally:
        tmp_path.chmod(0o700)
    assert "Permission denied" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_as_file(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(goldens / DECODE), "--out", str(tmp_path)]) == 2
    assert "expected the name of a file to write, found a folder" in capsys.readouterr().err


def test_a_missing_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "missing"), "--out", str(out)]) == 2
    assert "missing" in capsys.readouterr().err
    assert not out.exists()


def test_a_stage_that_was_edited(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(goldens / DECODE, tmp_path / "dump")
    with (tmp_path / "dump/before_optimizations.txt").open("a") as text:
        text.write("// mine\n")
    assert main(["report", str(tmp_path / "dump"), "--out", str(tmp_path / "r.html")]) == 2
    error = capsys.readouterr().err
    assert "before_optimizations.txt: content differs from the SHA-256" in error
    assert not (tmp_path / "r.html").exists()


def test_names_with_lone_surrogates(goldens: Path, tmp_path: Path) -> None:
    """JSON may contain half a surrogate pair; UTF-8 cannot."""
    shutil.copytree(goldens / DECODE, tmp_path / "dump")
    path = tmp_path / "dump/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["workload"] = manifest["arguments"][0]["path"] = "a\ud800\x1b[31mb"
    path.write_text(json.dumps(manifest))
    assert main(["report", str(path.parent), "--out", str(tmp_path / "r.html")]) == 0
    assert "<h1" in (tmp_path / "r.html").read_text()


def test_an_empty_plan() -> None:
    files = XlaFiles(Plan(()), path=Path("empty"))
    files.__dict__["stage_texts"] = ()  # there is no file to read them from
    subject = XlaSubject(files)
    assert "0 B" in render_page([subject])
    assert "total_allocation_bytes" in "\n".join(map(str, page_lines(plan_page(subject))))


def test_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "file").touch()
    with pytest.raises(XlapipeError, match="cannot be written"):
        write_files({tmp_path / "old": b"new", tmp_path / "file" / "x": b""})
    assert (tmp_path / "old").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"old", "file"}
