"""Every reader of files, on files that were damaged at random: see `fuzz_readers`."""

import time
from pathlib import Path

import pytest

from tests.dump import fuzz_readers
from xlapipe.dump.dump import read_manifest


def ended(seeds: range, folder: Path) -> list[fuzz_readers.Outcome]:
    """How the tries ended; none of them with what must not be."""
    outcomes = fuzz_readers.outcomes_of(seeds, time.time() + 600, folder / "results")
    assert [outcome for outcome in outcomes if outcome.finding is not None] == []
    assert len(outcomes) == len(seeds)
    return outcomes


def test_a_sample(tmp_path: Path) -> None:
    outcomes = ended(range(5 * len(fuzz_readers.READERS)), tmp_path)
    assert sum(outcome.code == 2 for outcome in outcomes) > 10
    assert sum(outcome.code != 2 for outcome in outcomes) > 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(6))
def test_three_thousand(part: int, tmp_path: Path) -> None:
    ended(range(500 * (part + 1), 500 * (part + 2)), tmp_path)


def test_what_the_fuzzer_finds(tmp_path: Path) -> None:
    """Each thing that must not be is a finding."""
    texts = ["", ""]
    assert fuzz_readers.misprinted(2, texts, "<p>") is None
    assert fuzz_readers.misprinted(3, texts, "")
    assert fuzz_readers.misprinted(2, ["", "xlapipe: error: a\nxlapipe: error: b\n"], "")
    assert fuzz_readers.misprinted(0, ["\x1b[2J", ""], "")
    assert fuzz_readers.misprinted(2, ["", "Traceback (most recent call last):\n"], "")
    assert fuzz_readers.misprinted(0, texts, f"<p>{fuzz_readers.TAG}>")

    def fail(*_: Path) -> int:
        raise ZeroDivisionError

    def take_memory(*_: Path) -> int:
        return len(bytearray(3 << 30))

    for run in (fail, take_memory):
        assert fuzz_readers.ended(run, tmp_path, tmp_path)[1] is not None
    fuzz_readers.renew_digests(fuzz_readers.executable())
    assert "executable.pjrt" in read_manifest(fuzz_readers.executable()).files
