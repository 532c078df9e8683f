"""`make bench-gpu`: how it runs the sides of a comparison and tabulates their timings."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "bench" / "gpu"


def module(name: str) -> Any:
    """A module of the folder, such as compare.py, which is a script."""
    path = FOLDER / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"gpu_comparison_{name}", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    # As for a script, whose folder Python searches first.
    sys.path.insert(0, str(FOLDER))
    try:
        spec.loader.exec_module(script)
    finally:
        sys.path.remove(str(FOLDER))
    return script


compare, write_record = module("compare"), module("write_record")


def timing(case: str, variant: str, *milliseconds: float) -> dict[str, Any]:
    """A timing with its median, fastest and slowest call."""
    names = ("median_seconds", "least_seconds", "most_seconds")
    seconds = {name: value / 1e3 for name, value in zip(names, milliseconds, strict=True)}
    return {"case": case, "variant": variant, **seconds, "least_bytes": None, "moved_bytes": None}


OURS = {
    "framework": "jax",
    "timings": [timing("decode", "kernels", 2, 1, 3), timing("decode", "xla", 3, 2, 4)],
}
OURS["timings"][0]["least_bytes"] = 10
THEIRS = {"framework": "torch", "timings": [timing("decode", "compiled", 5, 4, 6)]}


def test_rows_have_the_ratio_to_our_first_variant_of_the_case() -> None:
    rows = compare.rows_of({"ours": OURS, "theirs": THEIRS})
    ratios = {(row["side"], row["variant"]): row["over_ours"] for row in rows}
    assert ratios == {
        ("ours", "kernels"): 1,
        ("ours", "xla"): pytest.approx(1.5),
        ("theirs", "compiled"): pytest.approx(2.5),
    }
    assert {row["least_bytes"] for row in rows} == {10}


def test_a_case_without_a_timing_of_ours_has_no_ratio() -> None:
    other = {"timings": [timing("prefill", "compiled", 5, 4, 6)]}
    (*_, row) = compare.rows_of({"ours": OURS, "theirs": other})
    assert row["over_ours"] is None


def test_rounds_are_merged_by_median_and_extremes() -> None:
    rounds = [
        {"timings": [timing("decode", "kernels", median, least, most)]}
        for median, least, most in ((2, 1.5, 9), (3, 1, 4), (4, 2, 5))
    ]
    (merged,) = compare.merge_rounds([*rounds, {"timings": [], "error": "exit code 1"}])["timings"]
    milliseconds = [merged[f"{name}_seconds"] * 1e3 for name in ("median", "least", "most")]
    assert milliseconds == pytest.approx([3, 1, 9])


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script as a side."""
    monkeypatch.setattr(compare, "HERE", tmp_path)

    def run(text: str, limit_seconds: float = 60) -> dict[str, Any]:
        (tmp_path / "one.py").write_text(text)
        result: dict[str, Any] = compare.run_side("one", limit_seconds)
        return result

    return run


LINE = f"print({json.dumps(json.dumps({'device': 'H200', 'timings': [1]}))}, flush=True)\n"


def test_the_result_of_a_side_is_its_last_json_line(side: Any) -> None:
    assert side(f"print('noise')\n{LINE}") == {"device": "H200", "timings": [1]}


def test_a_side_that_fails_keeps_what_it_printed_before(side: Any) -> None:
    result = side(f"{LINE}raise SystemExit('no room')")
    assert result["timings"] == [1]
    assert result["error"] == "exit code 1: no room"


def test_a_side_that_takes_too_long_is_stopped(side: Any) -> None:
    """An incomplete last line is left out."""
    result = side(f"{LINE}import time\nprint('{{', end='', flush=True)\ntime.sleep(60)", 3)
    assert result["timings"] == [1]
    assert result["error"] == "took more than 3 s"


def test_a_side_that_prints_nothing_is_an_error(side: Any) -> None:
    result = side("pass")
    assert (result["timings"], result["error"]) == ([], "printed nothing")


def test_sides_are_timed_one_after_another_when_all_have_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A side that fails while it compiles does not keep the others waiting."""
    monkeypatch.setattr(compare, "HERE", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    times = "print(json.dumps({'timings': [started, time.time()]}))"
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(
            "import json, time\nfrom timing import wait_for_turn\nwait_for_turn()\n"
            f"started = time.time()\ntime.sleep(0.2)\n{times}\n"
        )
    (tmp_path / "failing.py").write_text("raise SystemExit('no memory')")
    first, failing, second = compare.run_together(["first", "failing", "second"], 60)
    assert failing["error"] == "exit code 1: no memory"
    assert first["timings"][1] < second["timings"][0]


def test_a_side_that_does_not_compile_in_time_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sides may have variables and arguments; each gets its own turn."""
    monkeypatch.setattr(compare, "HERE", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    (tmp_path / "one.py").write_text(
        "import json, os, sys, time\nfrom timing import wait_for_turn\n"
        "time.sleep(60 if 'slow' in sys.argv else 0)\nwait_for_turn()\n"
        "print(json.dumps({'timings': [sys.argv[1:], os.environ.get('SIZE')]}))\n"
    )
    names = ["one slow", "SIZE=4b one a b", "one"]
    slow, *others = compare.run_together(names, 60, compile_seconds=2)
    assert slow["error"] == "had not compiled after 2 s"
    assert [side["timings"] for side in others] == [[["a", "b"], "4b"], [[], None]]


def test_a_record_has_the_timings_and_the_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [
        {**OURS, "framework": "jax 0.11.2", "device": "H200", "driver": None},
        {**THEIRS, "framework": "torch 2.11, alone", "error": "exit code 1", "log": "no memory"},
    ]
    out = tmp_path / "record.json"
    write_record.write_record(out, ["ours", "theirs"], sides)
    record = json.loads(out.read_text())
    assert record["versions"] == {"jax": "0.11.2", "torch": "2.11"}
    assert record["timings"] == OURS["timings"] + THEIRS["timings"]
    assert record["errors"] == {"theirs": "exit code 1"}
    printed = capsys.readouterr()
    assert "2.0000 ms  decode: kernels" in printed.out
    assert "theirs: exit code 1\nno memory" in printed.err


def test_a_failed_side_is_printed_and_changes_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "HERE", tmp_path)
    monkeypatch.setattr(compare, "COMPARISONS", {"both": ("ours", "theirs")})
    (tmp_path / "ours.py").write_text(f"print({json.dumps(json.dumps(OURS))})")
    (tmp_path / "theirs.py").write_text("raise SystemExit('no torch')")
    written = tmp_path / "figures.json"
    assert compare.main(["both", "--rounds", "1", "--json", str(written)]) == 2
    out = capsys.readouterr().out
    assert "2.0000" in out and "1.50×" in out
    assert "theirs failed: exit code 1: no torch" in out
    rows = json.loads(written.read_text())["both"]["rows"]
    assert [row["side"] for row in rows] == ["ours", "ours"]
    (tmp_path / "theirs.py").write_text(f"print({json.dumps(json.dumps(THEIRS))})")
    assert compare.main(["both", "--rounds", "1"]) == 0
    assert "2.50×" in capsys.readouterr().out


def test_an_unknown_comparison_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main(["chess"])
    assert ended.value.code == 2
    assert "expected comparisons of qwen3" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(compare.COMPARISONS))
def test_every_side_has_a_script(name: str) -> None:
    assert all((FOLDER / f"{side}.py").is_file() for side in compare.COMPARISONS[name])
