"""Estimates order pairs as arithmetic does, for the reason that arithmetic has."""

from collections import Counter
from pathlib import Path

import pytest

from tests.tpu.live import job_of, needs_libtpu
from tests.tpu.pairs import PAIRS
from xlapipe.compile.pipeline import make_dump
from xlapipe.time.predict.prediction import Prediction
from xlapipe.time.study import study_of

pytestmark = needs_libtpu

_WORDS = {"TFLOP/s": "products", "HBM at": "HBM"}


def seconds_by_cause(prediction: Prediction) -> Counter[str]:
    """Where the cores' time is."""
    causes: Counter[str] = Counter()
    for kernel in prediction.kernels:
        for part in kernel.launch.parts if kernel.work.link_bytes == 0 else ():
            word = next((name for text, name in _WORDS.items() if text in part.reason), "starts")
            causes[word] += part.seconds * kernel.launches  # type: ignore[assignment]
    for carrier, waited in prediction.exposed.items():
        causes["host" if "host" in carrier else carrier] += waited  # type: ignore[assignment]
    return causes


@pytest.mark.parametrize("name", list(PAIRS))
def test_the_bad_form_is_slower_for_its_reason(name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    topology = "2x2" if pair.devices > 1 else None
    times = []
    for bad in (False, True):
        job = job_of(f"tests.tpu.pairs:form(name={name!r}, bad={bad})", "v6e", topology)
        prediction = study_of(make_dump(job, tmp_path).dump).prediction
        assert prediction is not None and prediction.step_seconds is not None
        times.append(prediction)
    good, bad_one = times
    growth = seconds_by_cause(bad_one)
    growth.subtract(seconds_by_cause(good))
    cause = max(growth, key=lambda word: growth[word])
    print(f"{name}: {good.text} -> {bad_one.text}, {cause}; {'; '.join(bad_one.losses[:1])}")
    assert bad_one.step_seconds > 1.05 * good.step_seconds  # type: ignore[operator]
    assert cause == pair.why
