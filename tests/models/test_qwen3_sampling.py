"""Sampling tokens, compared with a float64 NumPy reference and with exact probabilities."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from models.qwen3.generation.sampling import most_probable, next_tokens
from models.qwen3.generation.sampling_settings import SamplingSettings
from models.qwen3.generation.state import draw_of
from xlapipe.errors import XlapipeError

pytestmark = [pytest.mark.jax, pytest.mark.slow]

VOCAB = 40
DRAWS = 20_000


def sampling(**changes: Any) -> SamplingSettings:
    return SamplingSettings(greedy=False, **changes)


def np_probabilities(
    logits: npt.NDArray[np.float32], temperature: float, top_k: int | None, top_p: float
) -> npt.NDArray[np.float64]:
    """Probabilities of a sequence's tokens by definition: adds tokens from the most probable on."""
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")[: top_k or len(scaled)]
    mass = np.exp(scaled[order] - scaled[order].max())
    mass /= mass.sum()
    count = 1
    while mass[:count].sum() < top_p and count < len(mass):
        count += 1
    probabilities = np.zeros(len(scaled))
    probabilities[order[:count]] = mass[:count] / mass[:count].sum()
    return probabilities


def logits_of(batch: int, vocab: int = VOCAB, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(batch, vocab), scale=2).astype(np.float32)


def draw(
    settings: SamplingSettings,
    logits: npt.NDArray[np.float32],
    positions: Sequence[int] | npt.NDArray[np.int32],
    *,
    sequences: Sequence[int] | None = None,
) -> npt.NDArray[np.int32]:
    arrays = dict(draw_of(settings, batch=len(logits)))
    if sequences is not None:
        arrays["sequences"] = np.asarray(sequences, np.int32)
    count = settings.candidates(logits.shape[1])
    fn = jax.jit(next_tokens, static_argnames="candidates")
    drawn = fn(jnp.asarray(logits), arrays, jnp.asarray(positions, jnp.int32), candidates=count)
    return np.asarray(drawn)


CASES = [
    (1.0, None, 1.0),
    (0.7, None, 1.0),
    (1.0, 5, 1.0),
    (1.0, None, 0.8),
    (1.3, 12, 0.9),
    (0.2, 3, 0.35),
    (1.0, VOCAB + 100, 1.0),
    (5.0, None, 1e-6),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), CASES[2:])
def test_probabilities_follow_the_definition(
    temperature: float, top_k: int | None, top_p: float
) -> None:
    settings = sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = logits_of(8)
    candidates = settings.candidates(VOCAB) or VOCAB
    kept, token_ids = jax.jit(most_probable, static_argnames="candidates")(
        jnp.asarray(logits), draw_of(settings, batch=8), candidates=candidates
    )
    probabilities = np.zeros(logits.shape)
    np.put_along_axis(probabilities, np.asarray(token_ids), jax.nn.softmax(kept), axis=1)
    for row, expected in zip(probabilities, logits, strict=True):
        np.testing.assert_allclose(
            row, np_probabilities(expected, temperature, top_k, top_p), atol=2e-6
        )


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), CASES)
def test_frequencies_match_the_probabilities(
    temperature: float, top_k: int | None, top_p: float
) -> None:
    """A chi-squared statistic over many positions, below its 99.99th percentile."""
    settings = sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=3)
    logits = np.repeat(logits_of(1), DRAWS, axis=0)
    drawn = draw(settings, logits, np.arange(DRAWS), sequences=[5] * DRAWS)
    expected = DRAWS * np_probabilities(logits[0], temperature, top_k, top_p)
    counts = np.bincount(drawn, minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    rare = expected < 5  # in one bin, since the statistic needs enough counts per bin
    bins = [(counts[rare].sum(), expected[rare].sum()), *zip(counts[~rare], expected[~rare])]  # noqa: B905
    bins = [(count, mean) for count, mean in bins if mean > 0]
    statistic = sum((count - mean) ** 2 / mean for count, mean in bins)
    degrees = max(len(bins) - 1, 1)
    # Wilson and Hilferty's approximation of the percentile.
    limit = degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3
    assert statistic < limit


def test_greedy_takes_the_largest_logit_and_the_lowest_id_of_equal_ones() -> None:
    logits = logits_of(3)
    logits[1, [7, 3, 30]] = 50
    assert (
        draw(SamplingSettings(), logits, [0, 0, 0]).tolist() == np.argmax(logits, axis=1).tolist()
    )
    assert np.argmax(logits, axis=1)[1] == 3


def test_top_k_keeps_the_lowest_ids_of_equal_logits() -> None:
    logits = np.zeros((200, VOCAB), np.float32)
    drawn = draw(sampling(top_k=3), logits, np.arange(200))
    assert set(drawn.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("changes", [{}, {"top_k": 10}, {"top_p": 0.9}])
def test_a_sample_depends_only_on_logits_seed_sequence_and_position(
    changes: dict[str, Any],
) -> None:
    settings = sampling(seed=7, **changes)
    batch, others = logits_of(64), logits_of(64, seed=1)
    others[5] = batch[5]
    drawn = draw(settings, batch, np.arange(64))
    assert drawn[5] == draw(settings, others, np.arange(64))[5]
    single = draw(settings, batch[5:6], [5], sequences=[5])
    assert drawn[5] == single[0]

    same = np.repeat(batch[:1], 64, axis=0)
    reference = draw(settings, same, np.arange(64), sequences=[0] * 64)
    assert (reference == draw(settings, same, np.arange(64), sequences=[0] * 64)).all()
    assert (reference != draw(settings, same, np.arange(64) + 64, sequences=[0] * 64)).any()
    assert (reference != draw(settings, same, np.arange(64), sequences=[1] * 64)).any()
    other_seed = sampling(seed=8, **changes)
    assert (reference != draw(other_seed, same, np.arange(64), sequences=[0] * 64)).any()


def test_greedy_does_not_sort() -> None:
    """Its program has an argmax, but no sort and no top-k."""
    text = (
        jax.jit(next_tokens, static_argnames="candidates")
        .lower(jnp.zeros((1, VOCAB)), {}, jnp.zeros(1, jnp.int32), candidates=1)
        .as_text()
    )
    assert "sort" not in text and "top_k" not in text
    with_top_k = (
        jax.jit(next_tokens, static_argnames="candidates")
        .lower(
            jnp.zeros((1, VOCAB)),
            draw_of(sampling(top_k=9), batch=1),
            jnp.zeros(1, jnp.int32),
            candidates=9,
        )
        .as_text()
    )
    assert "top_k" in with_top_k or "sort" in with_top_k


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature 0: expected a number above 0"),
        ({"temperature": -1.0}, "temperature -1"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"temperature": math.inf}, "temperature inf"),
        ({"top_k": 0}, "top-k 0: expected 1 or more"),
        ({"top_p": 0.0}, "top-p 0"),
        ({"top_p": 1.5}, "top-p 1.5"),
        ({"top_p": math.nan}, "top-p nan"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**32}, "seed 4294967296"),
    ],
)
def test_settings_out_of_range_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(XlapipeError, match=message.replace(".", r"\.")):
        sampling(**changes)
