"""Parameters and optimiser state are updated in place: there is no second copy of the model."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from train import Classifier, Config, init_optimizer, train_step

from xlapipe.expect import GemmCount, NoCopyAbove

BATCH = 64
CONFIG = Config()


@pytest.fixture(scope="module")
def model():
    """Shapes and dtypes of the model, without arrays."""
    return nnx.split(nnx.eval_shape(lambda: Classifier(CONFIG, rngs=nnx.Rngs(0))))


@pytest.fixture
def plan(xlapipe_plan, model):
    graphdef, params = model
    optimizer = jax.eval_shape(init_optimizer, params)
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
    assert plan.donated("optimizer")
    # XLA computes the gradient of the head in the buffer of the head, and copies the head before.
    assert plan.donated("params", copies_up_to_bytes=CONFIG.width * CONFIG.classes * 4)


def test_matrix_products(plan):
    # Forward: up, down, head. Backward: the weights of all three, and the inputs of two.
    assert len(plan.gemms(backend="cublas")) == 8
    assert plan.check(
        GemmCount(0, ("triton",)),
        NoCopyAbove(CONFIG.width * CONFIG.hidden * 4 - 1),
    )


def test_temporary_memory(plan, model):
    _, params = model
    one_model = sum(leaf.size * 4 for leaf in jax.tree.leaves(params))
    # Gradients are as large as the model; cuBLASLt's workspace is at most 32 MiB.
    assert plan.temp_bytes < 2 * one_model + 32 * 2**20
