"""Ten thousand damaged dumps: each is a DumpError, or a plan of which every figure holds."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reading import mutate
from tests.reading.dumps import DATA, SEED_003, needs_seed_003, proto_of, texts_of
from xlapipe.errors import DumpError
from xlapipe.plan import Plan
from xlapipe.plan.verify import verify
from xlapipe.read import DumpTexts, SourceText, read_proto, read_text
from xlapipe.read.file_contents import read_source
from xlapipe.read.hlo_proto import HloProto

NEW = DATA / "jaxlib-0.12.0.1" / "step"
OLD = DATA / "jaxlib-0.9.2" / "step"


def _survives(read: Callable[[], Plan]) -> bool:
    """Whether a plan came out; fails for any exception but DumpError."""
    try:
        plan = read()
    except DumpError as error:
        message = str(error)
        assert message.startswith("damaged"), message
        assert "expected" in message
        assert "found" in message or "once" in message
        assert ";" in message
        return False
    verify(plan, where="again")
    if plan.total_bytes_used is not None:
        assert plan.totals.total_allocation_bytes == plan.total_bytes_used
    return True


def _damaged(source: SourceText, chance: random.Random) -> SourceText:
    return SourceText("damaged", mutate.text(source.text, chance))


def _named(texts: DumpTexts) -> DumpTexts:
    """With one name for all, by which messages are known."""
    sources = {
        field.name: SourceText("damaged", source.text)
        for field in dataclasses.fields(texts)
        if (source := getattr(texts, field.name)) is not None
    }
    return DumpTexts(**sources)


@needs_seed_003
def test_the_reference_dump() -> None:
    original = read_source(SEED_003)
    for seed in range(2500):
        chance = random.Random(seed)
        _survives(lambda chance=chance: read_text(DumpTexts(_damaged(original, chance))))


def test_the_one_file_layout() -> None:
    texts = _named(dataclasses.replace(texts_of(OLD), hlo=None))
    plans = 0
    for seed in range(1500):
        chance = random.Random(seed)
        damaged = DumpTexts(_damaged(texts.assignment, chance))
        plans += _survives(lambda damaged=damaged: read_text(damaged))
    assert plans < 1000


@pytest.mark.parametrize("part", ["assignment", "values", "live_range", "hlo", "thunks"])
def test_the_split_layout(part: str) -> None:
    texts = _named(texts_of(NEW))
    for seed in range(500):
        chance = random.Random(f"{part}{seed}")
        damaged = dataclasses.replace(texts, **{part: _damaged(getattr(texts, part), chance)})
        if chance.random() < 0.5:
            damaged = dataclasses.replace(damaged, hlo=damaged.hlo if part == "hlo" else None)
        _survives(lambda damaged=damaged: read_text(damaged))


def test_bytes_of_a_proto() -> None:
    data = proto_of(NEW)
    for seed in range(2000):
        damaged = mutate.wire(data, random.Random(seed))
        _survives(lambda damaged=damaged: read_proto(damaged, where="damaged"))


def test_fields_of_a_proto() -> None:
    data = proto_of(NEW)
    plans = 0
    for seed in range(1500):
        proto, chance = HloProto.FromString(data), random.Random(seed)
        for _ in range(chance.choice((1, 1, 2, 4))):
            mutate.fields(proto, chance)
        damaged = proto.SerializeToString()
        plans += _survives(lambda damaged=damaged: read_proto(damaged, where="damaged"))
    assert plans < 1400


def _cuts(text: str, step: int) -> list[int]:
    """Every line end, and places inside lines."""
    ends = [at + 1 for at, character in enumerate(text) if character == "\n"]
    return sorted({*ends[:-1:step], *range(1, len(text) - 1, 97 * step)})


@needs_seed_003
def test_the_reference_dump_cut_anywhere() -> None:
    source = read_source(SEED_003)
    whole = read_text(DumpTexts(source))
    for cut in _cuts(source.text, 3):
        _cut_is_noticed(DumpTexts(SourceText("damaged", source.text[:cut])), whole)


def _cut_is_noticed(texts: DumpTexts, whole: Plan) -> None:
    """A cut is an error, or is between two sections, and then the later ones are not there."""
    try:
        plan = read_text(texts)
    except DumpError:
        return
    assert plan.allocations == whole.allocations
    assert plan.total_bytes_used == whole.total_bytes_used
    assert plan.module in (whole.module, None)
    assert plan.live_ranges in (whole.live_ranges, None)
    # Behind a thunk that nothing depends on, a cut leaves no trace.
    if plan.thunks != whole.thunks:
        assert plan.thunks is not None
        assert whole.thunks is not None
        assert plan.thunks == whole.thunks[: len(plan.thunks)]
        assert whole.thunks[len(plan.thunks)].depth <= 1


@pytest.mark.parametrize(
    ("directory", "part"),
    [(OLD, part) for part in ("assignment", "hlo", "thunks")]
    + [(NEW, part) for part in ("assignment", "values", "live_range", "hlo", "thunks")],
)
def test_a_cut_text_is_noticed(directory: Path, part: str) -> None:
    texts = texts_of(directory)
    source = getattr(texts, part)
    assert source is not None
    whole = read_text(texts)
    for cut in _cuts(source.text, 4):
        damaged = dataclasses.replace(texts, **{part: SourceText("damaged", source.text[:cut])})
        _cut_is_noticed(damaged, whole)


def test_a_cut_proto_is_noticed() -> None:
    data = proto_of(NEW)
    for cut in range(0, len(data) - 1, 61):
        with pytest.raises(DumpError):
            read_proto(data[:cut], where="damaged")
