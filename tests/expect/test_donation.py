"""A failed donation is reported with its leaf, bytes, line and advice."""

import json
from typing import Any

import pytest

from tests.folders import STEPS
from xlapipe.cli import main

pytestmark = pytest.mark.jax


def check(workload: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    code = main(["check", workload, "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    assert "untuned" in result["autotuning"]
    failed = [finding for finding in result["findings"] if not finding["warning"]]
    return code, [violation for finding in failed for violation in finding["violations"]]


@pytest.fixture(autouse=True)
def in_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(STEPS)


def line_of(text: str) -> str:
    lines = (STEPS / "broken.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"broken.py:{number}"


@pytest.mark.parametrize("workload", ["broken:good", "broken:a_workload"])
def test_a_donation_that_works(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(workload, capsys) == (0, [])


def test_not_donated(capsys: pytest.CaptureFixture[str]) -> None:
    code, (alias, copy) = check("broken:not_donated", capsys)
    assert code == 1
    assert "cache['k'] (bfloat16[64, 1024], 131,072 B)" in alias["expected"]
    assert "not donated" in alias["found"]
    assert alias["source"] == line_of('updated = cache["k"].at[3].set(row)')
    assert "'cache' to donate_argnums" in alias["advice"]
    assert "131,072 B copied" in copy["found"]


def test_donated_bf16_for_an_f32_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, (alias,) = check("broken:wrong_dtype", capsys)
    assert code == 1
    assert "no output has its shape and dtype" in alias["found"]
    assert alias["source"] == line_of("astype(jnp.float32).at[3]")


def test_an_alias_with_an_additional_full_copy(capsys: pytest.CaptureFixture[str]) -> None:
    code, copies = check("broken:read_after", capsys)
    assert code == 1
    assert copies and all("131,072 B copied" in copy["found"] for copy in copies)
    assert copies[0]["source"] == line_of('"k": cache["k"].at[3].set(row)}, cache["k"]')
