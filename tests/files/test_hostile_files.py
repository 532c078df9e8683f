"""Files that anybody may have made: pipes, devices, links, bombs; and faults while writing."""

import gzip
import json
import lzma
import os
import re
import shutil
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.dumps import ROOT
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump
from xlapipe.errors import DumpError, XlapipeError
from xlapipe.files.contents import parse_json, read_head, read_json, read_packed, read_plain
from xlapipe.files.writing import replace_folder, write_files, write_folder
from xlapipe.time.predict.calibration import CalibrationError, read_calibration

DUMP = ROOT / f"hlo_dumps/qwen3-step-donated/h200-triton-jax{GOLDEN_JAXLIB}"
_PATIENCE_SECONDS = 60


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DUMP, tmp_path / "dump"))


def small_file(dump: Path) -> Path:
    """A file of the dump that a plan is read from, not compressed."""
    return next(
        path for path in sorted(dump.glob("*.txt")) if path.name.startswith("buffer-assignment")
    )


@pytest.mark.parametrize("name", ["manifest.json", "buffer-assignment.txt", "time_record.json"])
@pytest.mark.parametrize("kind", ["pipe", "link", "device", "folder"])
def test_what_is_no_file_of_a_dump(
    dump: Path, tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe used to hang, and a link to /dev/zero to take all memory."""
    path = dump / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        shutil.copy(DUMP / name if (DUMP / name).exists() else __file__, tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    assert main(["show", "--time", str(dump)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert "found a " in error
    assert "fix: " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_file_that_unpacks_to_too_much(
    dump: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlapipe.dump.dump._LARGEST_FILE_BYTES", 1 << 20)
    zeros = bytes(1 << 24)
    path = small_file(dump)
    packed = gzip.compress(zeros) if suffix == ".gz" else lzma.compress(zeros)
    path.with_name(path.name + suffix).write_bytes(packed)
    path.unlink()
    with pytest.raises(DumpError, match="at most 1048576 bytes unpacked, found more"):
        open_dump(dump)


def test_a_ratio_that_no_dump_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlapipe.files.contents._ALWAYS_UNPACKED_BYTES", 1 << 16)
    bomb = tmp_path / "bomb.txt.xz"
    bomb.write_bytes(lzma.compress(bytes(1 << 24)))
    assert bomb.stat().st_size * 1000 < 1 << 24
    with pytest.raises(DumpError, match="found more"):
        read_packed(bomb)


@pytest.mark.parametrize("read", [read_plain, read_packed, read_json, read_head])
def test_no_reader_waits_for_a_pipe(tmp_path: Path, read: object) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = (pipe, 10) if read is read_head else (pipe,)
    with pytest.raises(DumpError, match="expected a file, found a special file"):
        read(*arguments)  # type: ignore[operator]


def test_json_has_no_nan(tmp_path: Path) -> None:
    for text in ('{"a": NaN}', '{"a": -Infinity}', "[" * 100_000, b"\xff".decode("latin-1")):
        (tmp_path / "a.json").write_text(text, encoding="latin-1")
        with pytest.raises(DumpError, match=r"a\.json: not JSON"):
            read_json(tmp_path / "a.json")


def test_a_report_into_a_device_leaves_the_device(tmp_path: Path) -> None:
    """As root, `--out /dev/full` removed the device."""
    assert main(["report", str(DUMP), "--out", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
    with pytest.raises(XlapipeError, match="/dev/full: cannot be written: No space left"):
        write_files({Path("/dev/full"): b"report"})
    assert Path("/dev/full").is_char_device()


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "new").symlink_to("made")
    write_files({tmp_path / "link": b"one", tmp_path / "new": b"two"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"one"
    assert (tmp_path / "made").read_bytes() == b"two"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "made", "new", "real"]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        content = pool.submit(pipe.read_bytes)
        write_files({pipe: b"report"})
        assert content.result(_PATIENCE_SECONDS) == b"report"
    assert pipe.is_fifo()


def test_a_planted_link_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the hidden name were known, a link of that name is not opened."""
    monkeypatch.setattr("xlapipe.files.writing.secrets.token_hex", lambda count: "known")
    (tmp_path / "victim").write_text("kept")
    (tmp_path / ".report.partial-known").symlink_to("victim")
    with pytest.raises(XlapipeError, match="cannot be written"):
        write_files({tmp_path / "report": b"other"})
    assert (tmp_path / "victim").read_text() == "kept"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"platform": "sycl"}, "platform: expected cuda or rocm or tpu, found "),
        ({"versions": {}}, "versions: expected that of jaxlib, found none"),
        ({"versions": {"jax": 1}}, "versions"),
        ({"arguments": [{}]}, "arguments[0].path: expected a value, found none"),
        ({"tuned": "no"}, "tuned: expected true or false, found 'no'"),
    ],
)
@pytest.mark.parametrize("command", ["show", "check", "run"])
def test_a_manifest_of_another_form(
    dump: Path,
    command: str,
    change: dict[str, object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An unknown platform was a KeyError."""
    manifest = dump / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    assert main([command, str(dump)]) == 2
    assert f"{manifest}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("leaves", "name", "value"),
    [
        ("outputs", "index", -1),
        ("outputs", "index", 2**63),
        ("outputs", "shape", [-1]),
        ("arguments", "parameter_number", -1),
        ("arguments", "size_bytes", -1),
    ],
)
def test_a_leaf_with_a_number_that_none_has(
    dump: Path, leaves: str, name: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """A negative index of an output was read as one of an operand."""
    manifest = dump / "manifest.json"
    data = json.loads(manifest.read_text())
    data[leaves][0][name] = value
    manifest.write_text(json.dumps(data))
    assert main(["report", str(dump), "--out", str(dump / "report.html")]) == 2
    error = capsys.readouterr().err
    assert f"{manifest}: {leaves}[0].{name}" in error
    assert "expected an integer" in error
    assert not (dump / "report.html").exists()


def test_an_older_plan_beside_another_dump_is_damage(dump: Path, tmp_path: Path) -> None:
    """`diff --markdown` said that no plan changed when plan.txt alone was kept."""
    new = tmp_path / "new"
    shutil.copytree(dump, new / "dump")
    old = tmp_path / "old"
    shutil.copytree(ROOT / f"hlo_dumps/qwen3-step/h200-triton-jax{GOLDEN_JAXLIB}", old / "dump")
    shutil.copy(dump / "plan.txt", old / "dump" / "plan.txt")
    from xlapipe.report.changed_dumps import changed_dumps

    with pytest.raises(DumpError, match=r"old/dump/plan\.txt: content differs from the SHA-256"):
        changed_dumps(old, new)


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path) -> None:
    """A partial file or folder that is younger may be of a process that lives."""
    write_folder(tmp_path / "dump", {"file": b"old"}, fix="…")
    left = [tmp_path / f".{name}.partial-{'0' * 16}" for name in ("dump", "page.html")]
    left[0].mkdir()
    left[1].touch()
    for age_seconds, names in ((0, {"dump", *(path.name for path in left)}), (90_000, {"dump"})):
        for path in left:
            os.utime(path, (time.time() - age_seconds,) * 2)
        write_folder(tmp_path / "dump", {"file": b"new"}, fix="…")
        assert {path.name for path in tmp_path.iterdir()} == names
    assert (tmp_path / "dump/file").read_bytes() == b"new"


@pytest.mark.parametrize("members", [1, 3])
def test_a_gzip_bomb_takes_little_memory(tmp_path: Path, members: int) -> None:
    bomb = tmp_path / "module.hlo.pb.gz"
    bomb.write_bytes(gzip.compress(bytes(100 << 20)) * members)
    tracemalloc.start()
    with pytest.raises(DumpError, match="at most 1024000 bytes unpacked"):
        read_packed(bomb, limit_bytes=1000 << 10)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 16 << 20


def test_a_module_with_large_constants_is_read(tmp_path: Path) -> None:
    """16 KB of xz are a captured array of 96 MiB: our own dump was refused."""
    (tmp_path / "module.hlo.pb.gz").write_bytes(gzip.compress(bytes(65 << 20), 1))
    assert len(read_packed(tmp_path / "module.hlo.pb.gz")) == 65 << 20


@pytest.mark.parametrize("exchange", [True, False])
def test_many_writers_of_one_folder(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """106 of 3,000 concurrent writes failed."""
    if not exchange:
        monkeypatch.setattr("xlapipe.files.writing._exchanged", lambda one, other: False)
    folder = tmp_path / "dump"
    write_folder(folder, {"file": b"0"}, fix="…")
    done = threading.Event()

    def watch() -> int:
        count = 0
        while not done.is_set():
            count += not folder.exists()
        return count

    with ThreadPoolExecutor(9) as pool:
        watched = pool.submit(watch)
        writes = [
            pool.submit(write_folder, folder, {"file": str(number).encode()}, fix="…")
            for number in range(600)
        ]
        try:
            for write in writes:
                write.result(_PATIENCE_SECONDS)
        finally:
            done.set()
        missing = watched.result(_PATIENCE_SECONDS)
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]
    assert int((folder / "file").read_bytes()) in range(600)
    if exchange:
        assert missing == 0


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path / "dump", {"file": b"old"}, fix="…")
    with pytest.raises(ZeroDivisionError), replace_folder(tmp_path / "dump", fix="…") as folder:
        (folder / "file").write_text(str(1 // 0))
    assert (tmp_path / "dump/file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]


def test_reading_reserves_no_more_than_the_file(tmp_path: Path) -> None:
    """Python reserves the memory of all bytes that are asked for: 4 GiB for a file of a dump."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    tracemalloc.start()
    try:
        assert read_plain(path, limit_bytes=4 << 30) == b"x" * 1000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_gzip_of_too_many_members(tmp_path: Path) -> None:
    """An empty member is 20 bytes: 512 MiB of them took minutes."""
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"") * 100_001)
    with pytest.raises(DumpError, match="members of gzip"):
        read_packed(path)


def test_xz_that_asks_for_gigabytes(tmp_path: Path) -> None:
    """The decoder reserves the dictionary that the file states."""
    data = bytearray(lzma.compress(b"x" * 100))
    header_bytes = (data[12] + 1) * 4
    assert data[14:16] == b"\x21\x01"  # LZMA2 with one byte of properties
    data[16] = 39  # a dictionary of 3 GiB
    end = 12 + header_bytes - 4
    data[end : end + 4] = zlib.crc32(data[12:end]).to_bytes(4, "little")
    path = tmp_path / "file.xz"
    path.write_bytes(data)
    with pytest.raises(DumpError, match="emory"):
        read_packed(path)


@pytest.mark.parametrize(
    "text",
    ["NaN", "-Infinity", "1e999", "1" * 5000, str(1 << 64), "[" * 100_000, '{"a":' * 100_000, "["],
)
def test_json_that_python_cannot_calculate_with(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|integer|nested|Expecting"):
        parse_json(f'{{"value": {text}}}')


_CALIBRATION = ROOT / "xlapipe/time/predict/calibrations/h200.jsonl.gz"


@pytest.mark.parametrize("place", [1, 3])
def test_a_calibration_with_an_integer_that_has_no_float(tmp_path: Path, place: int) -> None:
    """`math.isfinite` raised OverflowError."""
    lines = gzip.decompress(_CALIBRATION.read_bytes()).decode().splitlines()
    lines[place] = re.sub(r"\d+\.\d+", "9" * 400, lines[place], count=1)
    path = tmp_path / "calibration.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(CalibrationError, match=f"line {place + 1}"):
        read_calibration(path)
