"""Calls a Pallas kernel through Mosaic GPU, with TMA, wgmma and roles of warpgroups, for Hopper.

Every block has two warpgroups that compute and a third that fetches for both.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

COMPUTING = 2
THREAD = "warpgroup"
# Registers per thread of the two kinds of warpgroups.
_COMPUTING_REGISTERS, _FETCHING_REGISTERS = 232, 40
# Bytes of a row of shared memory whose banks are swizzled.
_SWIZZLE = 128


def mosaic_call(
    body: Callable[..., None],
    outputs: tuple[Any, ...],
    *args: Any,
    grid: tuple[int, ...],
    grid_names: tuple[str, ...],
    scratch: Sequence[Any],
    name: str,
    interpret: bool,
) -> tuple[Array, ...]:
    """Runs `body(*refs of args, *refs of outputs, *scratch)` in each warpgroup of each block.

    Args:
      args: arrays, or references (`jax.new_ref`), which the kernel may write.
      grid: blocks start in row-major order.
      interpret: run the kernel on the host, with simulated shared memory and barriers.
    """
    mesh = plgpu.Mesh(
        grid=grid, grid_names=grid_names, num_threads=COMPUTING + 1, thread_name=THREAD
    )

    def kernel(*refs: Any) -> None:
        pl.run_scoped(partial(body, *refs), *scratch, collective_axes=THREAD)

    results: tuple[Array, ...] = pl.kernel(
        kernel,
        out_type=outputs,
        mesh=mesh,
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=plgpu.InterpretGPUParams() if interpret else False,
        name=name,
    )(*args)
    return results


def multiprocessors(interpret: bool) -> int:
    """Number of multiprocessors of the target GPU, attached or not; a few for the interpreter."""
    if interpret:
        return 2
    target = jax.sharding.get_abstract_mesh().abstract_device
    if target is not None:
        return int(target.num_cores)
    return int(jax.local_devices(backend="gpu")[0].core_count)


def by_role(compute: Callable[[Array], None], fetch: Callable[[], None]) -> None:
    """Runs `compute(0)` and `compute(1)` in the first two warpgroups, `fetch()` in the third."""
    number = lax.axis_index(THREAD)

    @pl.when(number < COMPUTING)
    def _compute() -> None:
        plgpu.set_max_registers(_COMPUTING_REGISTERS, action="increase")
        compute(number)

    @pl.when(number == COMPUTING)
    def _fetch() -> None:
        plgpu.set_max_registers(_FETCHING_REGISTERS, action="decrease")
        fetch()


def read(source: Any, layout: Any, *, swizzled: bool) -> Array:
    """A reference's elements, distributed over a warpgroup's registers in `layout`.

    Args:
      swizzled: the source is shared memory in an order that suits the layout.
    """
    elements: Array = plgpu.load(source, *_WHOLE, layout=layout, optimized=swizzled)
    return elements


# jax 0.10 requires an index; 0.11 warns of it, and 0.12 does not have the parameter.
_INDEX = inspect.signature(plgpu.load).parameters.get("idx")
_INDEX_REQUIRED = _INDEX is not None and _INDEX.default is inspect.Parameter.empty
_WHOLE: tuple[Any, ...] = ((),) if _INDEX_REQUIRED else ()


def swizzled(shape: tuple[int, ...], dtype: Any) -> Any:
    """Shared memory in the order that TMA writes and wgmma reads without bank conflicts."""
    columns = _SWIZZLE // jnp.dtype(dtype).itemsize
    # mypy: their base class has an abstract method, which is never called.
    tiling = plgpu.TilingTransform((8, columns))  # type: ignore[abstract]
    swizzle = plgpu.SwizzleTransform(_SWIZZLE)  # type: ignore[abstract]
    return plgpu.SMEM(shape, dtype, transforms=(tiling, swizzle))


def accumulator(rows: int, columns: int) -> Any:
    """float32 sums of wgmma, in a warpgroup's registers."""
    return plgpu.ACC((rows, columns), jnp.float32)  # type: ignore[attr-defined]
