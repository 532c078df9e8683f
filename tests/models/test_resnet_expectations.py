"""Expectations of the ResNet programs hold at a small size, and fail on broken programs."""

from pathlib import Path

import pytest

from tests.folders import STEPS
from tests.steps.broken_programs import compile_dumps, each_expectation_fails_on_one
from tests.steps.broken_resnet import BROKEN, KINDS, good
from xlapipe.expect import check_all

pytestmark = pytest.mark.jax


@pytest.mark.slow
def test_expectations_of_a_small_forward_pass_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(STEPS)
    (dump,) = compile_dumps(["broken_resnet:forward_good"], tmp_path, capsys)
    findings = check_all(dump.expectations, dump)
    assert len(findings) > 10
    assert [finding for finding in findings if not finding.holds] == []


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_each_expectation_fails_on_a_program_that_breaks_it(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(STEPS)
    names = [f"broken_resnet:{kind}_{make.__name__}" for make in (good, *BROKEN)]
    unbroken, *broken = compile_dumps(names, tmp_path, capsys)
    findings = check_all(unbroken.expectations, unbroken.program)
    assert [finding for finding in findings if not finding.holds] == []
    each_expectation_fails_on_one(lambda: good(kind), broken)
