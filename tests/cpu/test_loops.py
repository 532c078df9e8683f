"""Loops as XLA compiles them: a cache in place passes, and a carry that is copied is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from xlapipe.cli import main

HERE = Path(__file__).resolve().parent


def findings(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The violations of each expectation of a workload of broken.py, by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        main(["check", f"broken:{name}", "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    return {
        finding["expectation"].partition("(")[0]: finding["violations"]
        for finding in result["findings"]
    }


def line_of(text: str) -> str:
    lines = (HERE / "broken.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"broken.py:{number}"


def test_a_loop_that_updates_its_cache_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert findings("loop_in_place", capsys) == {
        "Aliased": [],
        "NoCopyInLoopAbove": [],
        "LoopOfTrips": [],
    }


def test_a_loop_that_copies_its_carry(capsys: pytest.CaptureFixture[str]) -> None:
    """The aliases are there, and so are copies at each trip: out of the way, and to each place."""
    found = findings("loop_copies_carry", capsys)
    assert found["Aliased"] == []
    copies = found["NoCopyInLoopAbove"]
    assert len(copies) == 3
    for copy in copies:
        assert copy["found"].startswith("131,072 B copied by copy")
        assert copy["found"].endswith("in each trip")
    at_the_update = line_of("row + caches[1][index]), caches[0]")
    # One of them XLA adds at the end of the body: it is told at the line whose value it copies.
    assert [copy["source"] for copy in copies] == [at_the_update] * 3


def test_a_loop_that_hands_its_caches_on(capsys: pytest.CaptureFixture[str]) -> None:
    """One copy goes to the place of another element of the carry, and is a copy all the same."""
    assert len(findings("loop_hands_on", capsys)["NoCopyInLoopAbove"]) == 2


def test_a_loop_whose_trips_xla_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    (violation,) = findings("loop_of_unknown_trips", capsys)["LoopOfTrips"]
    assert violation["found"] == "trips: unknown"
    assert violation["source"].startswith("broken.py:")
