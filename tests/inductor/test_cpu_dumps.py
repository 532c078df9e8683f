"""Dumps that torch 2.13 wrote for the CPU, beside the bytes that its profiler counted.

`tests/inductor/data/make_cpu_dumps.py` made them.
"""

from pathlib import Path

import pytest

from xlapipe.inductor.reader import read_inductor

DUMPS = sorted((Path(__file__).parent / "data").glob("torch-*"))


@pytest.mark.parametrize("folder", DUMPS, ids=lambda folder: folder.name)
def test_every_byte_is_the_profilers(folder: Path) -> None:
    for plan in read_inductor(folder).plans:
        assert plan.exact
        assert plan.measured is not None
        assert plan.totals.unknown_allocations == 0
        assert plan.totals.own_peak_bytes == plan.measured.own_peak_bytes
        assert plan.totals.end_bytes == plan.measured.end_bytes


def test_the_dumps_are_here() -> None:
    assert len(DUMPS) == 4
