"""Calls a Pallas kernel through Triton, or in Pallas's interpreter on machines without a GPU."""

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
      aliases: output number by argument number: the output reuses the argument's buffer.
      num_stages: pipeline stages of the loads in a loop.
      interpret: run the kernel as JAX operations, one program after another, on any backend.
    """
    # The parameters select Triton: the default backend of jax 0.10 is Mosaic GPU.
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
    """Makes writes of each of the program's threads visible to all of them."""
    if not interpret:
        plgpu.debug_barrier()
