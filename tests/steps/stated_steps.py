"""A step with a Pallas kernel that reads one row of a table, and a loop of unknown trips."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from xlapipe import Workload

ROWS, WIDTH, TRIPS = 4096, 1024, 25
ACCESSED_BYTES = 2 * 4 * WIDTH


def pick(table: Any, row: Any) -> None:
    row[...] = table[0, :] * 2.0


def workload(stated: bool = True) -> Workload:
    estimate = pl.CostEstimate(flops=WIDTH, transcendentals=0, bytes_accessed=ACCESSED_BYTES)

    def step(table: Any, count: Any) -> Any:
        row = pl.pallas_call(
            pick,
            out_shape=jax.ShapeDtypeStruct((WIDTH,), jnp.float32),
            cost_estimate=estimate if stated else None,
            compiler_params=triton.CompilerParams(),
        )(table)
        return jax.lax.while_loop(
            lambda state: state[0] < count,
            lambda state: (state[0] + 1, jnp.sin(state[1])),
            (0, row),
        )[1]

    shapes = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    return Workload(name="pick", fn=step, args=shapes, loop_trips=TRIPS if stated else None)
