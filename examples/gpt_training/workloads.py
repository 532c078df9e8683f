"""The GPT's training step as workloads: shapes instead of arrays."""

import jax
import jax.numpy as jnp
from flax import nnx
from gpt import CONTEXT, GPT, optimizer, train_step

from xlapipe import Workload
from xlapipe.expect import Aliased


def train(batch: int = 16) -> Workload:
    """The step with its model and optimizer state updated in place."""
    return _workload("gpt-train", batch, donate_argnums=(0, 1))


def undonated() -> Workload:
    """The same step where nothing is donated."""
    return _workload("gpt-undonated", 16)


def guarded() -> Workload:
    """The step without donation, and the expectations that find this."""
    expectations = (Aliased("model"), Aliased("opt_state"))
    return _workload("gpt-guarded", 16, expectations=expectations)


def _workload(name: str, batch: int, **settings: object) -> Workload:
    graphdef, model = nnx.split(nnx.eval_shape(lambda: GPT(rngs=nnx.Rngs(0))))
    tokens = jax.ShapeDtypeStruct((batch, CONTEXT + 1), jnp.int32)
    args = (model, jax.eval_shape(optimizer.init, model), tokens)
    return Workload(name=name, fn=train_step(graphdef), args=args, **settings)
