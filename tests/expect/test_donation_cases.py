"""Compiled donation cases from bug reports: each gets the right outcome and line."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.dump.dump import Dump, open_dump
from xlapipe.expect import TempAtMost, check_all
from xlapipe.plans.donation import Donation, DonationOutcome, donations

pytestmark = pytest.mark.jax


def compiled(name: str, out: Path) -> Dump:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        assert main(["dump", f"donation_cases:{name}", "--out", str(out), "--json"]) == 0
    (manifest,) = out.glob("*/*/manifest.json")
    return open_dump(manifest.parent)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    return compiled("cases", tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def rows(dump: Dump) -> dict[str, Donation]:
    return {row.path.split("'")[1]: row for row in donations(dump)}


def line_of(text: str) -> str:
    lines = (STEPS / "donation_cases.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"donation_cases.py:{number}"


@pytest.mark.parametrize(
    ("leaf", "outcome", "reason", "line"),
    [
        ("in_place", DonationOutcome.ALIASED, "", ""),
        ("one_of_two", DonationOutcome.ALIASED, "", ""),
        ("widened", DonationOutcome.DONOR_ONLY, "out['widened'] is float32", 'out["widened"] ='),
        ("grown", DonationOutcome.UNUSED, "no output has its shape and dtype", 'out["grown"] ='),
        ("summed", DonationOutcome.UNUSED, "no output has its shape and dtype", 'out["summed"] ='),
        ("ignored", DonationOutcome.DROPPED, "does not use it", ""),
        ("other_of_two", DonationOutcome.UNUSED, "aliased to state['one_of_two']", "one_of_two"),
        ("read_after", DonationOutcome.COPIED, "copies 141,312 B of it", 'out["read_after"] ='),
        ("returned_twice", DonationOutcome.COPIED, "copies 143,360 B of it", "updated = "),
        ("shifted", DonationOutcome.COPIED, "copies 286,720 B of it", "following = lax"),
    ],
)
def test_case(
    leaf: str, outcome: DonationOutcome, reason: str, line: str, rows: dict[str, Donation]
) -> None:
    row = rows[leaf]
    assert (row.outcome, reason in row.reason) == (outcome, True), row
    if line and leaf != "other_of_two":
        assert str(row.source) == line_of(line)


def test_a_reshaped_output_is_aliased(rows: dict[str, Donation]) -> None:
    assert (rows["reshaped"].outcome, rows["reshaped"].output) == ("aliased", "out['reshaped']")


def test_a_buffer_donor_may_be_paired_with_any_output_of_its_size(
    rows: dict[str, Donation], jaxlib_version: str
) -> None:
    row = rows["mispaired"]
    assert row.output == "out['unlike']"
    # Later jaxlibs write that output before the last read of the leaf.
    if jaxlib_version != "0.10.2":
        assert row.reason.endswith("copies 327,680 B of it")
        assert str(row.source) == line_of('out["mispaired"] =')


def test_a_missed_reuse_of_a_donated_buffer_is_found_by_a_bound_on_temp_memory(
    tmp_path: Path, jaxlib_version: str
) -> None:
    """In xla#45912 the alias holds and nothing is copied; only temporary memory grows."""
    dump = compiled("read_by_loop", tmp_path)
    (row,) = donations(dump)
    assert row.holds
    (bounded,) = check_all((TempAtMost(row.size_bytes - 1),), dump)
    (place,) = {
        allocation.parameter_number
        for allocation in dump.plan.allocations
        for value in allocation.values
        if "exponential" in value.name
    }
    assert bounded.holds is (place == 0)
    # jaxlib 0.10.2 keeps the intermediate in separate memory, later ones do not.
    assert bounded.holds is (jaxlib_version != "0.10.2")


def test_commands_print_it(
    dump: Dump, rows: dict[str, Donation], capsys: pytest.CaptureFixture[str]
) -> None:
    held_count = sum(row.holds for row in rows.values())
    assert main(["check", str(dump.path)]) == 0
    checked = capsys.readouterr().out
    assert main(["show", str(dump.path), "--donation"]) == 0
    for text in (checked, capsys.readouterr().out):
        assert f"donation: {held_count} of 13 leaves in place" in text
        assert "state['widened']" in text and "BUFFER DONOR ONLY" in text
        assert line_of("following = lax") in text
    assert main(["check", str(dump.path), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    by_path: dict[str, Any] = {row["path"]: row for row in answer["donations"]}
    assert len(by_path) == 13
    assert by_path["state['read_after']"]["copies"][0]["copied_bytes"] == 141_312
    assert main(["show", str(dump.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["donations"] == answer["donations"]


def test_donations_are_null_without_a_manifest(
    dump: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "step.hlo.pb"
    alone.write_bytes((dump.path / "after_optimizations.hlo.pb").read_bytes())
    assert main(["show", str(alone), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["donations"] is None


def test_donating_an_array_that_is_passed_twice_fails_at_run_time() -> None:
    """jax#9635: a call that donates an array and also reads it as another argument fails."""
    add = jax.jit(lambda x, y: x + y, donate_argnums=0)
    x = jnp.zeros((16,))
    with pytest.raises((RuntimeError, ValueError), match="donated in the same call"):
        add(x, x)
