"""Programs for two GPUs, whose predicted times are compared with measured ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from programs import F32, cross_entropy

from xlapipe.running.calibration.timed_program import Arg, TimedProgram


def programs_of_two() -> dict[str, TimedProgram]:
    """Steps over a mesh of two GPUs, by name."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("gpus",))

    def arg(shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.bfloat16, **options: Any) -> Arg:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return Arg(shape, dtype, sharding=sharding, **{"scale": 0.03, **options})

    def mlp(params: Any, x: Any) -> Any:
        for up, down in params:
            x = x + jax.nn.gelu(x @ up) @ down
        return x

    def loss(params: Any, x: Any) -> Any:
        return (mlp(params, x).astype(F32) ** 2).mean()

    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients)

    def classify(params: Any, x: Any, y: Any) -> Any:
        return cross_entropy(jax.nn.relu(x @ params[0]) @ params[1], y)

    width, hidden = 2048, 8192
    split = [(arg((width, hidden), None, "gpus"), arg((hidden, width), "gpus"))] * 3
    whole = [(arg((width, hidden)), arg((hidden, width)))] * 2
    gathered = [(arg((width, hidden), "gpus"), arg((hidden, width), "gpus"))] * 3
    return {
        "tensor_parallel_forward": TimedProgram(mlp, (split, arg((2048, width)))),
        "tensor_parallel_step": TimedProgram(step, (split, arg((2048, width)))),
        "data_parallel_step": TimedProgram(step, (whole, arg((4096, width), "gpus"))),
        "sharded_parameters_step": TimedProgram(step, (gathered, arg((8192, width), "gpus"))),
        "sharded_vocabulary": TimedProgram(
            jax.grad(classify),
            (
                (arg((1024, 4096)), arg((4096, 32000), None, "gpus")),
                arg((2048, 1024)),
                arg((2048,), dtype=jnp.int32, below=32000),
            ),
        ),
        "small_data_parallel": TimedProgram(
            step, ([(arg((256, 512)), arg((512, 256)))] * 4, arg((512, 256), "gpus"))
        ),
    }
