"""A dump directory: written completely or not at all, reproducible, refused if modified."""

import hashlib
import json
import lzma
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB, ROOT
from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.dump.dump import TARGET_CONFIG, open_dump, read_file, read_manifest, write_dump
from xlapipe.dump.manifest import MANIFEST
from xlapipe.errors import DumpError, XlapipeError

pytestmark = pytest.mark.jax

READING = ("list", "targets", "show {dump}", "check {dump}", "show {dump} --json")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a small workload that is not registered."""
    out = tmp_path_factory.mktemp("dump")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        assert main(["dump", "broken:good", "--out", str(out), "--json"]) == 0
    (manifest,) = out.glob(f"*/*/{MANIFEST}")
    return manifest.parent


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_keys_of_the_json_of_show(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dump), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    totals = shown["totals"]
    assert totals["aliased_bytes"] == 131_072
    assert totals["total_allocation_bytes"] == (
        sum(allocation["size_bytes"] for allocation in shown["allocations"])
    )
    assert totals["total_allocation_bytes"] == (
        totals["parameter_bytes"]
        + totals["live_out_bytes"]
        - totals["aliased_bytes"]
        + totals["temp_bytes"]
        + totals["constant_bytes"]
        + totals["thread_local_bytes"]
    )
    assert shown["aliases"] == [{"parameter_number": 0, "output_index": [0]}]
    assert shown["target"] == "h200"
    assert shown["tuned"] is False
    assert shown["live_range_peak_bytes"] > 0
    assert sum(shown["thunks"].values()) > 0
    assert shown["gemms"] == []
    first = shown["allocations"][0]
    assert {"index", "size_bytes", "kinds", "parameter_number", "values"} <= set(first)
    assert {"name", "offset_bytes", "size_bytes", "shape"} <= set(first["values"][0])


def test_figures_that_a_proto_does_not_contain_are_null(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "step.hlo.pb"
    alone.write_bytes((dump / "after_optimizations.hlo.pb").read_bytes())
    assert main(["show", str(alone), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    for key in ("live_range_peak_bytes", "live_range_peak_position", "thunks", "target", "tuned"):
        assert shown[key] is None
    assert shown["totals"]["aliased_bytes"] == 131_072


def test_a_second_run_changes_no_byte(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(STEPS)
    before = {path.name: path.stat().st_mtime_ns for path in dump.iterdir()}
    assert main(["dump", "broken:good", "--out", str(dump.parent.parent), "--json"]) == 0
    assert {path.name: path.stat().st_mtime_ns for path in dump.iterdir()} == before


@pytest.mark.parametrize("name", ["after_optimizations.hlo.pb", "buffer-assignment.txt"])
def test_a_modified_file_is_refused(dump: Path, tmp_path: Path, name: str) -> None:
    copied = tmp_path / "copied"
    copied.mkdir()
    for file, content in files(dump).items():
        (copied / file).write_bytes(content)
    open_dump(copied)
    (copied / name).write_bytes((copied / name).read_bytes() + b"\n")
    with pytest.raises(DumpError, match="SHA-256"):
        open_dump(copied)
    (copied / name).unlink()
    with pytest.raises(DumpError, match=name):
        open_dump(copied)


def test_large_files_are_compressed_and_written_once(dump: Path, tmp_path: Path) -> None:
    manifest = open_dump(dump).manifest
    content = {"after_optimizations.txt": b"HloModule\n" * 40_000, "plan.txt": b"plan\n"}
    target = tmp_path / "large"
    write_dump(target, manifest, content)
    packed = target / "after_optimizations.txt.xz"
    assert lzma.decompress(packed.read_bytes()) == content["after_optimizations.txt"]
    write_dump(target, manifest, {**content, "plan.txt": b"other\n"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large"]


def test_files_that_people_or_programs_open_by_name_are_not_compressed(
    dump: Path, tmp_path: Path
) -> None:
    large = b"x\n" * 200_000
    names = ("plan.txt", "source_lines.json", "executable.pjrt", "autotune_lock.json")
    write_dump(tmp_path / "large", open_dump(dump).manifest, dict.fromkeys(names, large))
    found = {path.name for path in (tmp_path / "large").iterdir()}
    assert found == {*names, "manifest.json"}


@pytest.mark.parametrize("other", ["file", "folder", "link in it", "link"])
def test_a_users_files_are_not_replaced(dump: Path, tmp_path: Path, other: str) -> None:
    """`dump` replaced a folder that held another file, and printed success."""
    target, manifest = tmp_path / "dump", open_dump(dump).manifest
    for content in (b"1", b"2"):  # what a dump holds is replaced, and what a killed process left
        write_dump(target, manifest, {"plan.txt": content})
        (target / f".plan.txt.partial-{'0' * 16}").touch()
    (tmp_path / "thesis.txt").write_text("mine")
    if other == "file":
        (target / "thesis.txt").write_text("mine")
    elif other == "folder":
        (target / "plan.txt").unlink()
        (target / "plan.txt").mkdir()
    elif other == "link in it":
        (target / "hlo.txt").symlink_to(tmp_path / "thesis.txt")
    else:
        target.rename(tmp_path / "moved")
        target.symlink_to(tmp_path / "moved")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(XlapipeError, match=r"(holds other files|found a link).*fix: move it away"):
        write_dump(target, manifest, {"plan.txt": b"3"})
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_have_the_order_of_the_command(
    dump: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiles end in any order."""
    opened = open_dump(dump)

    def last_first(jobs: Any, out: Path, *, on_done: Any, **others: Any) -> None:
        for job in reversed(jobs):
            manifest = replace(opened.manifest, workload=job.reference.name)
            made = replace(opened, facts=manifest)
            on_done(job, SimpleNamespace(dump=made, changed=False, seconds=1.0, notes=()))

    monkeypatch.setattr("xlapipe.compile.pipeline.make_dumps", last_first)
    names = ["spectral-diffusion", "qwen3-step", "fsdp-mlp-reference"]
    assert main(["dump", *names, "--gemm", "cublas", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["dumps"]
    assert [row["workload"] for row in rows] == names


def test_a_damaged_packed_file_is_refused(dump: Path, tmp_path: Path) -> None:
    manifest = open_dump(dump).manifest
    content = {"after_optimizations.txt": b"HloModule\n" * 500_000, "plan.txt": b"plan\n"}
    target = tmp_path / "largest"
    write_dump(target, manifest, content)
    packed = target / "after_optimizations.txt.xz"
    assert packed.stat().st_size < 5_000
    assert read_file(target, "after_optimizations.txt") == content["after_optimizations.txt"]
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DumpError, match=r"txt\.xz: expected complete xz data"):
        read_file(target, "after_optimizations.txt")


@pytest.mark.parametrize("command", READING)
def test_reading_imports_no_jax(command: str, dump: Path) -> None:
    words = command.format(dump=dump).split()
    # What predicts times follows the threads of fusions in numpy's arrays.
    unneeded = {"jax", "jaxlib", "flax"} | ({"numpy"} if words[0] != "show" else set())
    program = (
        "import sys; from xlapipe.cli import main; code = main(sys.argv[1:]); "
        f"bad = {unneeded} & set(sys.modules); "
        "sys.exit(f'imported {bad}' if bad else code)"
    )
    done: Any = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_configuration_that_goldens_share_is_read_by_its_digest(
    dump: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(dump, tmp_path / "dump"))
    (folder / TARGET_CONFIG).unlink()
    assert open_dump(folder).target_config == open_dump(dump).target_config
    text = (folder / MANIFEST).read_text()
    digest = read_manifest(dump).files[TARGET_CONFIG]
    (folder / MANIFEST).write_text(text.replace(digest, "0" * 64))
    with pytest.raises(DumpError, match=r"target_config\.txtpb: .*missing"):
        open_dump(folder)
    golden = ROOT / f"hlo_dumps/qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}"
    config = open_dump(golden).target_config
    digest = read_manifest(golden).files[TARGET_CONFIG]
    assert config is not None and hashlib.sha256(config.encode()).hexdigest() == digest
    assert not (golden / TARGET_CONFIG).exists()
