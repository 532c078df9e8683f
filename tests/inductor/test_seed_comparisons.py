"""docs/lab/seeds.md holds what `xlapipe diff` prints for the reference dumps."""

from pathlib import Path

from tests.inductor.seed_comparisons import BEGIN, END, PAGE, section


def test_the_page_holds_the_comparisons(seeds: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = text.partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == section().strip()
