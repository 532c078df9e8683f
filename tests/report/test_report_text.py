"""The report as Markdown: its figures, the same in every folder, and escaped names."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.folders import DATA
from tests.shared.reports import HOSTILE, hostile_dump
from xlapipe.cli import main
from xlapipe.report import pages
from xlapipe.report.difference import compare_dumps
from xlapipe.report.html_page import render_tables_page
from xlapipe.report.pages import plain
from xlapipe.report.subjects import open_subject
from xlapipe.report.text_table import Table

DECODE = f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}"


def text_of(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["report", "--text", str(path)]) == 0
    return capsys.readouterr().out


def rows(text: str, heading: str) -> list[list[str]]:
    """Cells of the first table below the heading that starts with `heading`."""
    _, _, after = text.partition(f"\n## {heading}")
    lines = [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def test_figures_of_a_golden(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(goldens / DECODE, capsys)
    assert text.startswith("# qwen3-decode on h200\n")
    assert "untuned" in text
    assert "395,693,900 B" in text
    first = rows(text, "In use at the peak")[0]
    assert first[:4] == [
        "`params['embed']['weight']`",
        "parameter",
        "311,164,928 B (296.8 MiB)",
        "78.6 %",
    ]
    aliases = rows(text, "Arguments and the outputs")
    assert aliases[0][:3] == ["`cache[*]['k']` × 2", "aliased", "`out['cache'][*]['k']`"]
    products = [row[0].partition(" × ")[2] or "1" for row in rows(text, "Matrix products: 13")]
    assert sum(map(int, products)) == 13


def test_it_is_the_same_in_another_folder(
    goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(goldens / DECODE, tmp_path / "elsewhere")
    assert text_of(tmp_path / "elsewhere", capsys) == text_of(goldens / DECODE, capsys)


def test_names_stay_text(goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(hostile_dump(goldens / DECODE, tmp_path / "dump"), capsys)
    outside_code, cells = [], 0
    for line in text.splitlines():
        number = line.replace("\\|", "").count("|")
        if not line.startswith("|"):
            outside_code.append(line)
            number = 0
        else:
            assert number == (cells or number), line  # as in the heading of its table
        cells = number
    assert not any("<script" in line.replace("\\<", "") for line in outside_code if "`" not in line)
    assert HOSTILE.replace("|", "\\|") in text


def test_a_dump_of_an_older_jaxlib_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    (proto,) = (DATA / "jaxlib-0.9.2/step").glob("*.hlo.pb.gz")
    assert "# " in text_of(proto.parent, capsys)


def test_no_live_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (proto,) = (DATA / "jaxlib-0.11.2/step").glob("*.hlo.pb.gz")
    shutil.copy(proto, tmp_path)
    text = text_of(tmp_path / proto.name, capsys)
    assert "## Contents of the memory\n\n- This dump has no live ranges" in text
    assert "unknown" in text


def test_difference(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    paths = [str(goldens / DECODE), str(goldens / DECODE.replace("cublas", "triton"))]
    assert main(["report", "--text", *paths]) == 0
    text = capsys.readouterr().out
    total = next(line for line in text.splitlines() if "total_allocation_bytes" in line)
    cells = [cell.strip() for cell in total.strip("|").split("|")]
    sizes = ["395,693,900 B (377.4 MiB)", "391,546,196 B (373.4 MiB)"]
    assert cells[1:] == [*sizes, "**-4,147,704 B**"]


def test_the_difference_is_that_of_diff(goldens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = (DECODE, DECODE.replace("cublas", "triton"))
    before, after = (open_subject(goldens / name) for name in names)
    comparison = compare_dumps(before, after)
    deltas = [item.delta_bytes or 0 for item in comparison["sentences"]]
    total = comparison["totals"][0]
    assert sum(deltas) == total["after"] - total["before"] == -4_147_704
    capsys.readouterr()
    assert main(["diff", *(str(goldens / name) for name in names)]) == 1
    printed = capsys.readouterr().out
    assert all(item.text in printed for item in comparison["sentences"][:10])
    same = compare_dumps(before, before)
    assert same["sentences"] == []
    assert same["notes"] == ["The plans are the same."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bf16[8,8] of o_proj -> out", "bf16[8,8] of o_proj -> out"),
        ("<b> *a* _b_ `c` a|b &lt; ~~d~~", "\\<b> \\*a\\* \\_b\\_ \\`c\\` a\\|b \\&lt; \\~~d\\~~"),
        ("[a](http://b)", "\\[a]\\(http://b)"),
        ("# one\n> two", "\\# one > two"),
    ],
)
def test_markup_is_escaped_only_where_markdown_interprets_it(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_a_page_says_the_same_in_every_form() -> None:
    part = Table("held", ("bytes", "what"), ((1024, "a*b<c"), (8, "d"))).first(1)
    page = pages.Page("p.pb", "XLA", (pages.Section("graph 0", ("a line",), (part,)),), "a note")
    terminal = "\n".join(line.plain for line in pages.page_lines(page))
    html = render_tables_page([page])
    for text in (terminal, pages.pages_markdown([page]), html):
        for said in ("p.pb", "a note", "graph 0", "a line", "held", "1,024", "… and 1 more"):
            assert said in text
    assert "a*b<c" in terminal
    assert r"a\*b\<c" in pages.pages_markdown([page])
    assert "a*b&lt;c" in html
