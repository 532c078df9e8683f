"""Names, contents, aliases and copies of `show --json`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.dumps import DIRECTORIES, name_of, one_of_each
from tests.shared.reports import Page
from xlapipe.report import units
from xlapipe.report.donation_lines import donation_section
from xlapipe.report.html_page import render_page
from xlapipe.report.plan_figures import figures_of
from xlapipe.report.records import plain_data
from xlapipe.report.subjects import open_subject

GOLDENS = Path(__file__).parents[2] / "hlo_dumps"
DECODE = GOLDENS / f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}"
DUMPS = sorted(path.parent for path in GOLDENS.glob("*/h200-*/manifest.json"))


def data_of(path: Path) -> dict[str, Any]:
    """The JSON of `show`."""
    data: dict[str, Any] = plain_data(figures_of(open_subject(path)))
    return data


@pytest.mark.parametrize("path", [*one_of_each(DUMPS), *DIRECTORIES], ids=name_of)
def test_bytes_add_up(path: Path) -> None:
    data = data_of(path)
    totals, peak = data["totals"], data["peak"]
    occupied = peak["occupied_bytes"]
    assert sum(group["counted_bytes"] for group in peak["groups"]) == occupied
    assert sum(row["total_bytes"] for row in peak["by_source"]) == occupied
    for group in peak["groups"]:
        values = group["values"]
        assert sum(value["counted_bytes"] for value in values) == group["counted_bytes"]
    whole = occupied + peak["idle_bytes"] + totals["thread_local_bytes"]
    assert whole == totals["total_allocation_bytes"]
    ranked = [group["counted_bytes"] for group in peak["groups"]]
    assert ranked == sorted(ranked, reverse=True)


def test_names_are_those_of_the_users_code() -> None:
    groups = {group["label"]: group for group in data_of(DECODE)["peak"]["groups"]}
    cache = groups["cache[*]['k']"]
    assert cache["role"] == "alias"
    assert cache["counted_bytes"] == 2 * 8 * 2048 * 128 * 2
    assert [value["label"] for value in cache["values"]] == ["cache[0]['k']", "cache[1]['k']"]
    assert cache["sources"] == ["models/qwen3/modules/cache.py:48"]
    assert groups["params['embed']['weight']"]["counted_bytes"] == 151_936 * 1024 * 2
    assert groups["out['logits']"]["role"] == "output"


def test_aliases() -> None:
    table = donation_section(open_subject(DECODE)).tables[0]
    (row,) = (row for row in table.rows if str(row[0]) == "2 such as cache[*]['k']")
    assert [str(cell) for cell in row[1:3]] == ["aliased", "out['cache'][*]['k']"]
    assert "cache[0]['k'] → out['cache'][0]['k']" in row[0].members
    step = open_subject(GOLDENS / f"qwen3-step/h200-cublas-jax{GOLDEN_JAXLIB}")
    assert donation_section(step).tables[0].rows == ()


def test_a_donation_without_an_alias_is_listed_first(tmp_path: Path) -> None:
    shutil.copytree(DECODE, tmp_path / "dump")
    manifest = json.loads((tmp_path / "dump/manifest.json").read_text())
    manifest["arguments"][0]["donated"] = True  # params['embed']['weight'] is read, never written
    (tmp_path / "dump/manifest.json").write_text(json.dumps(manifest))
    opened = open_subject(tmp_path / "dump")
    first = donation_section(opened).tables[0].rows[0]
    assert str(first[0]) == "params['embed']['weight']"
    assert str(first[1]) == "unused"
    assert (
        f"{units.rounded(first[3].value)} donated but not reused"
        in Page(render_page([opened])).text
    )


def test_names_of_a_dump_without_manifest() -> None:
    (path,) = (item for item in DIRECTORIES if name_of(item) == "jaxlib-0.11.2/step")
    data = data_of(path)
    assert {"cache", "weights", "x", "steps"} <= {g["label"] for g in data["peak"]["groups"]}
    (row,) = donation_section(open_subject(path)).tables[0].rows
    assert [str(cell) for cell in row[:2]] == ["cache", "aliased"]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("16GB", 16 * 10**9),
        ("16gib", 16 * 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("512MB", 512 * 10**6),
        ("2TiB", 2**41),
        ("100kB", 100_000),
        ("4Gi", 2**32),
        ("17179869184", 2**34),
        ("17_179_869_184 B", 2**34),
        ("17,179,869,184 bytes", 2**34),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_a_size_as_people_write_it(text: str, size_bytes: int) -> None:
    assert units.parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("16G", r"fix: write 16GB \(powers of 1000\) or 16GiB \(powers of 1024\)"),
        ("-1", "fix: write e.g. 16GB"),
        ("16 giga", "expected a size"),
        ("1e9", "expected a size"),
        ("", "expected a size"),
        ("nan", "expected a size"),
    ],
)
def test_a_text_that_is_no_size(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        units.parse_bytes(text)


def test_units() -> None:
    assert units.rounded(0) == "0 B"
    assert units.rounded(1023) == "1,023 B"
    assert units.rounded(1024) == "1.00 KiB"
    assert units.rounded(1024**2 - 1) == "1.00 MiB"
    assert units.rounded(8 * 1024**3) == "8.00 GiB"
    assert units.share(0, 10) == "0 %"
    assert units.share(1, 10**9) == "<0.1 %"
