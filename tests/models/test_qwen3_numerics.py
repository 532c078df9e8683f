"""Qwen3 compared with an independent float64 NumPy reference.

The reference has no cache, no batch and no padding: it computes one whole sequence.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from jaxtyping import TypeCheckError

from models.qwen3.argument_bytes import ReferenceSizes
from models.qwen3.config import Qwen3Config
from models.qwen3.modules.cache import init_cache, write_positions
from models.qwen3.modules.norm import rms_norm
from models.qwen3.reference import WEIGHTS, reference_args, reference_step
from models.qwen3.steps import abstract_model, decode_step, prefill_step

pytestmark = pytest.mark.jax

F64: TypeAlias = npt.NDArray[np.float64]
Tree: TypeAlias = dict[Any, Any]

TIED = Qwen3Config(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    # Large enough to change results if left out, and angles that differ within a few positions.
    rms_norm_eps=1e-2,
    rope_theta=100.0,
    dtype="float32",
)
UNTIED = replace(TIED, tie_word_embeddings=False, num_key_value_heads=1, num_hidden_layers=1)
SLOTS = 24
BUCKET = 16
PROMPTS = ([3, 1, 4, 1, 5, 9, 2], [6], [96, 0, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3])
UNTOUCHED = 7.0


# --- the reference -------------------------------------------------------------------------


def np_norm(x: F64, scale: F64, eps: float) -> F64:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale)


def np_rotate(x: F64, angles: F64) -> F64:
    """x [T, heads, H] rotated by angles [T, H / 2], as complex numbers."""
    half = x.shape[-1] // 2
    rotated = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None, :]
    return np.concatenate([rotated.real, rotated.imag], -1)


def np_mlp(x: F64, weights: Tree) -> F64:
    gate, up = np.split(x @ weights["gate_up_proj"]["weight"].T, 2, -1)
    return np.asarray((gate / (1 + np.exp(-gate)) * up) @ weights["down_proj"]["weight"].T)


def np_attention(x: F64, weights: Tree, config: Qwen3Config, angles: F64) -> tuple[F64, F64, F64]:
    """Causal attention head by head. Returns the output, and keys and values [T, K, H]."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    qkv = (x @ weights["qkv_proj"]["weight"].T).reshape(len(x), -1, config.head_dim)
    eps = config.rms_norm_eps
    q = np_rotate(np_norm(qkv[:, :heads], weights["q_norm"]["scale"], eps), angles)
    k = qkv[:, heads : heads + kv_heads]
    k = np_rotate(np_norm(k, weights["k_norm"]["scale"], eps), angles)
    v = qkv[:, heads + kv_heads :]
    out = np.zeros_like(q)
    for head in range(heads):
        shared = head * kv_heads // heads
        for t in range(len(x)):
            scores = k[: t + 1, shared] @ q[t, head] / math.sqrt(config.head_dim)
            exponentials = np.exp(scores - scores.max())
            out[t, head] = exponentials / exponentials.sum() @ v[: t + 1, shared]
    return out.reshape(len(x), -1) @ weights["o_proj"]["weight"].T, k, v


def np_model(
    params: Tree, config: Qwen3Config, ids: Sequence[int]
) -> tuple[F64, list[tuple[F64, F64]]]:
    """Logits of every position [T, V], and each layer's keys and values."""
    eps = config.rms_norm_eps
    frequencies = [config.rope_theta ** (-2 * i / config.head_dim) for i in range(8)]
    angles = np.outer(np.arange(len(ids)), frequencies)
    x = params["embed"]["weight"][list(ids)]
    keys_and_values = []
    for index in range(config.num_hidden_layers):
        layer = params["layers"][index]
        normed = np_norm(x, layer["input_norm"]["scale"], eps)
        attended, k, v = np_attention(normed, layer["attention"], config, angles)
        keys_and_values.append((k, v))
        x = x + attended
        x = x + np_mlp(np_norm(x, layer["post_attention_norm"]["scale"], eps), layer["mlp"])
    head = params["embed" if config.tie_word_embeddings else "lm_head"]["weight"]
    return np_norm(x, params["final_norm"]["scale"], eps) @ head.T, keys_and_values


# --- prefill and decode --------------------------------------------------------------------


def random_like(struct: jax.ShapeDtypeStruct, rng: np.random.Generator) -> jax.Array:
    """Weights for which every part matters: matrices of gain about 1, scales far from 1."""
    if len(struct.shape) == 1:
        values = rng.uniform(0.5, 1.5, struct.shape)
    else:
        values = rng.normal(size=struct.shape) / math.sqrt(struct.shape[-1])
    return jnp.asarray(values, struct.dtype)


@cache
def params_of(config: Qwen3Config) -> Tree:
    rng = np.random.default_rng(0)
    params: Tree = jax.tree.map(lambda s: random_like(s, rng), abstract_model(config)[1])
    return params


@cache
def exact(config: Qwen3Config) -> Tree:
    """The same weights in float64."""
    tree: Tree = jax.tree.map(lambda x: np.asarray(x, np.float64), params_of(config))
    return tree


@cache
def jitted(config: Qwen3Config) -> tuple[Any, Any]:
    """Prefill and decode, with the cache donated."""
    return (
        jax.jit(prefill_step(config), donate_argnums=1),
        jax.jit(decode_step(config), donate_argnums=1),
    )


def filled_cache(config: Qwen3Config, batch: int) -> Any:
    """A cache with the value UNTOUCHED in every slot."""
    zeros = init_cache(config, batch=batch, cache_length=SLOTS)
    return jax.tree.map(lambda x: jnp.full_like(x, UNTOUCHED), zeros)


def prefilled(
    config: Qwen3Config, prompts: Sequence[Sequence[int]], *, bucket: int = BUCKET, pad: int = 0
) -> Tree:
    ids = [[*prompt, *[pad] * (bucket - len(prompt))] for prompt in prompts]
    lengths = jnp.array([len(prompt) for prompt in prompts])
    cache_ = filled_cache(config, len(prompts))
    out: Tree = jitted(config)[0](params_of(config), cache_, jnp.array(ids), lengths)
    return out


def assert_close(actual: Any, expected: F64, *, relative: float = 2e-5) -> None:
    """Asserts that errors are at most `relative` times the largest expected magnitude."""
    actual = np.asarray(actual, np.float64)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= relative * np.abs(expected).max()


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_prefill_returns_the_logits_of_each_prompts_last_token(config: Qwen3Config) -> None:
    logits = prefilled(config, PROMPTS)["logits"]
    expected = [np_model(exact(config), config, prompt)[0][-1] for prompt in PROMPTS]
    assert_close(logits, np.stack(expected))


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_decode_continues_prompts_of_unequal_length(config: Qwen3Config) -> None:
    out = prefilled(config, PROMPTS)
    sequences = [list(prompt) for prompt in PROMPTS]
    for _ in range(SLOTS - BUCKET):
        tokens = [(3 * sequence[-1] + 5) % config.vocab_size for sequence in sequences]
        positions = [len(sequence) for sequence in sequences]
        out = jitted(config)[1](
            params_of(config), out["cache"], jnp.array(tokens), jnp.array(positions)
        )
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        expected = [np_model(exact(config), config, sequence)[0][-1] for sequence in sequences]
        assert_close(out["logits"], np.stack(expected))
    assert max(map(len, sequences)) == SLOTS  # one of them fills the cache


def test_prefill_writes_only_the_prompts_keys_and_values() -> None:
    cache_ = prefilled(TIED, PROMPTS)["cache"]
    for row, prompt in enumerate(PROMPTS):
        _, keys_and_values = np_model(exact(TIED), TIED, prompt)
        for layer, (k, v) in zip(cache_, keys_and_values, strict=True):
            for slots, expected in ((layer["k"][row], k), (layer["v"][row], v)):
                assert_close(slots[:, : len(prompt)], expected.swapaxes(0, 1))
                assert (slots[:, len(prompt) :] == UNTOUCHED).all()


def test_decode_writes_one_slot_of_each_sequence() -> None:
    before = filled_cache(TIED, 3)
    # The last sequence has ended: its position is past the cache.
    positions = [5, 0, SLOTS]
    out = jitted(TIED)[1](
        params_of(TIED), filled_cache(TIED, 3), jnp.array([1, 2, 3]), jnp.array(positions)
    )
    expected = np.zeros((3, SLOTS), bool)
    expected[[0, 1], positions[:2]] = True
    for new, old in zip(jax.tree.leaves(out["cache"]), jax.tree.leaves(before), strict=True):
        changed = np.asarray(new != old)  # [B, K, S, H]
        assert (changed.all(axis=(1, 3)) == expected).all()
        assert (changed.any(axis=(1, 3)) == expected).all()


def test_negative_positions_write_nothing() -> None:
    cache_ = jnp.zeros((2, 3, 4, 2))
    written = write_positions(cache_, jnp.ones((2, 2, 3, 2)), jnp.array([[-1, 1], [4, -4]]))
    expected = np.zeros((2, 3, 4, 2))
    expected[0, :, 1] = 1
    assert (np.asarray(written) == expected).all()


@pytest.mark.slow
def test_padding_and_bucket_do_not_change_results() -> None:
    prompt = PROMPTS[0]
    unpadded = prefilled(TIED, [prompt], bucket=len(prompt))
    padded = prefilled(TIED, [prompt], pad=50)
    assert_close(padded["logits"], np.asarray(unpadded["logits"], np.float64))
    for leaf, expected in zip(
        jax.tree.leaves(padded["cache"]), jax.tree.leaves(unpadded["cache"]), strict=True
    ):
        assert_close(leaf, np.asarray(expected, np.float64))


def test_a_prompt_can_fill_the_cache_but_not_exceed_it() -> None:
    ids = [(7 * i) % TIED.vocab_size for i in range(SLOTS)]
    logits = prefilled(TIED, [ids], bucket=SLOTS)["logits"]
    assert_close(logits, np_model(exact(TIED), TIED, ids)[0][-1:])
    with pytest.raises(ValueError, match=f"{SLOTS + 1} tokens exceeds the cache"):
        prefilled(TIED, [[*ids, 1]], bucket=SLOTS + 1)


def test_decode_steps_work_in_a_loop() -> None:
    steps = 5
    decode = decode_step(TIED)

    def generate(params: Any, out: Any, positions: jax.Array) -> Any:
        def body(i: jax.Array, carry: Any) -> Any:
            tokens, out = carry
            token = jnp.argmax(out["logits"], -1).astype(jnp.int32)
            out = decode(params, out["cache"], token, positions + i)
            return tokens.at[i].set(token), out

        start = jnp.zeros((steps, len(PROMPTS)), jnp.int32)
        return jax.lax.fori_loop(0, steps, body, (start, out))[0]

    lengths = jnp.array([len(prompt) for prompt in PROMPTS])
    tokens = jax.jit(generate)(params_of(TIED), prefilled(TIED, PROMPTS), lengths)
    for row, prompt in enumerate(PROMPTS):
        sequence = list(prompt)
        for _ in range(steps):
            sequence.append(int(np_model(exact(TIED), TIED, sequence)[0][-1].argmax()))
        assert np.asarray(tokens)[:, row].tolist() == sequence[len(prompt) :]


@pytest.mark.parametrize("batch", [1, 2])
def test_logits_in_bfloat16_are_float32_and_close_to_float64(batch: int) -> None:
    config = replace(TIED, dtype="bfloat16")
    prompts = PROMPTS[:batch]
    out = prefilled(config, prompts)
    assert out["logits"].dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(out["cache"])} == {jnp.dtype(jnp.bfloat16)}
    # Logits that were rounded to bfloat16 would equal their bfloat16 values.
    assert (out["logits"] != out["logits"].astype(jnp.bfloat16).astype(jnp.float32)).mean() > 0.9
    expected = [np_model(exact(config), config, prompt)[0][-1] for prompt in prompts]
    assert_close(out["logits"], np.stack(expected), relative=0.05)


# --- the step of reference dump 003 --------------------------------------------------------

STEP = ReferenceSizes(config=TIED, tokens=6, blocks=5, block_size=4, positions=40)
EPSILON = 0.03


@cache
def step_arguments() -> tuple[jax.Array, ...]:
    """p0 to p17; the slots are in several pages, and not in order."""
    rng = np.random.default_rng(1)
    data = {
        1: np.float32(EPSILON),
        4: rng.integers(0, TIED.vocab_size, STEP.tokens),
        14: np.array([0, 11, 39, 3, 3, 20]),
        17: np.array([13, 2, 19, 0, 7, 8]),
    }
    return tuple(
        jnp.asarray(data[n], s.dtype) if n in data else random_like(s, rng)
        for n, s in enumerate(reference_args(STEP, with_slots=True))
    )


def np_step() -> tuple[F64, F64]:
    """Keys and values [T, K, H] of layer 2. Attention is a constant zero, and adds nothing."""
    p = [np.asarray(x, np.float64) for x in step_arguments()]
    ids, positions = p[4].astype(int), p[14].astype(int)
    h = p[5][ids]
    for norm, gate_up, down in ((9, 8, 7), (13, 12, 11)):
        mlp = {"gate_up_proj": {"weight": p[gate_up]}, "down_proj": {"weight": p[down]}}
        h = h + np_mlp(np_norm(h, p[norm], EPSILON), mlp)
    qkv = (np_norm(h, p[3], EPSILON) @ p[2].T).reshape(STEP.tokens, -1, TIED.head_dim)
    k, v = np.split(qkv[:, TIED.num_attention_heads :], 2, axis=1)
    k = np_norm(k, p[0], EPSILON)
    half = TIED.head_dim // 2
    cos, sin = (p[15][positions][:, None, part] for part in (slice(half), slice(half, None)))
    first, second = k[..., :half], k[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], -1), v


def test_the_reference_step_returns_new_keys_and_values_and_the_cache() -> None:
    arguments = step_arguments()[:17]
    k, v, keys, values = jax.jit(reference_step(STEP))(*arguments)
    for array, expected in zip((k, v), np_step(), strict=True):
        assert_close(array, expected)
    assert (keys == arguments[16][0]).all()
    assert (values == arguments[16][1]).all()


def test_the_donated_step_writes_only_its_slots() -> None:
    arguments = step_arguments()
    k, v, pages = jax.jit(reference_step(STEP))(*arguments)
    expected = np.array(arguments[16]).reshape(2, -1, *k.shape[1:])
    for token, slot in enumerate(np.asarray(arguments[17])):
        expected[0, slot], expected[1, slot] = k[token], v[token]
    assert (np.asarray(pages).reshape(expected.shape) == expected).all()
    for array, exact_ in zip((k, v), np_step(), strict=True):
        assert_close(array, exact_)


@pytest.mark.parametrize("slot", [-1, -20, 20, 2**31 - 1])
def test_a_slot_outside_the_pages_writes_nothing(slot: int) -> None:
    arguments = list(step_arguments())
    arguments[17] = jnp.full((STEP.tokens,), slot)
    pages = jax.jit(reference_step(STEP))(*arguments)[2]
    assert (pages == arguments[16]).all()


def test_every_weight_of_the_step_changes_its_results() -> None:
    """Changing a parameter changes keys or values, except the two output projections.

    The input of these is a constant zero.
    """
    step = jax.jit(reference_step(STEP))
    arguments = step_arguments()[:17]
    original = step(*arguments)[:2]
    without_effect = {
        number
        for number in (*WEIGHTS, 1, 4, 14, 15)
        if all(
            (new == old).all()
            for new, old in zip(step(*_changed(arguments, number))[:2], original, strict=True)
        )
    }
    assert without_effect == {6, 10}


def _changed(arguments: Sequence[jax.Array], number: int) -> Iterator[jax.Array]:
    for index, argument in enumerate(arguments):
        yield argument + jnp.ones((), argument.dtype) if index == number else argument


# --- shape checks --------------------------------------------------------------------------


def test_shapes_are_checked_in_these_tests() -> None:
    with pytest.raises(TypeCheckError):
        rms_norm(jnp.ones((2, 3)), jnp.ones(4), 1e-6)
    with pytest.raises(TypeCheckError):
        jitted(TIED)[1](params_of(TIED), filled_cache(TIED, 2), jnp.zeros(2), jnp.zeros(2))
