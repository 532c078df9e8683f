"""`xlapipe bisect`: the first candidate with a worse plan, with few compiles."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.cli import main
from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.diff.comparing import bisect as bisecting
from xlapipe.diff.comparing.bisect import bisect, option_jobs, released_versions, versions_between
from xlapipe.dump.dump import Dump, open_dump
from xlapipe.errors import XlapipeError

pytestmark = pytest.mark.jax

RELEASES = ("0.9.2", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.11.3rc1", "0.12.0", "0.12.0.1")


def test_versions_of_a_range() -> None:
    listed = versions_between("0.10.2..0.11.2", released=lambda: RELEASES)
    assert listed == ("0.10.2", "0.11.0", "0.11.1", "0.11.2")
    assert versions_between("0.12.0,0.11.2", released=list) == ("0.11.2", "0.12.0")


def test_releases_are_those_that_pip_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = (
        "jaxlib (0.12.0.1)\nAvailable versions: 0.12.0.1, 0.12.0, 0.11.2\n  INSTALLED: 0.11.2\n"
    )
    process = SimpleNamespace(stdout=printed, stderr="")
    monkeypatch.setattr(bisecting.subprocess, "run", lambda *command, **options: process)
    assert released_versions() == ("0.12.0.1", "0.12.0", "0.11.2")
    process.stdout, process.stderr = "", "ERROR: no such option: index\n"
    with pytest.raises(XlapipeError, match="no such option: index; fix: list them"):
        released_versions()


@pytest.mark.parametrize(
    "text", ["0.11.2", "0.11.2..0.11.2", "0.12.0..0.11.2", "a..b", "0.9.2,0.10.2"]
)
def test_invalid_versions_are_refused(text: str) -> None:
    with pytest.raises(XlapipeError, match="--versions"):
        versions_between(text, released=lambda: RELEASES)


def dumps(goldens: Path, count: int, first_bad: int) -> list[Dump]:
    """The step that donates its cache, and from `first_bad` on the one that does not."""
    good = open_dump(goldens / f"qwen3-step-donated/h200-cublas-jax{GOLDEN_JAXLIB}")
    bad = open_dump(goldens / f"qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}")
    worse = replace(bad, manifest=replace(bad.manifest, expectations=good.manifest.expectations))
    return [good if number < first_bad else worse for number in range(count)]


@pytest.mark.parametrize("first_bad", [1, 2, 5, 8])
def test_the_first_bad_candidate_is_found(
    first_bad: int, goldens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    candidates: dict[str, Callable[[], Any]] = {
        f"v{number}": (lambda number=number: number) for number in range(9)
    }
    all_dumps = dumps(goldens, 9, first_bad)

    def make(number: int, out: Path) -> Any:
        made.append(number)
        return SimpleNamespace(dump=all_dumps[number])

    monkeypatch.setattr(bisecting, "make_dump", make)
    result = bisect(candidates, tmp_path, expect="")
    assert (result.good, result.bad) == (f"v{first_bad - 1}", f"v{first_bad}")
    assert result.difference is not None
    assert not result.difference.same
    assert len(made) == len(set(made)) <= 5


def test_no_candidate_is_worse(
    goldens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_dumps = dumps(goldens, 3, 3)
    monkeypatch.setattr(
        bisecting, "make_dump", lambda number, out: SimpleNamespace(dump=all_dumps[number])
    )
    candidates: dict[str, Any] = {
        f"v{number}": (lambda number=number: number) for number in range(3)
    }
    result = bisect(candidates, tmp_path, expect=None)
    assert (result.good, result.bad, len(result.steps)) == (None, None, 2)
    with pytest.raises(XlapipeError, match="expected a part of an expectation"):
        bisect(candidates, tmp_path, expect="no such text")


def test_options_are_added_one_after_another() -> None:
    (job,) = jobs_of(["qwen3-step"], CompileSettings())
    made = option_jobs(job, {"xla_a": True, "xla_b": 2})
    jobs: list[Job] = [make() for make in made.values()]
    assert list(made) == ["XLA's default options", "xla_a=True", "xla_b=2"]
    assert [dict(job.options) for job in jobs] == [{}, {"xla_a": True}, {"xla_a": True, "xla_b": 2}]


def test_either_versions_or_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", "qwen3-step"]) == 2
    assert "give one of them" in capsys.readouterr().err
