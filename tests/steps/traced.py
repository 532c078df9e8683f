"""A workload that counts how often it is traced: a line in the file that an argument names."""

from pathlib import Path

import jax
import jax.numpy as jnp

from xlapipe import Workload


def counted(path: str) -> Workload:
    def step(x: jax.Array) -> jax.Array:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write("traced\n")
        return x @ x

    return Workload(name="counted", fn=step, args=(jax.ShapeDtypeStruct((256, 256), jnp.float32),))
