"""The list of values, which grows with the square of the leaves of a loop, is cut if it is long."""

import shutil
from pathlib import Path

import pytest

from tests.shared.dumps import DATA
from xlapipe.compile import capture
from xlapipe.devices.platforms.dump_files import Part, optimized_file
from xlapipe.dump.readers import read_path

NAME = "buffer-assignment-values.txt"
VALUES = optimized_file(Part.VALUES, "gpu_after_optimizations")


def test_a_list_of_usual_length_is_kept() -> None:
    path = DATA / "host_memory" / NAME
    assert capture._content(VALUES, path) == path.read_bytes()


def test_of_a_long_list_the_total_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_LARGEST_VALUES_BYTES", 100)
    folder = tmp_path / "dump"
    shutil.copytree(DATA / "host_memory", folder)
    whole = read_path(folder)
    content = capture._content(VALUES, folder / NAME)
    assert len(content) < 200
    assert content.endswith(b" B, since no figure needs them\n")
    (folder / NAME).write_bytes(content)
    assert read_path(folder) == whole
    assert whole.total_bytes_used is not None


def test_other_long_files_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_LARGEST_VALUES_BYTES", 100)
    path = DATA / "host_memory" / "buffer-assignment.txt"
    file = optimized_file(Part.ASSIGNMENT, "gpu_after_optimizations")
    assert capture._content(file, path) == path.read_bytes()
