"""Times compression of ResNet-50's activations on a GPU, against the time to move the least bytes.

    PYTHONPATH=. python tests/bench/gpu/resnet_compression.py [--batch N] [--json FILE]

A row for each operation and shape: XLA's fusions of the functions in
models/compressed_resnet/compression, and the kernels in models/compressed_resnet/kernels.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from timing import driver_version

from models.compressed_resnet import sizes
from models.compressed_resnet.compression.averages import low_frequency, upsample
from models.compressed_resnet.compression.codes import Codes, dequantise, quantise
from models.compressed_resnet.compression.masks import pack_mask, unpack_mask
from models.compressed_resnet.compression.pooling import (
    max_pool_gradient,
    max_pool_with_offsets,
    pooled_shape,
)
from models.compressed_resnet.conv_norm import activate_by_fusions, channel_sums, masked
from models.compressed_resnet.kernels import (
    Affine,
    norm_relu_codes,
    norm_sums,
    quantise_residual,
    restore,
)
from xlapipe.dump.run_record import run_record

Shape = tuple[int, int, int, int]

# Height and width, channels: ResNet-50's activations at 224×224, one shape for each width.
SHAPES = ((112, 64), (56, 64), (56, 256), (28, 512), (14, 1024), (7, 2048))
BITS = 2
SAMPLES = 7
SAMPLE_SECONDS = 0.01
# What a copy on the device reaches, on an H200.
BYTES_PER_SECOND = 4.3e12


@dataclass(frozen=True)
class Case:
    """An operation on one shape; `arguments` are names of `inputs`.

    Attributes:
      in_place: the first result is written in place of the first argument.
    """

    operation: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    least_bytes: int
    in_place: bool = False


def inputs(shape: Shape) -> dict[str, Any]:
    """The arrays that the operations take."""
    keys = jax.random.split(jax.random.key(0), 2)
    x, dy = (jax.random.normal(key, shape, jnp.bfloat16) for key in keys)
    return {
        "x": x,
        "dy": dy,
        "low": low_frequency(x),
        "codes": quantise(x, BITS),
        "mask": pack_mask(x > 0),
        "sums": jnp.ones(shape[-1]),
        "pooled": x[:, ::2, ::2],
        "offsets": (jnp.abs(dy[:, ::2, ::2]) * 3).astype(jnp.int8),
    }


def activated(function: Any, *arrays: jax.Array) -> Any:
    """Batch norm and ReLU, the mask, and the codes of what is normalised."""
    z, *vectors = arrays
    return function(z, Affine(*vectors), shortcut=None, shortcut_norm=None)


def bn_reduce(dy: jax.Array, mask: jax.Array, codes: Codes) -> tuple[jax.Array, jax.Array]:
    """Gradients of shift and scale, from the gradient after ReLU."""
    wide = dy.astype(jnp.float32) * unpack_mask(mask, dy.shape, jnp.float32)
    return channel_sums(wide, wide * dequantise(codes, dy.shape, jnp.float32))


def masked_and_reduced(dy: jax.Array, mask: jax.Array, codes: Codes) -> tuple[jax.Array, Any]:
    """The masked gradient, and `bn_reduce`."""
    return masked(dy, mask), bn_reduce(dy, mask, codes)


def bn_dx(dy: jax.Array, mask: jax.Array, codes: Codes, sums: jax.Array) -> jax.Array:
    """The gradient before batch norm, from the gradient after ReLU."""
    wide = dy.astype(jnp.float32) * unpack_mask(mask, dy.shape, jnp.float32)
    normalised = dequantise(codes, dy.shape, jnp.float32)
    return (wide - sums - normalised * sums).astype(dy.dtype)


def cases(shape: Shape) -> Iterator[Case]:
    """Every operation, with the bytes of inputs and outputs."""
    size = shape[1:3]
    elements = prod(shape)
    full, codes, mask = 2 * elements, sizes.code_bytes(elements, BITS), sizes.mask_bytes(elements)
    low = sizes.low_bytes(shape)

    def residual(x: jax.Array, low: jax.Array) -> Codes:
        return quantise(x - upsample(low, size), BITS)

    def relu(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.maximum(x, 0), pack_mask(x > 0)

    def restored(codes: Codes, low: jax.Array) -> jax.Array:
        spread = upsample(low, size).astype(jnp.float32)
        return (dequantise(codes, shape, jnp.float32) + spread).astype(jnp.bfloat16)

    quantised = partial(quantise, bits=BITS)
    yield Case("negate", jnp.negative, ("x",), 2 * full)
    yield Case("quantise", quantised, ("x",), full + codes)
    yield Case("quantise residual", residual, ("x", "low"), full + low + codes)
    by_kernel = partial(quantise_residual, bits=BITS)
    yield Case("quantise residual by kernel", by_kernel, ("x", "low"), full + low + codes)
    affine = ("x", "sums", "sums", "sums", "sums")
    by_fusions = partial(activated, partial(activate_by_fusions, bits=BITS))
    yield Case("batch norm by fusions", by_fusions, affine, 2 * full + mask + codes)
    by_kernel = partial(activated, partial(norm_relu_codes, bits=BITS))
    yield Case("batch norm by kernel", by_kernel, affine, 2 * full + mask + codes, in_place=True)
    yield Case("low frequency", low_frequency, ("x",), full + low)
    yield Case("dequantise", partial(dequantise, shape=shape), ("codes",), full + codes)
    yield Case("dequantise residual", restored, ("codes", "low"), full + codes + low)
    by_kernel = partial(restore, shape=shape)
    yield Case("dequantise residual by kernel", by_kernel, ("codes", "low"), full + codes + low)
    yield Case("ReLU and its mask", relu, ("x",), 2 * full + mask)
    yield Case("masked gradient", masked, ("dy", "mask"), 2 * full + mask)
    norm = ("dy", "mask", "codes")
    yield Case("batch norm sums", bn_reduce, norm, full + mask + codes)

    def sums_by_kernel(*arrays: Any) -> Any:
        return norm_sums(*arrays, keep=False)[1]

    yield Case("batch norm sums by kernel", sums_by_kernel, norm, full + mask + codes)
    yield Case("masked, summed", masked_and_reduced, norm, 2 * full + mask + codes)
    by_kernel = partial(norm_sums, keep=True)
    yield Case("masked, summed by kernel", by_kernel, norm, 2 * full + mask + codes)
    yield Case("batch norm dx", bn_dx, (*norm, "sums"), 2 * full + mask + codes)
    if shape[1] == SHAPES[0][0]:
        pooled = prod(pooled_shape(shape))
        gradient = partial(max_pool_gradient, shape=shape)
        yield Case("max pool", max_pool_with_offsets, ("x",), full + 3 * pooled)
        yield Case("max pool dx", gradient, ("pooled", "offsets"), full + 3 * pooled)


def compiled(case: Case, shape: Shape) -> Any:
    """The executable, or the error."""
    abstract = jax.eval_shape(partial(inputs, shape))
    function = jax.jit(case.function, donate_argnums=0 if case.in_place else ())
    try:
        return function.lower(*(abstract[name] for name in case.arguments)).compile()
    except Exception as error:  # noqa: BLE001 - the other rows are still measured
        return error


def seconds_of(executable: Any, arguments: list[Any], *, in_place: bool) -> list[float]:
    """Seconds of a call in each sample, after a warm-up."""
    if in_place:
        arguments[0] = jnp.copy(arguments[0])

    def sample(calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            last = executable(*arguments)
            if in_place:
                arguments[0] = last[0]
        jax.block_until_ready(last)
        return (time.perf_counter() - started) / calls

    sample(3)
    calls = max(5, round(SAMPLE_SECONDS / sample(5)))
    return [sample(calls) for _ in range(SAMPLES)]


def row_of(case: Case, shape: Shape, executable: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """The measured figures of a case."""
    row = {
        "operation": case.operation,
        "shape": shape,
        "least_bytes": case.least_bytes,
    }
    if isinstance(executable, Exception):
        return row | {"error": str(executable)[:300]}
    arguments = [arrays[name] for name in case.arguments]
    samples = seconds_of(executable, arguments, in_place=case.in_place)
    return row | {
        "median_seconds": median(samples),
        "least_seconds": min(samples),
        "most_seconds": max(samples),
        "kernels": executable.as_text().count("fusion("),
    }


def line_of(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    name = f"{row['operation']:30} {row['shape'][1]:4} {row['shape'][3]:5}"
    if "error" in row:
        return f"{name} {row['error']}"
    seconds = row["median_seconds"]
    floor = row["least_bytes"] / BYTES_PER_SECOND
    return f"{name} {seconds * 1e6:9.1f} µs, floor {floor * 1e6:8.1f} µs, {seconds / floor:5.2f}×"


def main() -> None:
    """Compiles everything in threads, then times one case after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256, help="images; default: 256")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="operations with it in the name")
    options = parser.parse_args()
    started = time.perf_counter()
    rows = []
    shapes = [(options.batch, side, side, width) for side, width in SHAPES]
    pairs = [(case, shape) for shape in shapes for case in cases(shape)]
    pairs = [pair for pair in pairs if options.only in pair[0].operation]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        executables = list(pool.map(lambda pair: compiled(*pair), pairs))
    compile_seconds = time.perf_counter() - started
    for shape in shapes:
        arrays = jax.jit(partial(inputs, shape))()
        for (case, case_shape), executable in zip(pairs, executables, strict=True):
            if case_shape == shape:
                rows.append(row_of(case, shape, executable, arrays))
                print(line_of(rows[-1]), flush=True)
    if options.json:
        about = {
            **run_record(
                device=jax.devices()[0].device_kind,
                driver=driver_version(),
                versions={"jax": jax.__version__},
                command=["python", *sys.argv],
            ),
            "compile_seconds": round(compile_seconds, 1),
            "seconds": round(time.perf_counter() - started, 1),
        }
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
