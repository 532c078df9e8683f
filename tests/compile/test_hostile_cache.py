"""The compile cache: a result comes back as it was kept, or not at all."""

import json
import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dump.fuzz_readers import compile_cache, contents, job_into, leaves
from xlapipe.compile import compile_cache as compile_cache_module
from xlapipe.compile.compile_cache import CompileCache
from xlapipe.devices.environment.scratch import make_own_folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with the result `key.zip`."""
    return Path(shutil.copytree(compile_cache(), tmp_path / "cache"))


def is_restored(cache: Path, folder: Path, key: str = "key") -> bool:
    """Whether the result comes back; its files must then be the kept ones, and else none."""
    record = CompileCache(cache).restore(key, job_into(folder), leaves())
    kept = contents(compile_cache().parent)
    del kept["cache/key.zip"]
    assert contents(folder) == (kept if record is not None else {})
    return record is not None


def test_a_sound_result_comes_back(cache: Path, tmp_path: Path) -> None:
    assert is_restored(cache, tmp_path / "out")


def test_a_result_of_another_program_does_not(cache: Path, tmp_path: Path) -> None:
    """A file that was copied to another key used to be taken for that key's plan."""
    shutil.copy(cache / "key.zip", cache / "other.zip")
    assert not is_restored(cache, tmp_path / "out", "other")


def test_a_read_only_cache_is_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result was restored, and then compiled again, because its time could not be set."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    assert is_restored(cache, tmp_path / "out")


def test_what_another_user_may_have_made_does_not(cache: Path, tmp_path: Path) -> None:
    """A forged entry became the plan: its digest needs no secret."""
    assert is_restored(cache, tmp_path / "own")
    (cache / "key.zip").chmod(0o666)
    assert is_restored(cache, tmp_path / "in own folder")
    cache.chmod(0o777)
    assert not is_restored(cache, tmp_path / "writable")
    make_own_folder(cache)
    assert is_restored(cache, tmp_path / "own again")
    job = job_into(tmp_path / "shape")
    changed = (replace(leaves()[0], shape=(7,)), *leaves()[1:])
    assert CompileCache(cache).restore("key", job, changed) is None, "of another program"
    if os.getuid() == 0:
        os.chown(cache / "key.zip", 65534, 65534)
        assert not is_restored(cache, tmp_path / "another user's")


@pytest.mark.parametrize("kind", ["cut", "empty", "flipped", "folder", "pipe", "device", "loop"])
def test_what_is_no_result(cache: Path, tmp_path: Path, kind: str) -> None:
    path = cache / "key.zip"
    content = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "loop"):
        path.symlink_to("/dev/zero" if kind == "device" else path)
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:-1], "empty": b"", "flipped": flipped}[kind])
    assert not is_restored(cache, tmp_path / "out")


def test_members_of_another_program_below_the_key_of_this_one(cache: Path, tmp_path: Path) -> None:
    """The archive's comment is that of the key, its members are of another compile."""
    path = cache / "key.zip"
    with zipfile.ZipFile(path) as archive:
        comment = archive.comment
        files = {name: archive.read(name) for name in archive.namelist()}
    record = json.loads(files["record.json"])
    others = {**files, "record.json": json.dumps({**record, "workload": "other"}).encode()}
    for members, sound in ((files, True), (others, False)):
        with zipfile.ZipFile(path, "w") as archive:
            archive.comment = comment
            for name, data in members.items():
                archive.writestr(name, data)
        assert is_restored(cache, tmp_path / f"out-{sound}") is sound


def test_what_killed_writers_left_is_removed(cache: Path, tmp_path: Path) -> None:
    record = CompileCache(cache).restore("key", job_into(tmp_path / "first"), leaves())
    assert record is not None
    left = cache / f".other.zip.partial-{'0' * 16}"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    CompileCache(cache).keep("key", job_into(tmp_path / "first"), record)
    assert [path.name for path in cache.iterdir()] == ["key.zip"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dump/../../escaped", b"x"),
        ("/escaped", b"x"),
        ("dump/", b"x"),
        ("dump/zeros", bytes(600 << 20)),
    ],
)
def test_entries_that_no_compile_makes(
    cache: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    with zipfile.ZipFile(cache / "key.zip", "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(name, content)
    assert not is_restored(cache, tmp_path / "out")
    assert not (tmp_path / "escaped").exists()


def test_a_record_of_other_types(cache: Path, tmp_path: Path) -> None:
    path = cache / "key.zip"
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    record = json.loads(files["record.json"])
    for name, value in (("workload", 3), ("memory_analysis", {"temp_bytes": "7"})):
        with zipfile.ZipFile(path, "w") as archive:
            changed = json.dumps({**record, name: value}).encode()
            members = {**files, "record.json": changed}
            archive.comment = compile_cache_module._binding("key", members)
            for entry, data in members.items():
                archive.writestr(entry, data)
        assert not is_restored(cache, tmp_path / "out")


def test_many_writers_and_readers(cache: Path, tmp_path: Path) -> None:
    """Each reader gets a whole result, whoever writes it meanwhile."""
    record = CompileCache(cache).restore("key", job_into(tmp_path / "first"), leaves())
    assert record is not None

    def write(_: int) -> None:
        CompileCache(cache).keep("key", job_into(tmp_path / "first"), record)

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, number) for number in range(40)]
        read = [pool.submit(is_restored, cache, tmp_path / f"out{number}") for number in range(40)]
        assert all(future.result() for future in read)
        for future in writing:
            future.result()
    assert [path.name for path in cache.iterdir()] == ["key.zip"]
