"""Compiled loops: a cache updated in place passes, and a carry that is copied is reported."""

import json
from typing import Any

import pytest

from tests.folders import STEPS
from xlapipe.cli import main

pytestmark = pytest.mark.jax


def findings(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The violations of a workload of broken.py, by the name of the expectation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        main(["check", f"broken:{name}", "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    return {
        finding["expectation"].partition("(")[0]: finding["violations"]
        for finding in result["findings"]
    }


def line_of(text: str) -> str:
    lines = (STEPS / "broken.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"broken.py:{number}"


def test_a_loop_that_updates_its_cache_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert findings("loop_in_place", capsys) == {
        "Aliased": [],
        "NoCopyInLoopAbove": [],
        "LoopOfTrips": [],
    }


def test_a_loop_that_copies_its_carry(capsys: pytest.CaptureFixture[str]) -> None:
    """The leaves are aliased, but each trip copies them to temporary memory and back."""
    violations = findings("loop_copies_carry", capsys)
    assert violations["Aliased"] == []
    copies = violations["NoCopyInLoopAbove"]
    assert len(copies) == 3
    for copy in copies:
        assert copy["found"].startswith("131,072 B copied by copy")
        assert copy["found"].endswith("in each trip")
    update_line = line_of("row + caches[1][index]), caches[0]")
    # XLA adds one copy at the end of the body; its line is that of the value that it copies.
    assert [copy["source"] for copy in copies] == [update_line] * 3


def test_a_loop_that_moves_a_cache_to_another_leaf_of_the_carry(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A copy into the memory of another element of the carry counts as a copy."""
    assert len(findings("loop_hands_on", capsys)["NoCopyInLoopAbove"]) == 2


def test_a_loop_with_an_unknown_trip_count(capsys: pytest.CaptureFixture[str]) -> None:
    (violation,) = findings("loop_of_unknown_trips", capsys)["LoopOfTrips"]
    assert violation["found"] == "trips: unknown"
    assert violation["source"].startswith("broken.py:")
