"""The record of forms that `choose` compiled, which an H200 timed."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "tests/gpu/choose_regret.json").read_text(encoding="utf-8"))
FAMILIES: list[dict[str, Any]] = RECORD["families"]
TIMED = [(family["family"], row) for family in FAMILIES for row in family["rows"] if "tuned" in row]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "choose_tables", ROOT / "tests/gpu/choose_tables.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_peak_is_that_of_the_plan() -> None:
    peaks = [row["tuned"] for _, row in TIMED if row["tuned"]["measured_bytes"] is not None]
    assert (len(TIMED), len(peaks)) == (119, 70)
    for ran in peaks:
        assert ran["measured_bytes"] == pytest.approx(ran["total_bytes"], rel=3e-7)


def test_what_is_chosen_fits_on_the_device_with_the_planned_bytes(tables: ModuleType) -> None:
    far = set()
    for family in tables.timed_families(FAMILIES):
        for limit in tables.at_limits(family["rows"], "predicted_lock", tables.measured_seconds):
            chosen = family["rows"][limit["chosen"]]
            planned, own = chosen["predicted_lock"]["total_bytes"], chosen["tuned"]["total_bytes"]
            assert own <= limit["limit_bytes"]
            if planned != pytest.approx(own, rel=5.1e-3):
                far.add((family["family"], chosen["row"]))
    assert far == {("unet", 0), ("transformer-loop-1024", 0)}


def test_where_choose_is_not_within_3_percent_of_the_fastest(tables: ModuleType) -> None:
    """A list of the misses, so that the page cannot state fewer."""
    regrets = {
        (family["family"], share): limit["regret"]
        for family in tables.timed_families(FAMILIES)
        for share, limit in zip(
            tables.SHARES,
            tables.at_limits(family["rows"], "predicted_lock", tables.measured_seconds),
            strict=True,
        )
    }
    assert len(regrets) == 45
    assert {key for key, regret in regrets.items() if regret > 0.03} == {
        ("resnet50-train", 0.85),
        ("transformer-loop-1024", 0.45),
    }
