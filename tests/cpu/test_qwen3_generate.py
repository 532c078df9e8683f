"""Generation, against prefill and decode taken one step at a time with NumPy's argmax.

Variants that must not matter: cache length, bucket, batch, chunks of the loop.
"""

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import install_import_hook

from xlapipe.errors import XlapipeError

# The shapes in annotations are checked at every call below.
for _name in [name for name in sys.modules if name.startswith("models.qwen3.")]:
    del sys.modules[_name]
with install_import_hook("models.qwen3", "beartype.beartype"):
    from models.qwen3.config import Qwen3Config
    from models.qwen3.generation.decode_loop import ENDED, decode_loop, first_state, prompt_step
    from models.qwen3.generation.generator import Generated, Generator
    from models.qwen3.generation.programs import compiled_here
    from models.qwen3.generation.sampling_settings import MAX_EOS, Settings
    from models.qwen3.generation.sizes import GenerationSizes, bucket_of, cache_length_for
    from models.qwen3.modules.cache import init_cache
    from models.qwen3.steps import abstract_model, decode_step, prefill_step

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
    """Greedy tokens behind one prompt, each from the logits that the host has read."""
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
def generator(
    batch: int, cache_length: int, bucket: int, steps: int, candidates: int | None = 1
) -> Generator:
    sizes = GenerationSizes(
        batch=batch, cache_length=cache_length, bucket=bucket, steps=steps, candidates=candidates
    )
    device = jax.devices("cpu")[0]
    return Generator(CONFIG, compiled_here(CONFIG, sizes, device), params(), device)


def generate(
    made: Generator,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    count: int = NEW,
    settings: Settings | None = None,
    eos: Sequence[int] = (),
) -> Generated:
    return made.generate(
        prompts, max_new_tokens=count, settings=settings or Settings(), eos_token_ids=eos
    )


@pytest.mark.parametrize(
    ("cache_length", "bucket", "steps"),
    [(26, 16, 5), (40, 32, 1), (40, 16, 5)],
)
def test_a_batch_of_unequal_prompts_has_the_tokens_of_each_alone(
    cache_length: int, bucket: int, steps: int
) -> None:
    found = generate(generator(3, cache_length, bucket, steps))
    assert found.token_ids == [expected(tuple(prompt)) for prompt in PROMPTS]
    assert found.finish == ["length"] * 3
    assert found.decoded_tokens == 3 * (NEW - 1)


def test_fewer_prompts_than_the_executables_have_room_for() -> None:
    found = generate(generator(3, 40, 16, 5), PROMPTS[:1])
    assert found.token_ids == [expected(tuple(PROMPTS[0]))]


def test_a_prompt_fed_token_by_token_through_the_loop() -> None:
    """Its first token alone is prefilled; what is behind it in the cache is then the same."""
    prompt = PROMPTS[0]
    _, decode = stepped()
    cache_, out = init_cache(CONFIG, batch=1, cache_length=32), {}
    for position, token_id in enumerate(prompt):
        one = [jnp.asarray([value], jnp.int32) for value in (token_id, position)]
        out = decode(params(), cache_, *one)
        cache_ = out["cache"]
    first = int(np.argmax(out["logits"][0]))
    state = {
        **first_state(Settings(), (), batch=1),
        "token_ids": np.asarray([first], np.int32),
        "positions": np.asarray([len(prompt)], np.int32),
    }
    loop = jax.jit(decode_loop(CONFIG, steps=NEW - 1))
    tokens = loop(params(), cache_, state)["tokens"]
    assert [first, *tokens[0].tolist()] == expected(tuple(prompt))


def test_a_sequence_ends_with_its_own_token() -> None:
    """The token at place 4 of the first prompt ends it; the others go on."""
    whole = [expected(tuple(prompt)) for prompt in PROMPTS]
    eos = whole[0][4]
    ends = [tokens.index(eos) + 1 if eos in tokens else NEW for tokens in whole]
    assert ends[0] <= 5 and max(ends) == NEW
    found = generate(generator(3, 40, 16, 5), eos=(95, eos))
    assert found.token_ids == [tokens[:end] for tokens, end in zip(whole, ends, strict=True)]
    assert found.finish == ["eos" if end < NEW else "length" for end in ends]


def test_a_first_token_that_ends_the_sequence() -> None:
    eos = expected(tuple(PROMPTS[1]))[0]
    found = generate(generator(3, 40, 16, 5), PROMPTS[1:2], eos=(eos,))
    assert (found.token_ids, found.finish, found.decoded_tokens) == ([[eos]], ["eos"], 0)
    assert found.tokens_per_second is None


def test_a_sequence_that_has_ended_writes_nothing() -> None:
    """What lies in its slots stays as it was, and it yields the marker."""
    prompt, loop = jax.jit(prompt_step(CONFIG)), jax.jit(decode_loop(CONFIG, steps=3))
    eos = expected(tuple(PROMPTS[1]))[0]
    lengths = np.asarray([1, 0], np.int32)
    ids = np.asarray([[*PROMPTS[1], 0], [5, 5]], np.int32)
    empty = init_cache(CONFIG, batch=2, cache_length=8)
    before = prompt(params(), empty, first_state(Settings(), (eos,), batch=2), ids, lengths)
    after = loop(params(), before["cache"], before["state"])
    assert before["tokens"].tolist() == [[eos], [ENDED]]
    assert after["tokens"].tolist() == [[ENDED] * 3] * 2
    for one, other in zip(
        jax.tree.leaves(before["cache"]), jax.tree.leaves(after["cache"]), strict=True
    ):
        assert (one == other).all()
        assert not (one[0, :, 0] == 0).all() and (one[1] == 0).all()


@pytest.mark.parametrize(
    ("length", "count", "finish"), [(16, 1, "cache"), (15, 2, "cache"), (1, 11, "length")]
)
def test_a_full_cache_ends_a_sequence(length: int, count: int, finish: str) -> None:
    """A prompt that fills the cache still has the one token behind it, which is not written."""
    prompt = PROMPTS[2][:length]
    found = generate(generator(1, 16, 16, 4), [prompt])
    assert found.token_ids == [expected(tuple(prompt))[:count]]
    assert found.finish == [finish]


def test_a_prompt_that_fills_the_cache_and_one_token_asked_for() -> None:
    found = generate(generator(1, 16, 16, 4), [PROMPTS[2]], count=1)
    assert found.token_ids == [expected(tuple(PROMPTS[2]))[:1]]
    assert found.finish == ["length"]


def test_chunks_are_told_in_order_and_while_they_come() -> None:
    told: list[tuple[int, list[int]]] = []
    made = generator(3, 40, 16, 5)
    found = made.generate(
        PROMPTS,
        max_new_tokens=NEW,
        settings=Settings(),
        on_tokens=lambda index, token_ids: told.append((index, token_ids)),
    )
    assert [len(token_ids) for index, token_ids in told if index == 1] == [1, 5, 5]
    for index, token_ids in enumerate(found.token_ids):
        assert [each for i, new in told if i == index for each in new] == token_ids


@pytest.mark.parametrize("changes", [{}, {"top_k": 20, "top_p": 0.9, "temperature": 0.8}])
def test_a_drawn_sequence_is_the_same_whatever_else_is_there(changes: dict[str, Any]) -> None:
    settings = Settings(greedy=False, seed=11, **changes)
    candidates = settings.candidates(CONFIG.vocab_size)
    whole = generate(generator(3, 40, 16, 5, candidates), settings=settings).token_ids
    if changes:
        alone = generate(generator(1, 64, 16, 3, candidates), PROMPTS[:1], settings=settings)
        assert whole[:1] == alone.token_ids
    again = generate(generator(3, 40, 16, 5, candidates), settings=settings).token_ids
    assert again == whole
    assert whole != [expected(tuple(prompt)) for prompt in PROMPTS]
    other = Settings(greedy=False, seed=12, **changes)
    assert generate(generator(3, 40, 16, 5, candidates), settings=other).token_ids != whole


@pytest.mark.parametrize(
    ("prompts", "count", "message"),
    [
        ([], 1, "no prompt"),
        ([[]], 1, "prompt 1 has no tokens"),
        ([[1], [2, 97]], 1, "prompt 2: token 97 at place 1 .* vocabulary of 97"),
        ([[-1]], 1, "token -1"),
        ([[1]], 0, "max-new-tokens 0: expected 1 or more"),
        ([[1] * 17], 1, "prompt 1 has 17 tokens, 1 more than the cache's 16 slots"),
        ([[1], [2]], 1, "2 prompts; the executables are for 1"),
    ],
)
def test_bad_input(prompts: list[list[int]], count: int, message: str) -> None:
    with pytest.raises(XlapipeError, match=message):
        generate(generator(1, 16, 16, 4), prompts, count)


def test_a_prompt_beyond_the_bucket() -> None:
    with pytest.raises(XlapipeError, match="a prompt of 17 tokens; the executables are for 16"):
        generate(generator(3, 40, 16, 5), [[1] * 17])


def test_settings_that_the_executables_do_not_draw_by() -> None:
    with pytest.raises(XlapipeError, match=r"draw from the likeliest token \(greedy\).* the whole"):
        generate(generator(1, 16, 16, 4), [[1]], settings=Settings(greedy=False))


def test_too_many_tokens_that_end_a_sequence() -> None:
    assert first_state(Settings(), range(MAX_EOS), batch=1)["eos"].tolist() == list(range(MAX_EOS))
    with pytest.raises(XlapipeError, match="9 tokens end a sequence; at most 8"):
        first_state(Settings(), range(MAX_EOS + 1), batch=1)


@pytest.mark.parametrize(
    ("length", "cache_length", "bucket"),
    [(1, 128, 16), (16, 128, 16), (17, 128, 32), (100, 120, 120), (5, 8, 8), (1, 1, 1)],
)
def test_buckets(length: int, cache_length: int, bucket: int) -> None:
    assert bucket_of(length, cache_length) == bucket


@pytest.mark.parametrize(
    ("longest", "count", "slots"), [(1, 1, 128), (100, 29, 128), (100, 30, 256)]
)
def test_caches_have_room_for_all_but_the_last_token(longest: int, count: int, slots: int) -> None:
    assert cache_length_for(longest, count) == slots
