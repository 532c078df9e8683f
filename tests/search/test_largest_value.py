"""The search for the largest size: right on any monotone memory, with few compiles on a line."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xlapipe.errors import XlapipeError
from xlapipe.search.sizing.largest_value import Probe, largest_size


def search(usable: int, memory: list[int] | None = None, **bounds: int | None) -> tuple[Probe, ...]:
    """With memory by size, or 1,000 bytes and 7 for each of a size."""

    def probe(size: int) -> Probe:
        needed = 1000 + 7 * size if memory is None else memory[size]
        return Probe(size, usable - needed, needed <= usable)

    return largest_size(probe, **{"lower": 1, "upper": None, **bounds})  # type: ignore[arg-type]


def best(probes: tuple[Probe, ...]) -> int | None:
    return max((probe.size for probe in probes if probe.fits), default=None)


@pytest.mark.parametrize("usable", [1007, 1500, 8000, 123_456, 80_000_001])
def test_a_line_needs_few_compiles(usable: int) -> None:
    probes = search(usable)
    assert best(probes) == (usable - 1000) // 7
    assert len(probes) <= 8
    assert len({probe.size for probe in probes}) == len(probes)


def test_the_upper_bound_is_compiled_once_it_is_within_reach() -> None:
    probes = search(10**9, upper=512)
    assert best(probes) == 512
    assert len(probes) <= 3


def test_multiples_only() -> None:
    probes = search(8000, multiple_of=24)
    assert all(probe.size % 24 == 0 for probe in probes)
    assert best(probes) == 984


def test_a_first_size_that_does_not_fit_ends_the_search() -> None:
    probes = search(1000)
    assert [probe.fits for probe in probes] == [False]


# A machine that runs other tests too can be slow.
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=300), st.integers(0, 50_000))
def test_any_monotone_memory(steps: list[int], usable: int) -> None:
    """Also if XLA rematerialises from some size on."""
    memory = [sum(steps[: size + 1]) for size in range(len(steps))]
    probes = search(usable, memory, upper=len(memory) - 1)
    fitting = [size for size in range(1, len(memory)) if memory[size] <= usable]
    assert best(probes) == max(fitting, default=None)
    assert len(probes) <= 20


def test_a_range_without_a_multiple_is_refused() -> None:
    with pytest.raises(XlapipeError, match="contain no positive multiple of 8"):
        search(1000, lower=1, upper=7, multiple_of=8)
