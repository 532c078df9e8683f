"""Parameters and optimiser state are updated where they are: no second copy of the model."""

import jax
import jax.numpy as jnp
import pytest
from train import Config, init, train_step

from xlapipe.expect import Donated, GemmCount, NoCopyAbove

BATCH = 64
CONFIG = Config()


@pytest.fixture(scope="module")
def model():
    return init(CONFIG)


@pytest.fixture
def plan(xlapipe_plan, model):
    graphdef, params, optimizer = model
    x = jax.ShapeDtypeStruct((BATCH, CONFIG.width), jnp.float32)
    labels = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    return xlapipe_plan(
        train_step(CONFIG, graphdef),
        params,
        optimizer,
        x,
        labels,
        donate=("params", "optimizer"),
        gemm="cublas",
        name="train",
    )


def test_state_is_updated_in_place(plan):
    assert plan.donated("params")
    assert plan.donated("optimizer")
    assert all(row.holds for row in plan.donations)


def test_what_is_computed(plan):
    # Forward: up and down of two blocks, and the head; backward: two each, but for the input's.
    assert plan.check(
        Donated("optimizer['m']"),
        NoCopyAbove(CONFIG.width * CONFIG.hidden * 4 - 1),
        GemmCount(14, ("cublas", "cublaslt")),
    )


def test_memory_besides_parameters_and_state(plan, model):
    _, params, _ = model
    one_model = sum(leaf.size * 4 for leaf in jax.tree.leaves(params))
    # Gradients take one more model; cuBLASLt's workspace is 32 MiB at most.
    assert plan.temp_bytes < 2 * one_model + 32 * 2**20
