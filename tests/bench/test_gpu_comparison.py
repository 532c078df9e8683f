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


compare = module("compare")


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
