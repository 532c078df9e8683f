"""The kernels for Hopper against their twins in plain JAX, in Pallas's interpreter for GPUs.

They take 16 bits alone: operands are the same bfloat16 on both sides, and the twins' sums and
results float32, so that what may differ is the rounding of results.

`test_qwen3_hopper_kernels.py` runs these, in a process of its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.qwen3.config import Qwen3Config
from models.qwen3.kernels.hopper_attention import hopper_attention
from models.qwen3.kernels.hopper_heads import prompt_heads
from models.qwen3.kernels.hopper_products import prompt_swiglu
from models.qwen3.modules.attention import grouped_query_attention
from models.qwen3.modules.cache import write_positions
from models.qwen3.modules.norm import rms_norm
from models.qwen3.modules.rope import rotate, rotation_of
from models.qwen3.steps import abstract_model, prefill_step

CONFIG = Qwen3Config(
    vocab_size=96,
    hidden_size=128,
    intermediate_size=256,
    # Behind the last one's attention, XLA computes the last token alone.
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    dtype="bfloat16",
)
# Half of bfloat16's last place: no rounding of results comes to more.
ROUNDING = 2**-9 * 1.02


def _random(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return (scale * jax.random.normal(jax.random.key(seed), shape)).astype(jnp.bfloat16)


def _error(found: Any, expected: Any) -> float:
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def _f32(*arrays: jax.Array) -> list[jax.Array]:
    return [x.astype(jnp.float32) for x in arrays]


def test_swiglu_is_that_of_the_mlp() -> None:
    """Two row tiles by two pairs of columns: programs take several tiles, more than are in flight.

    A gate far below zero is nothing, not NaN.
    """
    x, weight = _random(0, 256, 256), _random(1, 512, 256, scale=0.1)
    x = x.at[3].set(x[3] * 1000)
    found = prompt_swiglu(x, weight, programs=2, interpret=True)
    gate, up = jnp.split(jnp.dot(*_f32(x, weight.T), precision="highest"), 2, axis=1)
    assert float(gate.min()) < -100
    assert _error(found, jax.nn.silu(gate) * up) < ROUNDING
    assert _error(found[:3], (jax.nn.silu(gate) * up)[:3]) < ROUNDING


def test_heads_are_normed_rotated_and_written() -> None:
    """A whole sequence, and one with padding from within a warpgroup's rows on."""
    batch, length, slots, tokens = 2, 128, 256, 70
    x, weight = _random(0, batch, length, 128), _random(1, 8 * 128, 128, scale=0.1)
    scales = [_random(seed, 128) for seed in (2, 3)]
    caches = [_random(seed, batch, 2, slots, 128) for seed in (4, 5)]
    lengths = jnp.array([length, tokens], jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    rotation = rotation_of(positions, head_dim=128, theta=CONFIG.rope_theta)
    angles = jnp.concatenate([table[0] for table in rotation], axis=-1)
    found = prompt_heads(
        *(x, weight, *scales, angles, lengths, *caches), eps=1e-6, programs=2, interpret=True
    )
    heads = jnp.dot(*_f32(x, weight.T), precision="highest").reshape(batch, length, 8, 128)
    q_scale, k_scale, k_cache, v_cache = _f32(*scales, *caches)
    q = rotate(rms_norm(heads[:, :, :4], q_scale, 1e-6), rotation)
    k = rotate(rms_norm(heads[:, :, 4:6], k_scale, 1e-6), rotation)
    # Padding goes beyond the cache, as in `prefill_step`.
    written = jnp.where(positions < lengths[:, None], positions, positions + slots)
    expected = (
        q,
        write_positions(k_cache, k, written),
        write_positions(v_cache, heads[:, :, 6:], written),
    )
    assert max(_error(*each) for each in zip(found, expected, strict=True)) < ROUNDING
    for new, old in zip(found[1:], caches, strict=True):
        assert (new[1, :, tokens:] == old[1, :, tokens:]).all()
        assert (new[:, :, length:] == old[:, :, length:]).all()


def test_attention_is_that_of_the_model() -> None:
    """More blocks of keys than are in flight, shared by two heads, and slots beyond."""
    length = 384
    q = _random(0, 1, length, 2, 128)
    k, v = (_random(seed, 1, 1, 512, 128) for seed in (1, 2))
    found = hopper_attention(q, k, v, interpret=True)
    positions = jnp.broadcast_to(jnp.arange(length), (1, length))
    expected = grouped_query_attention(*_f32(q, k, v), positions)
    # Weights are rounded before they are summed with values, as everywhere.
    assert _error(found, expected) < 1.5 * ROUNDING


def test_a_prompt_is_that_of_the_plain_model() -> None:
    leaves, structure = jax.tree.flatten(abstract_model(CONFIG)[1])
    made = [
        _random(n, *leaf.shape, scale=0.1 if leaf.ndim > 1 else 1) for n, leaf in enumerate(leaves)
    ]
    params = jax.tree.unflatten(structure, made)
    layer_cache = {name: _random(seed, 1, 2, 128, 128) for seed, name in enumerate("kv", 50)}
    cache = [layer_cache] * CONFIG.num_hidden_layers
    ids = jax.random.randint(jax.random.key(5), (1, 128), 0, CONFIG.vocab_size, jnp.int32)
    arguments = (params, cache, ids, jnp.array([100], jnp.int32))
    expected, found = (
        jax.jit(prefill_step(CONFIG, implementation=each))(*arguments)
        for each in ("xla", "interpret-hopper")
    )
    assert _error(found["logits"], expected["logits"]) < 0.02
    for name in "kv":
        for of_layer, expected_there in zip(found["cache"], expected["cache"], strict=True):
            assert _error(of_layer[name], expected_there[name]) < 0.02
