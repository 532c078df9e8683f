"""Generation compared with single prefill and decode steps and NumPy's argmax.

Cache length, bucket, batch and chunks of the loop must not change the tokens.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.compile_generation import compile_generation
from models.qwen3.generation.decode_loop import decode_loop, prompt_step
from models.qwen3.generation.generator import Generated, Generator
from models.qwen3.generation.jax_device import JaxDevice
from models.qwen3.generation.sampling_settings import MAX_EOS, SamplingSettings
from models.qwen3.generation.state import ENDED, first_state
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.modules.cache import init_cache
from models.qwen3.steps import abstract_model, decode_step, prefill_step
from xlapipe.errors import XlapipeError

pytestmark = [pytest.mark.jax, pytest.mark.slow]

CONFIG = Qwen3Config(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=100.0,
    dtype="float32",
)
PROMPTS = ([3, 1, 4, 1, 5, 9, 2], [6], [96, 0, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3])
NEW = 11


@cache
def params() -> Any:
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda s: jnp.asarray(
            rng.uniform(0.5, 1.5, s.shape) if len(s.shape) == 1 else rng.normal(size=s.shape) / 5,
            s.dtype,
        ),
        abstract_model(CONFIG)[1],
    )


@cache
def stepped() -> tuple[Any, Any]:
    return jax.jit(prefill_step(CONFIG)), jax.jit(decode_step(CONFIG))


@cache
def expected(prompt: tuple[int, ...], count: int = NEW) -> list[int]:
    """Greedy tokens after one prompt, each from logits that the host reads."""
    prefill, decode = stepped()
    ids = jnp.asarray([[*prompt, *[0] * (16 - len(prompt))]], jnp.int32)
    empty = init_cache(CONFIG, batch=1, cache_length=32)
    out = prefill(params(), empty, ids, jnp.asarray([len(prompt)], jnp.int32))
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(int(np.argmax(out["logits"][0])))
        position = jnp.asarray([len(prompt) + len(tokens) - 1], jnp.int32)
        out = decode(params(), out["cache"], jnp.asarray(tokens[-1:], jnp.int32), position)
    return tokens


@cache
def compiled_for(
    batch: int, cache_length: int, bucket: int, steps: int, candidates: int | None = 1
) -> Generator:
    sizes = GenerationSizes(
        batch=batch, cache_length=cache_length, bucket=bucket, steps=steps, candidates=candidates
    )
    device = jax.devices("cpu")[0]
    compiled = compile_generation(CONFIG, sizes, device)
    return Generator(CONFIG, compiled, params(), JaxDevice(device))


def generate(
    generator: Generator,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    count: int = NEW,
    settings: SamplingSettings | None = None,
    eos: Sequence[int] = (),
) -> Generated:
    return generator.generate(
        prompts, max_new_tokens=count, settings=settings or SamplingSettings(), eos_token_ids=eos
    )


@pytest.mark.parametrize(
    ("cache_length", "bucket", "steps"),
    [(26, 16, 5), (40, 32, 1), (40, 16, 5)],
)
def test_a_batch_gives_the_tokens_of_each_prompt_alone(
    cache_length: int, bucket: int, steps: int
) -> None:
    result = generate(compiled_for(3, cache_length, bucket, steps))
    assert result.token_ids == [expected(tuple(prompt)) for prompt in PROMPTS]
    assert result.finish == ["length"] * 3
    assert result.decoded_tokens == 3 * (NEW - 1)


def test_fewer_prompts_than_the_batch() -> None:
    result = generate(compiled_for(3, 40, 16, 5), PROMPTS[:1])
    assert result.token_ids == [expected(tuple(PROMPTS[0]))]


def test_decode_steps_can_replace_prefill() -> None:
    """Decoding the prompt token by token gives the same cache and the same next tokens."""
    prompt = PROMPTS[0]
    _, decode = stepped()
    cache_, out = init_cache(CONFIG, batch=1, cache_length=32), {}
    for position, token_id in enumerate(prompt):
        arrays = [jnp.asarray([value], jnp.int32) for value in (token_id, position)]
        out = decode(params(), cache_, *arrays)
        cache_ = out["cache"]
    first = int(np.argmax(out["logits"][0]))
    state = {
        **first_state(SamplingSettings(), (), batch=1),
        "token_ids": np.asarray([first], np.int32),
        "positions": np.asarray([len(prompt)], np.int32),
    }
    loop = jax.jit(decode_loop(CONFIG, steps=NEW - 1))
    tokens = loop(params(), cache_, state)["tokens"]
    assert [first, *tokens[0].tolist()] == expected(tuple(prompt))


def test_sequences_of_a_batch_end_independently() -> None:
    """The fifth token of the first sequence ends it; the others continue."""
    complete = [expected(tuple(prompt)) for prompt in PROMPTS]
    eos = complete[0][4]
    ends = [tokens.index(eos) + 1 if eos in tokens else NEW for tokens in complete]
    assert ends[0] <= 5 and max(ends) == NEW
    result = generate(compiled_for(3, 40, 16, 5), eos=(95, eos))
    assert result.token_ids == [tokens[:end] for tokens, end in zip(complete, ends, strict=True)]
    assert result.finish == ["eos" if end < NEW else "length" for end in ends]


def test_a_first_token_that_ends_the_sequence() -> None:
    eos = expected(tuple(PROMPTS[1]))[0]
    result = generate(compiled_for(3, 40, 16, 5), PROMPTS[1:2], eos=(eos,))
    assert (result.token_ids, result.finish, result.decoded_tokens) == ([[eos]], ["eos"], 0)
    assert result.tokens_per_second is None


def test_a_sequence_that_has_ended_writes_nothing() -> None:
    """Its cache slots do not change, and its tokens are ENDED."""
    prompt, loop = jax.jit(prompt_step(CONFIG)), jax.jit(decode_loop(CONFIG, steps=3))
    eos = expected(tuple(PROMPTS[1]))[0]
    lengths = np.asarray([1, 0], np.int32)
    ids = np.asarray([[*PROMPTS[1], 0], [5, 5]], np.int32)
    empty = init_cache(CONFIG, batch=2, cache_length=8)
    before = prompt(params(), empty, first_state(SamplingSettings(), (eos,), batch=2), ids, lengths)
    after = loop(params(), before["cache"], before["state"])
    assert before["tokens"].tolist() == [[eos], [ENDED]]
    assert after["tokens"].tolist() == [[ENDED] * 3] * 2
    for leaf_before, leaf_after in zip(
        jax.tree.leaves(before["cache"]), jax.tree.leaves(after["cache"]), strict=True
    ):
        assert (leaf_before == leaf_after).all()
        assert not (leaf_before[0, :, 0] == 0).all() and (leaf_before[1] == 0).all()


@pytest.mark.parametrize(
    ("length", "count", "finish"), [(16, 1, "cache"), (15, 2, "cache"), (1, 11, "length")]
)
def test_a_full_cache_ends_a_sequence(length: int, count: int, finish: str) -> None:
    """A prompt that fills the cache still gives one token, which is not written to the cache."""
    prompt = PROMPTS[2][:length]
    result = generate(compiled_for(1, 16, 16, 4), [prompt])
    assert result.token_ids == [expected(tuple(prompt))[:count]]
    assert result.finish == [finish]


def test_tokens_are_reported_chunk_by_chunk_in_order() -> None:
    reported: list[tuple[int, list[int]]] = []
    result = compiled_for(3, 40, 16, 5).generate(
        PROMPTS,
        max_new_tokens=NEW,
        settings=SamplingSettings(),
        on_tokens=lambda index, token_ids: reported.append((index, token_ids)),
    )
    assert [len(token_ids) for index, token_ids in reported if index == 1] == [1, 5, 5]
    for index, token_ids in enumerate(result.token_ids):
        chunks = [chunk for sequence, chunk in reported if sequence == index]
        assert [token_id for chunk in chunks for token_id in chunk] == token_ids


@pytest.mark.parametrize("changes", [{}, {"top_k": 20, "top_p": 0.9, "temperature": 0.8}])
def test_a_sampled_sequence_does_not_depend_on_the_batch(changes: dict[str, Any]) -> None:
    settings = SamplingSettings(greedy=False, seed=11, **changes)
    candidates = settings.candidates(CONFIG.vocab_size)
    batch = generate(compiled_for(3, 40, 16, 5, candidates), settings=settings).token_ids
    if changes:
        single = generate(compiled_for(1, 64, 16, 3, candidates), PROMPTS[:1], settings=settings)
        assert batch[:1] == single.token_ids
    again = generate(compiled_for(3, 40, 16, 5, candidates), settings=settings).token_ids
    assert again == batch
    assert batch != [expected(tuple(prompt)) for prompt in PROMPTS]
    other = SamplingSettings(greedy=False, seed=12, **changes)
    assert generate(compiled_for(3, 40, 16, 5, candidates), settings=other).token_ids != batch


@pytest.mark.parametrize(
    ("prompts", "count", "message"),
    [
        ([], 1, "no prompt"),
        ([[]], 1, "prompt 1 has no tokens"),
        ([[1], [2, 97]], 1, "prompt 2: token id 97 at position 1 .* vocabulary of 97"),
        ([[-1]], 1, "token id -1"),
        ([[1]], 0, "max-new-tokens 0: expected 1 or more"),
        ([[1] * 17], 1, "prompt 1 has 17 tokens, but the cache has 16 slots"),
        ([[1], [2]], 1, "a batch of 1; found 2 prompts"),
    ],
)
def test_bad_prompts_are_errors(prompts: list[list[int]], count: int, message: str) -> None:
    with pytest.raises(XlapipeError, match=message):
        generate(compiled_for(1, 16, 16, 4), prompts, count)


def test_too_many_ids_that_end_a_sequence_are_an_error() -> None:
    assert first_state(SamplingSettings(), range(MAX_EOS), batch=1)["eos"].tolist() == list(
        range(MAX_EOS)
    )
    with pytest.raises(XlapipeError, match=r"at most 8 ids .* found 9"):
        first_state(SamplingSettings(), range(MAX_EOS + 1), batch=1)
