"""Steps with Pallas kernels that jax or XLA refuses."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

A = jax.ShapeDtypeStruct((512, 512), jnp.float32)


def scale(a: Any, out: Any) -> None:
    out[...] = a[...] * 2


def product(a: Any, b: Any, out: Any) -> None:
    out[...] = jnp.dot(a[...], b[...])


def sorting(a: Any, out: Any) -> None:
    out[...] = jnp.sort(a[...])


def _rows(x: jax.Array, kernel: Any, name: str) -> jax.Array:
    block = pl.BlockSpec((32, x.shape[1]), lambda i: (i, 0))
    shape, grid = jax.ShapeDtypeStruct(x.shape, x.dtype), (x.shape[0] // 32,)
    call = pl.pallas_call(
        kernel, out_shape=shape, grid=grid, in_specs=[block], out_specs=block, name=name
    )
    return call(x)


def _product(x: jax.Array, y: jax.Array, *, block: int) -> jax.Array:
    rows, columns, inner = x.shape[0], y.shape[1], x.shape[1]
    return pl.pallas_call(
        product,
        out_shape=jax.ShapeDtypeStruct((rows, columns), x.dtype),
        grid=(rows // block, columns // block),
        in_specs=[
            pl.BlockSpec((block, inner), lambda i, j: (i, 0)),
            pl.BlockSpec((inner, block), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j: (i, j)),
        name=f"product_{block}",
    )(x, y)


def whole_k() -> Workload:
    """One of three kernels keeps too much in shared memory."""

    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        x = _product(_rows(x, scale, "scale_rows"), y, block=32)
        return _product(x, y, block=128)

    return Workload(name="whole-k", fn=step, args=(A, A))


def in_a_loop_on_two_devices() -> Workload:
    """The same kernel in a scan, on each of two devices."""

    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        def local(x: jax.Array, y: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda h, _: (_product(h, y, block=128), None), x, length=3)[0]

        mapped = partial(jax.shard_map, in_specs=(P("d"), P()), out_specs=P("d"), check_vma=False)
        return mapped(local)(x, y)

    args = (jax.ShapeDtypeStruct((1024, 512), jnp.float32), A)
    return Workload(name="loop", fn=step, args=args, mesh={"d": 2}, in_specs=(P("d"), P()))


def unknown_primitive() -> Workload:
    """jax cannot lower what the kernel does."""
    return Workload(name="sorted", fn=lambda x: _rows(x, sorting, "sort_rows"), args=(A,))


def three_warps() -> Workload:
    """LLVM ends the process that compiles this kernel."""

    def step(x: jax.Array) -> jax.Array:
        params = pallas_triton.CompilerParams(num_warps=3)
        odd_warps = pl.pallas_call(scale, out_shape=A, compiler_params=params, name="odd_warps")
        return odd_warps(x)

    return Workload(name="three-warps", fn=step, args=(A,))
