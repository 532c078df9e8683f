"""Ten thousand damaged dumps: each raises a DumpError, or gives a plan that is consistent."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dump import mutate
from tests.shared.dumps import DATA, SEED_003, needs_seed_003, proto_of, texts_of
from xlapipe.dump.readers import DumpTexts, SourceText, read_proto, read_text
from xlapipe.dump.readers.file_contents import read_source
from xlapipe.dump.readers.hlo_proto import HloProto
from xlapipe.errors import DumpError
from xlapipe.plans import Plan
from xlapipe.plans.verify import verify

# Parts of the mutations: a quarter of them in CI, all of them in `make test-all`.
DIVISORS = pytest.mark.parametrize(
    "divisor",
    [pytest.param(4, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.exhaustive)],
)

NEW = DATA / "jaxlib-0.12.0.1" / "step"
OLD = DATA / "jaxlib-0.9.2" / "step"


def _survives(read: Callable[[], Plan]) -> bool:
    """Whether `read` returns a plan; any exception except a DumpError fails the test."""
    try:
        plan = read()
    except DumpError as error:
        message = str(error)
        assert message.startswith("damaged"), message
        assert "expected" in message
        assert "found" in message
        assert "; fix: " in message
        return False
    verify(plan, where="again")
    if plan.total_bytes_used is not None:
        assert plan.totals.total_allocation_bytes == plan.total_bytes_used
    return True


def _damaged(source: SourceText, chance: random.Random) -> SourceText:
    return SourceText("damaged", mutate.text(source.text, chance))


def _named(texts: DumpTexts) -> DumpTexts:
    """`texts` with the same file name for all of them, which every message has to start with."""
    sources = {
        field.name: SourceText("damaged", source.text)
        for field in dataclasses.fields(texts)
        if (source := getattr(texts, field.name)) is not None
    }
    return DumpTexts(**sources)


@needs_seed_003
@DIVISORS
def test_damaged_reference_dump_003(divisor: int) -> None:
    original = read_source(SEED_003)
    for seed in range(2500 // divisor):
        chance = random.Random(seed)
        _survives(lambda chance=chance: read_text(DumpTexts(_damaged(original, chance))))


@DIVISORS
def test_damaged_texts_in_one_file(divisor: int) -> None:
    texts = _named(dataclasses.replace(texts_of(OLD), hlo=None))
    plans = 0
    for seed in range(1500 // divisor):
        chance = random.Random(seed)
        damaged = DumpTexts(_damaged(texts.assignment, chance))
        plans += _survives(lambda damaged=damaged: read_text(damaged))
    assert plans < 1000 // divisor


@pytest.mark.slow
@pytest.mark.parametrize("part", ["assignment", "values", "live_range", "hlo", "thunks"])
def test_damaged_texts_in_several_files(part: str) -> None:
    texts = _named(texts_of(NEW))
    for seed in range(500):
        chance = random.Random(f"{part}{seed}")
        damaged = dataclasses.replace(texts, **{part: _damaged(getattr(texts, part), chance)})
        if chance.random() < 0.5:
            damaged = dataclasses.replace(damaged, hlo=damaged.hlo if part == "hlo" else None)
        _survives(lambda damaged=damaged: read_text(damaged))


@DIVISORS
def test_damaged_bytes_of_a_proto(divisor: int) -> None:
    data = proto_of(NEW)
    for seed in range(2000 // divisor):
        damaged = mutate.wire(data, random.Random(seed))
        _survives(lambda damaged=damaged: read_proto(damaged, where="damaged"))


@DIVISORS
def test_damaged_fields_of_a_proto(divisor: int) -> None:
    data = proto_of(NEW)
    plans = 0
    for seed in range(1500 // divisor):
        proto, chance = HloProto.FromString(data), random.Random(seed)
        for _ in range(chance.choice((1, 1, 2, 4))):
            mutate.fields(proto, chance)
        damaged = proto.SerializeToString()
        plans += _survives(lambda damaged=damaged: read_proto(damaged, where="damaged"))
    assert plans < 1400 // divisor


def _cuts(text: str, step: int) -> list[int]:
    """Positions of line ends, and of places inside lines."""
    ends = [at + 1 for at, character in enumerate(text) if character == "\n"]
    return sorted({*ends[:-1:step], *range(1, len(text) - 1, 97 * step)})


@pytest.mark.slow
@needs_seed_003
def test_reference_dump_003_cut_short_anywhere() -> None:
    source = read_source(SEED_003)
    whole = read_text(DumpTexts(source))
    for cut in _cuts(source.text, 3):
        _check_cut(DumpTexts(SourceText("damaged", source.text[:cut])), whole)


def _check_cut(texts: DumpTexts, whole: Plan) -> None:
    """Check that a cut raises a DumpError, or is between two sections."""
    try:
        plan = read_text(texts)
    except DumpError:
        return
    assert plan.allocations == whole.allocations
    assert plan.total_bytes_used == whole.total_bytes_used
    assert plan.module in (whole.module, None)
    assert plan.live_ranges in (whole.live_ranges, None)
    # A cut after a thunk on which no other depends cannot be detected.
    if plan.thunks != whole.thunks and not plan.notes:
        assert plan.thunks is not None
        assert whole.thunks is not None
        assert plan.thunks == whole.thunks[: len(plan.thunks)]
        assert whole.thunks[len(plan.thunks)].depth <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("directory", "part"),
    [(OLD, part) for part in ("assignment", "hlo", "thunks")]
    + [(NEW, part) for part in ("assignment", "values", "live_range", "hlo", "thunks")],
)
def test_a_text_that_is_cut_short_is_detected(directory: Path, part: str) -> None:
    texts = texts_of(directory)
    source = getattr(texts, part)
    assert source is not None
    whole = read_text(texts)
    for cut in _cuts(source.text, 4):
        damaged = dataclasses.replace(texts, **{part: SourceText("damaged", source.text[:cut])})
        _check_cut(damaged, whole)


@pytest.mark.slow
def test_a_proto_that_is_cut_short_is_detected() -> None:
    data = proto_of(NEW)
    for cut in range(0, len(data) - 1, 61):
        with pytest.raises(DumpError):
            read_proto(data[:cut], where="damaged")
