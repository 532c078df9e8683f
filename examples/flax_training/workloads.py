"""The training step as a workload: shapes instead of arrays."""

import jax
import jax.numpy as jnp
from flax import nnx
from train import Classifier, Config, init_optimizer, train_step

from xlapipe import Workload
from xlapipe.expect import Aliased, Donated, TempAtMost


def workload(batch: int = 4096, donate: bool = False) -> Workload:
    config = Config()
    graphdef, params = nnx.split(nnx.eval_shape(lambda: Classifier(config, rngs=nnx.Rngs(0))))
    x = jax.ShapeDtypeStruct((batch, config.width), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return Workload(
        name="classifier",
        fn=train_step(config, graphdef),
        args=(params, jax.eval_shape(init_optimizer, params), x, labels),
        donate_argnums=(0, 1) if donate else (),
        expectations=(
            Aliased("params"),
            Donated("optimizer"),
            TempAtMost(3 * batch * config.hidden * 4, because="two activations and a gradient"),
        ),
    )
