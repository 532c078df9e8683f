"""The page of `report` and `show --all`: its figures, and the same text in every form."""

import re
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.cli import main
from xlapipe.report import pages
from xlapipe.report.cells import Number
from xlapipe.report.difference import difference_page
from xlapipe.report.html_page import render_tables_page
from xlapipe.report.pages import Table
from xlapipe.report.subjects import open_subject

DECODE = f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}"


def test_figures_of_a_golden(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--all", str(goldens / DECODE)]) == 0
    text = capsys.readouterr().out
    assert "untuned" in text
    assert "total_allocation_bytes  395,693,900 B" in text
    held = r"params\['embed'\]\['weight'\] +parameter +311,164,928 B +78\.6 %"
    assert re.search(held, text)
    assert re.search(r"2 such as cache\[\*\]\['k'\] +aliased +out\['cache'\]\[\*\]\['k'\]", text)
    assert "Matrix products: 13\n" in text


def test_the_difference_is_that_of_diff(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = (DECODE, DECODE.replace("cublas", "triton"))
    before, after = (open_subject(goldens / name) for name in names)
    (section,) = difference_page(before, after).sections
    sentences, totals = section.tables
    deltas = [bytes_.value for bytes_, _ in sentences.rows if isinstance(bytes_, Number)]
    assert sum(deltas) == totals.rows[0][3].value == -4_147_704
    capsys.readouterr()
    assert main(["diff", *(str(goldens / name) for name in names)]) == 1
    printed = capsys.readouterr().out
    assert all(str(text) in printed for _, text in sentences.rows[:10])
    (same,) = difference_page(before, before).sections
    assert [table.title for table in same.tables] == ["Totals"]
    assert same.lines == ("The plans are the same.",)


def test_a_page_says_the_same_in_every_form() -> None:
    part = Table("held", ("bytes", "what"), ((1024, "a*b<c"), (8, "d"))).first(1)
    page = pages.Page("p.pb", "XLA", (pages.Section("graph 0", ("a line",), (part,)),), "a note")
    terminal = "\n".join(line.plain for line in pages.page_lines(page))
    html = render_tables_page([page])
    for text in (terminal, html):
        for said in ("p.pb", "a note", "graph 0", "a line", "held", "1,024", "… and 1 more"):
            assert said in text
    assert "a*b<c" in terminal
    assert "a*b&lt;c" in html
