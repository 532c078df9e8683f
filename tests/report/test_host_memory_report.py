"""Reports on a dump that uses host memory: those bytes are separate from the device's."""

import json
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import DATA
from tests.shared.reports import Page
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.report.html_page import render_page
from xlapipe.report.subjects import open_subject

DUMP = DATA / "host_memory"
# Momentum of f32[128,256], updated in place on the host.
ON_HOST = 128 * 256 * 4


def test_json_has_the_space_of_every_allocation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--json", str(DUMP)]) == 0
    figures = json.loads(capsys.readouterr().out)
    host = [item for item in figures["allocations"] if item["space"] == "host"]
    assert sum(item["size_bytes"] for item in host) == ON_HOST
    assert figures["spaces"]["host"]["total_bytes"] == ON_HOST
    device = [item for item in figures["allocations"] if item["space"] == "hbm"]
    assert figures["totals"]["total_allocation_bytes"] == sum(it["size_bytes"] for it in device)
    assert figures["peak"]["occupied_bytes"] <= figures["totals"]["total_allocation_bytes"]


def test_all_lists_host_memory_and_its_copies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--all", str(DUMP)]) == 0
    _, _, section = capsys.readouterr().out.partition("\nHost\n")
    assert f"host memory: {ON_HOST:,} B" in section
    assert "not in the device's totals" in section
    assert f"host to device: {ON_HOST:,} B, asynchronous, copy-start.2, host.py:39" in section
    assert "device to host:" in section


def test_the_page_has_a_section_on_the_host_only_if_there_is_one(goldens: Path) -> None:
    page = Page(render_page([open_subject(DUMP)]))
    text = " ".join(page.text.split())
    assert "128.0 KiB in host memory" in text
    assert "not in the device's totals" in text
    assert "copy-start.2" in text
    titles = [attributes.get("data-section") for _, attributes in page.tags]
    assert titles.count("host") == 1
    other = open_subject(goldens / f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}")
    assert 'id="host-0"' not in render_page([other])


def test_the_totals_are_those_of_memory_analysis() -> None:
    dump = open_dump(DUMP)
    analysis, host = dump.manifest.memory_analysis, dump.plan.spaces[MemorySpace.HOST]
    assert host.parameter_bytes == analysis["host_argument_bytes"] == ON_HOST
    assert host.live_out_bytes == analysis["host_output_bytes"] == ON_HOST
    assert host.aliased_bytes == analysis["host_alias_bytes"] == ON_HOST
