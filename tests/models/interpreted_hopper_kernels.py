"""The kernels for Hopper compared with plain JAX, in Pallas's interpreter for GPUs.

The kernels support only 16-bit dtypes. Both sides have the same bfloat16 operands, and plain JAX
has float32 sums and results, so that only the rounding of results may differ.

`test_qwen3_hopper_kernels.py` runs these tests in a separate process.
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
    # After the last layer's attention, XLA computes only the last token.
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    dtype="bfloat16",
)
# Half a unit in the last place of bfloat16, the largest rounding error of a result.
ROUNDING = 2**-9 * 1.02


def _random(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return (scale * jax.random.normal(jax.random.key(seed), shape)).astype(jnp.bfloat16)


def _error(actual: Any, expected: Any) -> float:
    actual, expected = (np.asarray(x, np.float64) for x in (actual, expected))
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def _f32(*arrays: jax.Array) -> list[jax.Array]:
    return [x.astype(jnp.float32) for x in arrays]


def test_swiglu_matches_the_mlp() -> None:
    """Two row tiles by two pairs of column blocks: each program computes several tiles.

    A very negative gate gives 0, not NaN.
    """
    x, weight = _random(0, 256, 256), _random(1, 512, 256, scale=0.1)
    x = x.at[3].set(x[3] * 1000)
    activated = prompt_swiglu(x, weight, programs=2, interpret=True)
    gate, up = jnp.split(jnp.dot(*_f32(x, weight.T), precision="highest"), 2, axis=1)
    assert float(gate.min()) < -100
    assert _error(activated, jax.nn.silu(gate) * up) < ROUNDING
    assert _error(activated[:3], (jax.nn.silu(gate) * up)[:3]) < ROUNDING


def test_heads_match_norm_rope_and_the_cache_write() -> None:
    """A sequence without padding, and one whose padding starts inside a warpgroup's rows."""
    batch, length, slots, tokens = 2, 128, 256, 70
    x, weight = _random(0, batch, length, 128), _random(1, 8 * 128, 128, scale=0.1)
    scales = [_random(seed, 128) for seed in (2, 3)]
    caches = [_random(seed, batch, 2, slots, 128) for seed in (4, 5)]
    lengths = jnp.array([length, tokens], jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    rotation = rotation_of(positions, head_dim=128, theta=CONFIG.rope_theta)
    angles = jnp.concatenate([table[0] for table in rotation], axis=-1)
    results = prompt_heads(
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
    assert max(_error(*pair) for pair in zip(results, expected, strict=True)) < ROUNDING
    for new, old in zip(results[1:], caches, strict=True):
        assert (new[1, :, tokens:] == old[1, :, tokens:]).all()
        assert (new[:, :, length:] == old[:, :, length:]).all()


def test_attention_matches_the_model() -> None:
    """More chunks of keys than stages, two query heads per key head, and unused cache slots."""
    length = 384
    q = _random(0, 1, length, 2, 128)
    k, v = (_random(seed, 1, 1, 512, 128) for seed in (1, 2))
    attended = hopper_attention(q, k, v, interpret=True)
    positions = jnp.broadcast_to(jnp.arange(length), (1, length))
    expected = grouped_query_attention(*_f32(q, k, v), positions)
    # Softmax weights are rounded too, before their product with the values.
    assert _error(attended, expected) < 1.5 * ROUNDING


def test_a_prompt_matches_the_plain_model() -> None:
    leaves, structure = jax.tree.flatten(abstract_model(CONFIG)[1])
    arrays = [
        _random(n, *leaf.shape, scale=0.1 if leaf.ndim > 1 else 1) for n, leaf in enumerate(leaves)
    ]
    params = jax.tree.unflatten(structure, arrays)
    layer_cache = {name: _random(seed, 1, 2, 128, 128) for seed, name in enumerate("kv", 50)}
    cache = [layer_cache] * CONFIG.num_hidden_layers
    ids = jax.random.randint(jax.random.key(5), (1, 128), 0, CONFIG.vocab_size, jnp.int32)
    arguments = (params, cache, ids, jnp.array([100], jnp.int32))
    by_xla, by_kernels = (
        jax.jit(prefill_step(CONFIG, implementation=name))(*arguments)
        for name in ("xla", "interpret-hopper")
    )
    assert _error(by_kernels["logits"], by_xla["logits"]) < 0.02
    for name in "kv":
        for layer_cache, expected_cache in zip(by_kernels["cache"], by_xla["cache"], strict=True):
            assert _error(layer_cache[name], expected_cache[name]) < 0.02
