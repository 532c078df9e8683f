"""Estimates order pairs as arithmetic does, for the reason that arithmetic has."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.tpu.live import job_of, needs_libtpu
from tests.tpu.pairs import PAIRS
from xlapipe.compile.pipeline import make_dump
from xlapipe.differences.time_changes import time_changes
from xlapipe.time.predict.prediction import ASYNCHRONOUS, Prediction
from xlapipe.time.study import study_of

pytestmark = needs_libtpu

_WORDS = {"TFLOP/s": "products", "HBM at": "HBM"}


def seconds_by_cause(prediction: Prediction) -> Counter[str]:
    """Where the cores' time is."""
    causes: Counter[str] = Counter()
    transfers = {event.name for event in prediction.timeline if event.stream == ASYNCHRONOUS}
    for kernel in prediction.kernels:
        is_transfer = kernel.work.link_bytes > 0 or kernel.name in transfers
        for part in () if is_transfer else kernel.launch.parts:
            word = next((name for text, name in _WORDS.items() if text in part.reason), "starts")
            causes[word] += part.seconds * kernel.launches  # type: ignore[assignment]
    for carrier, waited in prediction.exposed.items():
        causes["host" if "host" in carrier else carrier] += waited  # type: ignore[assignment]
    return causes


@pytest.mark.parametrize("name", list(PAIRS))
def test_the_bad_form_is_slower_and_the_reason_is_said(name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    topology = "2x2" if pair.devices > 1 else None
    studies = []
    for bad in (False, True):
        job = job_of(f"tests.tpu.pairs:form(name={name!r}, bad={bad})", pair.target, topology)
        studies.append(study_of(make_dump(job, tmp_path).dump))
    good, bad_one = (study.prediction for study in studies)
    assert good is not None and bad_one is not None
    growth = seconds_by_cause(bad_one)
    growth.subtract(seconds_by_cause(good))
    cause = max(growth, key=lambda word: growth[word])
    changes = time_changes(studies[0].cost, studies[1].cost, (good, bad_one))
    said = [text for text in bad_one.losses if text not in good.losses]
    said += [change.text for change in changes]
    found = [text for text in said if re.search(pair.reason, text)]
    print(f"{name}: {good.text} -> {bad_one.text}, {cause}; {found[:1] or said}")
    assert bad_one.step_seconds > 1.05 * good.step_seconds  # type: ignore[operator]
    assert cause == pair.why
    assert found
