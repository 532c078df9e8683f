"""The cache is written in place, and nothing else of its size is allocated or copied."""

import jax
import jax.numpy as jnp
import pytest
from decode import decode_step, init

WIDTH, LENGTH = 256, 1024
CACHE_LEAF_BYTES = LENGTH * WIDTH * 2
WEIGHT_BYTES = 4 * WIDTH * WIDTH * 2


@pytest.fixture
def plan(xlapipe_plan):
    weights, cache = jax.eval_shape(lambda: init(WIDTH, LENGTH))
    token = jax.ShapeDtypeStruct((WIDTH,), jnp.bfloat16)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    return xlapipe_plan(
        decode_step(WIDTH**-0.5), weights, cache, token, position, donate="cache", name="decode"
    )


def test_cache_is_written_in_place(plan):
    assert plan.donated("cache")


def test_memory(plan):
    assert plan.temp_bytes < CACHE_LEAF_BYTES
    assert plan.total_allocation_bytes < WEIGHT_BYTES + 3 * CACHE_LEAF_BYTES


def test_plan_is_the_golden(plan):
    assert plan.matches_golden()


@pytest.mark.xlapipe_device
def test_on_the_gpu():
    weights, cache = init(WIDTH, LENGTH)
    step = jax.jit(decode_step(WIDTH**-0.5), donate_argnums=1)
    out, updated = step(weights, cache, jnp.ones((WIDTH,), jnp.bfloat16), 0)
    assert out.shape == (WIDTH,)
    assert updated["key"].shape == (LENGTH, WIDTH)
