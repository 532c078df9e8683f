"""What `xlapipe diff` prints for the reference dumps."""

from pathlib import Path

from tests.inductor.seed_comparisons import PAGE, page


def test_the_comparisons_are_those_of_the_file(seeds: Path) -> None:
    """If they are not, and are meant to be: `python -m tests.inductor.seed_comparisons`."""
    assert page() == PAGE.read_text(encoding="utf-8")
