"""Calling a Pallas kernel through Triton, or in Pallas's interpreter where there is no GPU."""

from collections.abc import Callable, Mapping
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array


def triton_call(
    kernel: Callable[..., None],
    out_shape: Any,
    *args: Array,
    grid: tuple[int, ...],
    num_warps: int,
    name: str,
    interpret: bool,
    aliases: Mapping[int, int] | None = None,
    num_stages: int = 1,
) -> Any:
    """Runs `kernel(*refs of args, *refs of outputs)` over the grid; refs are whole arrays.

    Args:
      num_stages: of loads that a loop has in flight.
      aliases: number of an argument -> number of the output that takes its buffer over.
      interpret: run it as plain JAX operations, program after program, on any backend.
    """
    # Named by its parameters: the default of jax 0.10 is another GPU backend.
    params = None if interpret else plgpu.CompilerParams(num_warps=num_warps, num_stages=num_stages)
    return pl.pallas_call(
        kernel,
        out_shape=out_shape,
        grid=grid,
        input_output_aliases=dict(aliases or {}),
        compiler_params=params,
        interpret=interpret,
        name=name,
    )(*args)


def synchronize_threads(interpret: bool) -> None:
    """What this program's threads have written is seen by all of them."""
    if not interpret:
        plgpu.debug_barrier()
