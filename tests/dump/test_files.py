"""Finding the files of a dump, and reading them, also if they are not what was expected."""

import gzip
import lzma
import os
import shutil
from pathlib import Path

import pytest

from tests.shared.dumps import DATA, as_own_layout, one
from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.file_contents import read_bytes
from xlapipe.dump.readers.files import in_directory
from xlapipe.errors import DumpError

STEP = DATA / "jaxlib-0.12.0.1" / "step"
SHARDED = DATA / "jaxlib-0.12.0.1" / "sharded"
OLD = DATA / "jaxlib-0.9.2" / "step"


def reject(path: Path, message: str) -> None:
    with pytest.raises(DumpError, match=message) as caught:
        read_path(path)
    assert "\n" not in str(caught.value).partition(":\n")[0]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """An unpacked copy of a dump, which tests may damage."""
    target = tmp_path / "dump"
    target.mkdir()
    for path in STEP.iterdir():
        (target / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))
    return target


def test_packed_and_unpacked_files_are_read_alike(dump: Path) -> None:
    assert read_path(dump) == read_path(STEP)
    packed = one(dump, "*buffer-assignment.txt")
    packed.write_bytes(gzip.compress(packed.read_bytes()))  # by content, not by name
    assert read_path(packed) == read_path(STEP)
    for path in list(dump.iterdir()):
        (dump / f"{path.name}.xz").write_bytes(lzma.compress(read_bytes(path)))
        path.unlink()
    assert read_path(dump) == read_path(STEP)


def test_other_files_of_a_dump_are_refused(dump: Path) -> None:
    for pattern in ("*after_optimizations.txt", "*assignment-values.txt", "*live-range.txt"):
        reject(one(dump, pattern), "the directory of an XLA dump")


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    text = shutil.copy(one(OLD, "*buffer-assignment.txt.gz"), tmp_path / "from a bug report")
    plan = read_path(text)
    assert plan.total_bytes_used == read_path(OLD).total_bytes_used
    assert plan.thunks is None
    assert plan.live_ranges is not None
    proto = shutil.copy(one(STEP, "*.hlo.pb.gz"), tmp_path / "x.pb.gz")
    assert read_path(proto).allocations == read_path(STEP).allocations


def test_missing_siblings_are_none(dump: Path) -> None:
    for pattern in ("*thunk*", "*live-range*", "*-values.txt"):
        for path in dump.glob(pattern):
            path.unlink()
    plan = read_path(dump)
    assert plan.thunks is plan.live_ranges is plan.total_bytes_used is None
    assert plan.allocations == read_path(STEP).allocations


def test_thunks_are_those_of_the_module(tmp_path: Path) -> None:
    for path in (*STEP.iterdir(), *SHARDED.iterdir()):
        shutil.copy(path, tmp_path)
    for directory in (STEP, SHARDED):
        name = one(directory, "*.hlo.pb.gz").name
        assert read_path(tmp_path / name) == read_path(directory)


def test_several_modules_are_listed(tmp_path: Path) -> None:
    for path in (*STEP.iterdir(), *SHARDED.iterdir()):
        shutil.copy(path, tmp_path)
    reject(tmp_path, r"expected one optimised module, found 2 .*:\n.*step.*\n.*sharded")


def test_a_directory_without_an_optimised_module_is_rejected(tmp_path: Path) -> None:
    reject(tmp_path, "expected an optimised module .* found neither")
    (tmp_path / "module_0001.jit_f.before_optimizations.hlo.pb").write_bytes(b"x")
    reject(tmp_path, "expected an optimised module .* found neither")


@pytest.mark.parametrize("folder", ["a/h200", "h200", "hlo_dumps/a/h200"])
def test_a_folder_of_dumps_lists_them(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "manifest.json").write_text("{}")
    reject(tmp_path, rf"expected one dump, found a folder of 1; fix: name one of:\n  .*/{folder}")


def test_file_names_of_xlapipe_with_a_manifest(tmp_path: Path) -> None:
    own = as_own_layout(STEP, tmp_path)
    (own / "manifest.json").write_text("{}")
    assert read_path(own) == read_path(STEP)


def test_no_such_file(tmp_path: Path) -> None:
    reject(tmp_path / "absent", "expected a file or directory, found none")
    reject(tmp_path / "absent" / "x.hlo.pb", "expected")
    reject(tmp_path / "absent-buffer-assignment.txt", "expected")
    reject(Path("nul\0.txt"), "expected")


def test_a_directory_named_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "x-buffer-assignment.txt").mkdir()
    reject(tmp_path / "x-buffer-assignment.txt", "expected an optimised module")


def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.hlo.pb")
    reject(tmp_path / "x.hlo.pb", "expected a file, found a special file")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found an empty file"),
        (b"\n\n", "found an empty file"),
        (b"\x00\x01\x02", "found a NUL byte"),
        (b"\xff\xfe\xfd", "expected UTF-8 text, found byte 0xff"),
        (b"BufferAssignment:\nallocation 0: size 4, \xc3(:\n", r":2: expected UTF-8 text"),
        (b"hello", "expected `BufferAssignment:`"),
        (b"BufferAssignment:\n", "found neither"),
        (b"\x1f\x8b\x08", "found an early end"),
        (gzip.compress(b"BufferAssignment:\n" * 99, mtime=0)[:-9], "gzip"),
        (gzip.compress(b"BufferAssignment:\n", mtime=0)[:-8] + b"\0" * 8, "damaged"),
        (lzma.compress(b"BufferAssignment:\n" * 99)[:-9], "complete xz data, found an early end"),
        (lzma.compress(b"BufferAssignment:\n")[:20] + b"\1" * 40, "xz data, found damaged"),
    ],
)
def test_other_files_are_rejected(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x-buffer-assignment.txt"
    path.write_bytes(data)
    reject(path, message)


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x01", b"\xff" * 40, b"BufferAssignment:\n", b"\x0a\x00"]
)
def test_other_protos_are_rejected(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x_after_optimizations.hlo.pb"
    path.write_bytes(data)
    reject(path, "expected an HloProto")


def test_a_module_without_buffers(dump: Path) -> None:
    from xlapipe.dump.readers.hlo_proto import HloProto

    path = one(dump, "*.hlo.pb")
    proto = HloProto.FromString(path.read_bytes())
    proto.ClearField("buffer_assignment")
    path.write_bytes(proto.SerializeToString())
    reject(path, "expected a module with a buffer assignment, found none")


def test_unpacking_stops_at_the_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.pb"
    path.write_bytes(gzip.compress(bytes(50_000_000)))
    assert path.stat().st_size < 100_000
    with pytest.raises(DumpError, match="expected at most 1000000 bytes unpacked"):
        read_bytes(path, limit_bytes=1_000_000)
    with pytest.raises(DumpError, match="expected at most 1000 bytes"):
        read_bytes(path, limit_bytes=1000)


def test_gzip_members_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b"a", mtime=0) + gzip.compress(b"b"))
    assert read_bytes(path) == b"ab"


def test_a_total_of_another_compile_is_rejected(dump: Path) -> None:
    values = one(dump, "*assignment-values.txt")
    text = values.read_text()
    total = read_path(STEP).total_bytes_used
    values.write_text(text.replace(f"Total bytes used: {total}", "Total bytes used: 5"))
    reject(dump, f"XLA's total of 5 bytes, found .* with {total} bytes")


def test_links_out_of_the_folder_are_not_read(tmp_path: Path) -> None:
    """`report` packed the file that such a link leads to into its page."""
    (tmp_path / "mine.txt").write_text("mine")
    for name in ("module_0001.jit_f.before_optimizations.txt", "module_0001.thunk_sequence.txt"):
        dump = tmp_path / name
        dump.mkdir()
        (dump / "m.gpu_after_optimizations-buffer-assignment.txt").write_text("BufferAssignment:")
        (dump / "other.txt").symlink_to(tmp_path / "mine.txt")
        assert in_directory(dump).assignment is not None
        (dump / name).symlink_to(tmp_path / "mine.txt")
        with pytest.raises(DumpError, match="found a link out of its folder; fix: copy the file"):
            in_directory(dump)
