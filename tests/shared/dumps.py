"""Dumps for the tests of the readers: those in data/, and reference dump 003."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.folders import DATA
from xlapipe.dump.readers import DumpTexts, SourceText
from xlapipe.dump.readers.file_contents import read_bytes, read_source
from xlapipe.report import subjects

DIRECTORIES = sorted(path.parent for path in DATA.glob("*/*/*.hlo.pb.gz"))
ROOT = Path(__file__).parents[2]
SEED_003 = ROOT.parent / "shared" / "seeds" / "003_f6ca195099ee0f7f.txt"

needs_seed_003 = pytest.mark.skipif(
    not SEED_003.is_file(),
    reason=f"reference dump 003 ({SEED_003.name}, docs/lab/seeds.md) is not next to the repository",
)


def name_of(directory: Path) -> str:
    """`jaxlib-0.11.2/step`, for the ids of tests."""
    return f"{directory.parent.name}/{directory.name}"


@contextmanager
def each_opened_once(most: int = 4) -> Iterator[None]:
    """Lets commands in this process share a dump and its figures, if they open it alike.

    For what commands print of dumps that do not change meanwhile.

    Args:
      most: number of dumps that are kept.
    """
    with pytest.MonkeyPatch.context() as patch:
        shared = lru_cache(most)(subjects.open_subject)
        patch.setattr(subjects, "open_subject", shared)
        yield


def one_of_each(dumps: Iterable[Path]) -> list[ParameterSet]:
    """Dumps as parameters of a test: the first of each workload; the others are exhaustive.

    The ResNets' dumps, the largest by far, are slow.
    """
    parameters, workloads = [], set[str]()
    for path in dumps:
        name = path.parent.name
        marks = [pytest.mark.slow] if name.startswith("resnet") else []
        if name in workloads:
            marks = [pytest.mark.exhaustive]
        workloads.add(name)
        parameters.append(pytest.param(path, marks=marks))
    return parameters


def one(directory: Path, pattern: str) -> Path:
    """The only file of a dump that matches `pattern`."""
    (path,) = directory.glob(pattern)
    return path


def proto_of(directory: Path) -> bytes:
    return read_bytes(one(directory, "*.hlo.pb.gz"))


def texts_of(directory: Path) -> DumpTexts:
    """All texts of a dump."""

    def source(pattern: str) -> SourceText | None:
        paths = sorted(directory.glob(pattern))
        return read_source(paths[-1]) if paths else None

    assignment = source("*buffer-assignment.txt.gz")
    assert assignment is not None
    return DumpTexts(
        assignment=assignment,
        values=source("*buffer-assignment-values.txt.gz"),
        live_range=source("*live-range.txt.gz"),
        hlo=source("*after_optimizations.txt.gz"),
        thunks=source("*thunk_sequence*.txt.gz"),
    )


def as_own_layout(directory: Path, target: Path) -> Path:
    """Copy a dump to `target`, with the file names of xlapipe's dump directories."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(directory.iterdir()):
        stem, separator, part = path.name.partition("after_optimizations")
        if separator:
            name = f"after_optimizations{part}" if part.startswith(".") else part.removeprefix("-")
        else:
            name = "thunk_sequence.txt.gz"
        assert stem
        shutil.copy(path, target / name)
    return target
