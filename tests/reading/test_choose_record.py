"""`docs/lab/choose.md` states what was measured of the forms that `choose` compiled."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "tests/gpu/choose_regret.json").read_text(encoding="utf-8"))
FAMILIES: list[dict[str, Any]] = RECORD["families"]
RAN = [
    (family["family"], row, basis)
    for family in FAMILIES
    for row in family["rows"]
    for basis in ("predicted_lock", "tuned")
    if "step_seconds" in row.get(basis, {})
]


@pytest.fixture(scope="module")
def recording() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "record_choose", ROOT / "tests/gpu/record_choose.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("table", ["regret_table", "accuracy_table", "tuned_table"])
def test_the_tables_of_the_page_are_those_of_the_record(table: str, recording: ModuleType) -> None:
    text = (ROOT / "docs/lab/choose.md").read_text(encoding="utf-8")
    lines = getattr(recording, table)(FAMILIES)
    assert len(lines) >= 2 + 5
    assert "\n".join(lines) in text


def test_every_peak_is_that_of_the_plan() -> None:
    assert len(RAN) == 70
    for family, row, basis in RAN:
        ran = row[basis]
        assert ran["measured_bytes"] == pytest.approx(ran["total_bytes"], rel=1e-5), (family, row)
        assert ran["finite"]


def test_untuned_plans_have_the_peaks_of_tuned_executables() -> None:
    tuned = [row for _, row, basis in RAN if basis == "tuned"]
    assert len(tuned) == 7
    for row in tuned:
        assert row["untuned"]["total_bytes"] == pytest.approx(
            row["tuned"]["measured_bytes"], rel=5e-3
        )


def test_where_choose_is_not_within_3_percent_of_the_fastest(recording: ModuleType) -> None:
    """A list of the misses, so that the page cannot state fewer."""
    missed = set()
    for family in filter(recording.measured_rows, FAMILIES):
        for share, limit in zip(
            recording.SHARES,
            recording.at_limits(
                recording.measured_rows(family),
                plans="predicted_lock",
                times="predicted_lock",
                measured="predicted_lock",
            ),
            strict=True,
        ):
            if limit["regret"] > 0.03:
                missed.add((family["family"], share))
    assert missed == {
        ("transformer-loop-1024", 0.05),
        ("transformer-loop-1024", 0.45),
        ("transformer-scan-8192", 0.45),
        ("transformer-scan-8192", 0.65),
        ("transformer-scan-8192", 0.85),
    }
