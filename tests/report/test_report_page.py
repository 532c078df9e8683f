"""The HTML report: its data, its content security policy, and escaped names."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.dumps import DIRECTORIES, name_of
from tests.shared.reports import HOSTILE, Page, hostile_dump
from xlapipe.cli import main
from xlapipe.dump.dump import read_file
from xlapipe.plans.peak import peak_of
from xlapipe.plans.purposes import Purpose
from xlapipe.report.cells import cell_text
from xlapipe.report.html_page import (
    breakable,
    json_script,
    read_script,
    read_style,
    render_page,
)
from xlapipe.report.overview.overview import Overview
from xlapipe.report.subjects import open_subject
from xlapipe.report.time_figures import step_time
from xlapipe.report.time_lines import time_section
from xlapipe.report.units import seconds_text

DECODE = f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}"
TRITON = f"qwen3-decode/h200-triton-jax{GOLDEN_JAXLIB}"


def page_of(*paths: Path) -> Page:
    return Page(render_page([open_subject(path) for path in paths]))


def shown(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `xlapipe show --json` prints."""
    capsys.readouterr()
    assert main(["show", "--json", str(path)]) == 0
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    return figures


@pytest.mark.parametrize("directory", DIRECTORIES, ids=name_of)
def test_the_map_has_the_allocations_of_show(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_of(directory)
    allocations = page.data("allocations-0")
    assert allocations == shown(directory, capsys)["allocations"]
    columns = page.data("map-data-0")["values"]
    values = sum(len(item["values"]) for item in allocations)
    assert {len(column) for column in columns.values()} == {values}


def test_the_displayed_figures_are_exact(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_of(goldens / DECODE)
    totals = shown(goldens / DECODE, capsys)["totals"]
    for name in ("total_allocation_bytes", "temp_bytes", "aliased_bytes"):
        assert f"{totals[name]:,} B" in page.text, name


TRAINING = f"qwen3-train/h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}"


def test_the_head_has_the_figures_of_show(goldens: Path) -> None:
    """The parts of the total are by purpose: donated arguments are not missing among them."""
    opened = open_subject(goldens / TRAINING)
    html = render_page([opened])
    head = html[html.index('<div class="headline">') : html.index("</header>\n<section")]
    parts = {
        name: int(size.replace(",", ""))
        for name, size in re.findall(r"</svg>([a-z ]+)</span></dt><dd>.*?([\d,]+) B<", head)
    }
    overview = Overview(opened)
    expected = {str(row.purpose): row.counted_bytes for row in overview.by_purpose}
    assert parts == {**expected, "not in use": overview.idle_bytes}
    assert sum(parts.values()) == overview.total_bytes
    assert f"<small>{overview.total_bytes:,} B</small>" in head
    assert parts["weights"] > overview.total_bytes // 6
    time = seconds_text(opened.prediction.step_seconds)
    assert f"<b>{time}</b> <small>per step, predicted" in head


def test_the_head_has_the_bytes_that_could_be_donated(goldens: Path) -> None:
    html = render_page(
        [open_subject(goldens / f"spectral-diffusion/h200-cublas-jax{GOLDEN_JAXLIB}")]
    )
    assert "1.00 MiB not donated that an output could use" in html
    assert "not donated that" not in render_page([open_subject(goldens / TRAINING)])


def test_tables_of_times_have_the_prediction_and_no_empty_column(goldens: Path) -> None:
    opened = open_subject(goldens / TRITON)
    time = step_time(opened)
    assert time is not None
    for table in time_section(time).tables:
        columns = table.columns(on_page=True)
        headings = [table.headings[index] for index in columns]
        assert headings[0] == table.name
        assert "predicted" in headings and "measured" not in headings
        assert len(set(headings)) == len(headings)
        for index, heading in zip(columns, headings, strict=True):
            texts = {cell_text(row[index]) for row in table.rows}
            assert texts - {"-", "–", ""}, heading


def test_no_colour_has_two_meanings() -> None:
    """Colours of roles, purposes, groups and phases, in the light and in the dark theme."""
    colors = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);", read_style())
    meanings = re.compile(
        r"parameter|alias|output|temp|constant|thread-local|purpose-.*|group-\d|forward|backward|update"
    )
    light = {name: first for name, first, _ in colors if meanings.fullmatch(name)}
    dark = {name: second for name, _, second in colors if meanings.fullmatch(name)}
    assert len(light) == 6 + len(Purpose) + 10 + 3
    for theme in (light, dark):
        assert len(set(theme.values())) == len(theme)
    (listed,) = re.findall(r"const PURPOSES = (\[.*?\]);", read_script())
    assert json.loads(listed) == [str(purpose) for purpose in Purpose]
    assert {f"purpose-{purpose.replace(' ', '-')}" for purpose in Purpose} <= light.keys()


def test_the_policy_allows_only_the_script_and_style_of_the_page(goldens: Path) -> None:
    page = page_of(goldens / DECODE)
    policy = page.policy()
    assert policy["default-src"] == "'none'"
    assert "connect-src" not in policy  # so default-src applies
    code = [text for attrs, text in page.scripts if attrs.get("type") == "module"]
    assert policy["script-src"] == f"'sha256-{_digest(*code)}'"
    assert policy["style-src"] == f"'sha256-{_digest(*page.styles)}'"
    kinds = {attrs.get("type") for attrs, _ in page.scripts}
    assert kinds == {"module", "application/json"}


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_nothing_is_fetched(goldens: Path) -> None:
    for tag, attributes in page_of(goldens / DECODE, goldens / TRITON).tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert "style" not in attributes, (tag, attributes)
        for name in ("src", "href", "srcset", "action", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith("#") or target == "data:,", (tag, target)


def test_names_stay_text(goldens: Path, tmp_path: Path) -> None:
    plain = page_of(goldens / DECODE)
    path = hostile_dump(goldens / DECODE, tmp_path / "dump")
    page = page_of(path)
    assert len(page.scripts) == len(plain.scripts)
    assert [tag for tag, _ in page.tags].count("img") == 0
    assert page.text.count(HOSTILE) > 20
    packed = page.data("stages-0")["stages"][0]["gzip"]
    assert HOSTILE in gzip.decompress(base64.b64decode(packed)).decode()


def test_json_cannot_end_its_element() -> None:
    assert "<" not in json_script({"</script>": ["<!--", "\u2028"]})
    assert json.loads(json_script({"a<": "<b>"})) == {"a<": "<b>"}


def test_line_breaks_do_not_change_text() -> None:
    text = "params['a']/<b>&,x[1,2]"
    assert Page(breakable(text)).text == text
    assert "<wbr>" in breakable("params['a']")
    assert "<wbr>" not in breakable("bf16[8,128]{1,0}")


def test_stages_are_the_dumps_texts(goldens: Path) -> None:
    path = goldens / DECODE
    stages = {item["name"]: item["gzip"] for item in page_of(path).data("stages-0")["stages"]}
    assert list(stages) == [
        "HLO before optimizations",
        "HLO after optimizations",
        "HLO after optimizations, in normal form",
        "thunk sequence",
        "buffer assignment",
    ]
    packed = base64.b64decode(stages["HLO after optimizations"])
    assert gzip.decompress(packed) == read_file(path, "after_optimizations.txt")


def test_a_page_is_the_same_each_time(goldens: Path) -> None:
    paths = [goldens / DECODE, goldens / TRITON]
    assert render_page([open_subject(path) for path in paths]) == render_page(
        [open_subject(path) for path in paths]
    )


def test_tables_have_headings(goldens: Path) -> None:
    page = page_of(goldens / DECODE)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("table") == tags.count("thead") == tags.count("tbody") > 5
    assert all(attrs.get("scope") for tag, attrs in page.tags if tag == "th")
    assert next(tag for tag in tags if tag in ("h1", "h2", "h3")) == "h1"
    assert tags.count("h1") == 1


def test_a_group_lists_its_values(goldens: Path) -> None:
    opened = open_subject(goldens / DECODE)
    text = page_of(goldens / DECODE).text
    groups = [group for group in peak_of(opened.program).groups if len(group.values) > 1]
    assert groups
    for group in groups:
        assert all(f"{value.value} {value.shape}" in text for value in group.values)
