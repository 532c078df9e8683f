"""Steps for AMD GPUs, one for each thing that differs from NVIDIA's."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlapipe import Workload

BF16 = jnp.bfloat16


def _array(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def product() -> Workload:
    args = (_array(4096, 4096), _array(4096, 8192))
    return Workload(name="product", fn=lambda a, b: jax.nn.gelu(a @ b), args=args)


def convolution() -> Workload:
    def gradient(x: Any, kernel: Any) -> Any:
        def loss(kernel: Any) -> Any:
            dims = ("NHWC", "HWIO", "NHWC")
            y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)
            return jnp.sum(jax.nn.relu(y) ** 2)

        return jax.grad(loss)(kernel)

    return Workload(
        name="convolution", fn=gradient, args=(_array(32, 56, 56, 64), _array(3, 3, 64, 128))
    )


def sums(compiler_params: Any = None) -> Workload:
    """A Pallas kernel."""

    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] + y[...]

    def step(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=_array(1024, dtype=jnp.float32),
            grid=(8,),
            in_specs=[pl.BlockSpec((128,), lambda i: i)] * 2,
            out_specs=pl.BlockSpec((128,), lambda i: i),
            compiler_params=compiler_params,
        )(x, y)

    return Workload(name="sums", fn=step, args=(_array(1024, dtype=jnp.float32),) * 2)


def mosaic() -> Workload:
    from jax.experimental.pallas import mosaic_gpu

    return sums(mosaic_gpu.CompilerParams())


def cholesky() -> Workload:
    return Workload(
        name="cholesky", fn=jnp.linalg.cholesky, args=(_array(512, 512, dtype=jnp.float32),)
    )
