"""What XLA computes a second time, and what that adds."""

from pathlib import Path

from tests.shared.small_hlo import plan_of_text
from xlapipe.time.recomputed import Recomputation, recomputation, rematerialised_names

TEXTS = Path(__file__).with_name("texts")
REMAT = (TEXTS / "remat_hlo.txt").read_text(encoding="utf-8")


def test_copies_are_named_and_what_replaces_an_original_adds_no_time() -> None:
    names = rematerialised_names(plan_of_text(REMAT))
    assert names == ("a.remat", "a.remat2.1")
    what = recomputation(plan_of_text(REMAT), names, {"a": 4.0, "a.remat": 1.0, "b.remat": 1.0})
    assert what.added_share == 0.2


def test_the_bytes_are_xlas_estimate_before_and_after() -> None:
    unknown, known = Recomputation(3, added_share=0.334), Recomputation(3, 45 << 30, 31 << 30)
    assert unknown.text(28 << 30) == (
        "XLA recomputes to fit: 28.0 GiB with 3 instructions more, +33% time"
    )
    assert known.text(28 << 30) == "XLA recomputes to fit: about 42.0 GiB -> 28.0 GiB"
