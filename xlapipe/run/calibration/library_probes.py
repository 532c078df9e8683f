"""Probes of products, convolutions and attention, of libraries or of XLA."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.run.calibration.timed_program import (
    BF16,
    F16,
    F32,
    Arg,
    Drawn,
    Rng,
    float_type,
    gradient_of_squares,
    one_of,
    size,
)

# Elements of the largest array, and multiply-adds, as powers of two.
_MOST, _MOST_OPERATIONS = 24.0, 36.0
_LAYOUTS = ("bmk,bkn", "bmk,bnk", "bkm,bkn", "mbk,kbn")


def products(rng: Rng) -> Drawn:
    """Products of one or many matrices in any layout, with operations of models; gradients."""
    dtype = one_of(rng, (F32, F32, BF16, BF16, BF16, F16, jnp.complex64))
    batch = 1 if rng.random() < 0.5 else size(rng, 1, 11)
    m, k, n = (size(rng, 2, 13) for _ in range(3))
    shape = one_of(rng, ("any", "any", "row", "few terms", "tall"))
    if shape == "row":
        batch, m = 1, int(rng.integers(1, 9))
    elif shape == "few terms":
        k = int(rng.integers(2, 17))
    elif shape == "tall":
        batch, m, k, n = 1, size(rng, 3, 7), size(rng, 15, 18), size(rng, 3, 7)
    while batch * max(m * k, k * n, m * n) > 2**_MOST or batch * m * k * n > 2**_MOST_OPERATIONS:
        batch, m, k, n = (max(1, (3 * side) // 4) for side in (batch, m, k, n))
    layout, after = one_of(rng, _LAYOUTS), one_of(rng, ("", "", "gelu", "softmax", "residual"))
    exact = "highest" if dtype == F32 and rng.random() < 0.2 else None

    def product(a: Any, b: Any, c: Any) -> Any:
        y = jnp.einsum(f"{layout}->bmn", a, b, precision=exact)
        if dtype == jnp.complex64:
            return y
        if after == "softmax":
            return jax.nn.softmax(y.astype(F32) * 0.1, -1).astype(dtype)
        return jax.nn.gelu(y + c[0, 0]) if after == "gelu" else y + c if after else y

    dims = {"b": batch, "m": m, "k": k, "n": n}
    left, right = (tuple(dims[letter] for letter in part) for part in layout.split(","))
    backward = dtype != jnp.complex64 and rng.random() < 0.25
    return (
        gradient_of_squares(product, (0, 1)) if backward else product,
        Arg(left, dtype),
        Arg(right, dtype, scale=k**-0.5),
        Arg((batch, m, n) if after == "residual" else (1, 1, n), dtype),
    )


def quantised(rng: Rng) -> Drawn:
    """Products of numbers of 8 bits, with a scale for each column."""
    rows, terms, columns = (size(rng, 4, 12) // 16 * 16 for _ in range(3))
    dtype, sums = one_of(rng, ((jnp.int8, jnp.int32), (jnp.float8_e4m3fn, F32)))

    def fn(x: Any, weights: Any, scales: Any) -> Any:
        y = lax.dot_general(x, weights, (((1,), (0,)), ((), ())), preferred_element_type=sums)
        return (y.astype(F32) * scales).astype(BF16)

    arrays = (Arg((rows, terms), dtype, below=127), Arg((terms, columns), dtype, below=127))
    return fn, *arrays, Arg((columns,))


def convolutions(rng: Rng) -> Drawn:
    """Over one to three axes; in groups, strided, dilated or transposed; with bias and gradient."""
    axes, dtype = one_of(rng, (1, 2, 2, 2, 3)), float_type(rng)
    side = size(rng, *{1: (6, 13), 2: (3, 8), 3: (3, 6)}[axes])
    inputs, outputs = (
        one_of(rng, (1, 3, 4)) if rng.random() < 0.15 else size(rng, 3, 9.5) for _ in range(2)
    )
    way = one_of(rng, ("plain", "plain", "plain", "depthwise", "groups", "dilated", "transposed"))
    groups = {"depthwise": inputs, "groups": one_of(rng, (2, 4, 8))}.get(way, 1)
    inputs, outputs = (-(-channels // groups) * groups for channels in (inputs, outputs))
    window, stride = one_of(rng, (1, 3, 3, 5, 7, *(15, 31)[: axes == 1])), one_of(rng, (1, 1, 2))
    one = axes * np.log2(side) + np.log2(max(inputs, outputs))
    operations = one + np.log2(window**axes * min(inputs, outputs) / groups)
    most = min(rng.uniform(14, _MOST) - one, _MOST_OPERATIONS - operations)
    batch = size(rng, 0, max(0.0, min(8.0, most)))
    letters = "DHW"[-axes:]
    layout = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    dilation, strides = (2,) * axes if way == "dilated" else None, (stride,) * axes
    biased, backward = rng.random() < 0.3, rng.random() < 0.5

    def convolved(x: Any, w: Any, b: Any) -> Any:
        if way == "transposed":
            y = lax.conv_transpose(x, w, strides, "SAME", dimension_numbers=layout)
        else:
            y = lax.conv_general_dilated(
                x, w, strides, "SAME", None, dilation, layout, feature_group_count=groups
            )
        return jax.nn.relu(y + b) if biased else y

    return (
        gradient_of_squares(convolved, (0, 1)) if backward else convolved,
        Arg((batch, *(side,) * axes, inputs), dtype),
        Arg((*(window,) * axes, inputs // groups, outputs), dtype, scale=0.05),
        Arg((outputs,), dtype),
    )


def attention(rng: Rng) -> Drawn:
    """cuDNN's fused attention, and its gradient."""
    batch, heads, width = size(rng, 0, 4), size(rng, 2, 4), one_of(rng, (64, 128))
    length = size(rng, 8, 12) // 64 * 64
    attend = partial(
        jax.nn.dot_product_attention, implementation="cudnn", is_causal=rng.random() < 0.5
    )
    q = Arg((batch, length, heads, width), BF16)
    return gradient_of_squares(attend, (0, 1, 2)) if rng.random() < 0.5 else attend, q, q, q
