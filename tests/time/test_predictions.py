"""Predicted times of recorded programs by kind of kernel: any change of a rule or a constant.

    python -m tests.time.test_predictions    # after a change that is meant: predictions.jsonl

These programs reach every line of `xlapipe/time/predict` that any of the zoos' reaches. How far
predictions are from what was measured is in docs/lab/time.md.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.gpu.records import read_record
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.cost import step_cost
from xlapipe.time.predict import predict
from xlapipe.time.predict.calibration import shipped_calibration

PREDICTIONS = Path(__file__).with_name("predictions.jsonl")
RECORDS = ROOT / "tests/gpu/time_zoo/records"
ROWS = [json.loads(line) for line in PREDICTIONS.read_text(encoding="utf-8").splitlines()]


def microseconds(record: str, program: str) -> dict[str, float]:
    """What is predicted for an H200 by kind of kernel, of the span, and the floor."""
    _, (profile,) = read_record(RECORDS / f"{record}.tar.xz", program)
    device, calibration = device_of_target("h200"), shipped_calibration("h200")
    assert device is not None and calibration is not None
    cost = step_cost(profile.plan, device)
    assert cost is not None
    prediction = predict(profile.plan, cost, calibration)
    kinds: Counter[str] = Counter()
    for kernel in prediction.kernels:
        kinds[kernel.work.kind] += kernel.seconds * 1e6
    whole = {"span": prediction.span_seconds, "floor": cost.floor_seconds}
    return {**dict(sorted(kinds.items())), **{name: (it or 0) * 1e6 for name, it in whole.items()}}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["program"])
def test_predictions_are_as_committed(row: dict[str, Any]) -> None:
    assert microseconds(row["record"], row["program"]) == pytest.approx(row["us"], rel=1e-6)


if __name__ == "__main__":
    with PREDICTIONS.open("w", encoding="utf-8") as stream:
        for row in ROWS:
            us = microseconds(row["record"], row["program"])
            row["us"] = {kind: float(f"{value:.9g}") for kind, value in us.items()}
            stream.write(json.dumps(row) + "\n")
