"""The files that `xlapipe report` writes; bad input writes none."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import DATA
from tests.shared.dumps import texts_of
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump
from xlapipe.dump.opened import Opened
from xlapipe.dump.readers import read_proto
from xlapipe.errors import XlapipeError
from xlapipe.files.writing import write_files
from xlapipe.inductor.open_path import open_path
from xlapipe.plans import Plan
from xlapipe.plans.program import Program
from xlapipe.report.html_page import render_page
from xlapipe.report.plan_page import report_markdown
from xlapipe.report.xprof import xprof_files, xspace

DECODE = f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}"


def test_the_default_is_a_page_here(
    goldens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: object
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(goldens / DECODE)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_text_goes_to_a_file(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new folder" / "report.md"
    assert main(["report", "--text", str(goldens / DECODE), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size:,} B\n"
    assert main(["report", "--text", str(goldens / DECODE)]) == 0
    assert capsys.readouterr().out == out.read_text()


def test_json_lists_the_written_files(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    assert main(["report", "--json", str(goldens / DECODE), "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == [str(out)]
    assert out.is_file()


@pytest.mark.parametrize("flag", ["--out", "--xprof"])
def test_a_file_that_cannot_be_written(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    (tmp_path / "file").write_text("mine")
    target = tmp_path / "file" / "below"  # root may write where others may not
    assert main(["report", str(goldens / DECODE), flag, str(target)]) == 2
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
    assert main(["report", "--text", str(path.parent), "--out", str(tmp_path / "r.md")]) == 0
    text = (tmp_path / "r.md").read_text()
    assert text.startswith("# a�␛[31mb on h200")


def test_an_empty_plan() -> None:
    subject = Opened(Path("empty"), Program(Plan(())))
    subject.__dict__["stage_texts"] = ()  # there is no file to read them from
    assert "0 B" in render_page([subject])
    assert "total_allocation_bytes" in report_markdown([subject])


def test_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "file").touch()
    with pytest.raises(XlapipeError, match="cannot be written"):
        write_files({tmp_path / "old": b"new", tmp_path / "file" / "x": b""})
    assert (tmp_path / "old").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"old", "file"}


def test_xprof_folder(goldens: Path, tmp_path: Path) -> None:
    paths = [str(goldens / DECODE), str(DATA / "jaxlib-0.11.2/step")]
    assert main(["report", *paths, "--xprof", str(tmp_path)]) == 0
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        "plugins/profile/qwen3-decode-h200-cublas-jax0_12_0_1/jit_decode.hlo_proto.pb",
        "plugins/profile/qwen3-decode-h200-cublas-jax0_12_0_1/xlapipe.xplane.pb",
        "plugins/profile/step/jit_step.hlo_proto.pb",
        "plugins/profile/step/xlapipe.xplane.pb",
    }
    (proto,) = tmp_path.glob("plugins/profile/qwen3*/*.hlo_proto.pb")
    read, golden = read_proto(proto.read_bytes(), where="proto"), open_dump(goldens / DECODE).plan
    assert (read.module, read.allocations) == (golden.module, golden.allocations)
    assert proto.read_bytes() in proto.with_name("xlapipe.xplane.pb").read_bytes()


def test_two_dumps_of_one_name_are_two_runs(goldens: Path) -> None:
    subject = open_path(goldens / DECODE)
    runs = {path.parent.name for path in xprof_files([subject, subject, subject])}
    assert len(runs) == 3


def test_xprof_needs_a_proto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = texts_of(DATA / "jaxlib-0.9.2/step")
    path = tmp_path / "module_0001.jit_step.gpu_after_optimizations-buffer-assignment.txt"
    path.write_text(texts.assignment.text)
    assert main(["report", str(path), "--xprof", str(tmp_path / "log")]) == 2
    error = capsys.readouterr().err
    assert "expected an .hlo.pb, found only text" in error
    assert "--xla_dump_hlo_as_proto" in error
    assert not (tmp_path / "log").exists()


def test_xspace_is_a_message_that_protobuf_reads() -> None:
    space = _xspace_class().FromString(xspace("jit_f", b"x" * 300))
    (plane,) = space.planes
    assert plane.name == "/host:metadata"
    event = plane.event_metadata[1]
    assert (event.id, event.name) == (1, "jit_f")
    (stat,) = event.stats
    assert stat.bytes_value == b"x" * 300
    assert plane.stat_metadata[stat.metadata_id].name == "Hlo Proto"


def _xspace_class() -> Any:
    """The part of tsl's xplane.proto that is used, under a private package's name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="xlapipe_test_xplane.proto", package="xlapipe.test", syntax="proto3"
    )
    kinds = {"int64": 3, "string": 9, "bytes": 12}

    def message(name: str, /, **fields: tuple[int, str]) -> Any:
        made = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated = kind.startswith("*")
            added = made.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind.strip("*") in kinds:
                added.type = kinds[kind]
            else:
                added.type, added.type_name = 11, f".xlapipe.test.{kind.strip('*')}"
        return made

    message("XStat", metadata_id=(1, "int64"), bytes_value=(6, "bytes"))
    message("XEventMetadata", id=(1, "int64"), name=(2, "string"), stats=(5, "*XStat"))
    message("XStatMetadata", id=(1, "int64"), name=(2, "string"))
    plane = message(
        "XPlane",
        name=(2, "string"),
        event_metadata=(4, "*XPlane.EventMetadataEntry"),
        stat_metadata=(5, "*XPlane.StatMetadataEntry"),
    )
    for name in ("Event", "Stat"):
        entry = plane.nested_type.add(name=f"{name}MetadataEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=3)
        value_type = f".xlapipe.test.X{name}Metadata"
        entry.field.add(name="value", number=2, label=1, type=11, type_name=value_type)
    message("XSpace", planes=(1, "*XPlane"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("xlapipe.test.XSpace"))
