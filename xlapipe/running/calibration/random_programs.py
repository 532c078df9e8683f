"""Random programs of a calibration: short chains of what models do, in random sizes.

Programs on a grid have the kernels of one operation. What XLA fuses in a model lies between: other
sizes than powers of two, several operands, gradients. A seed makes each program, so that its name
says what it is.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xlapipe.running.calibration.timed_program import BF16, F32, Add, Arg, TimedProgram, programs_of

# The first programs have fewer kinds of stages than those that came later.
_FIRST_PROGRAMS, _PROGRAMS = 220, 500
# Elements of an array, as powers of two, and stages of a program.
_LEAST, _MOST = 14.5, 24.5
_LEAST_OF_LATER = 9.0
_STAGES = (2, 6)
_TRIPS = 12
_Stage = Callable[[Any, list[Any]], Any]


def random_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    return programs_of((_chains,))


def _chains(add: Add) -> None:
    for seed in range(_PROGRAMS):
        _add_chain(add, seed)


@dataclass
class _Chain:
    """A program that is being made: its stages, and the shape that they have reached."""

    rng: np.random.Generator
    shape: tuple[int, ...]
    dtype: Any
    args: list[Arg]
    stages: list[_Stage]

    def array(self, shape: tuple[int, ...], **values: Any) -> int:
        """Adds an argument; returns its number."""
        self.args.append(Arg(shape, **({"dtype": self.dtype} | values)))
        return len(self.args) - 1


def _add_chain(add: Add, seed: int) -> None:
    rng = np.random.default_rng(seed)
    later = seed >= _FIRST_PROGRAMS
    dtype = BF16 if rng.random() < (0.35 if later else 0.65) else F32
    chain = _Chain(rng, _shape(rng, _LEAST_OF_LATER if later else _LEAST), dtype, [], [])
    chain.array(chain.shape)
    for _ in range(rng.integers(*_STAGES, endpoint=True)):
        kinds = [
            kind
            for kind in (_LATER_KINDS if later else _KINDS)
            if len(chain.shape) > 1 or kind in _OF_VECTORS
        ]
        kinds[rng.integers(len(kinds))](chain)
    stages, floats = tuple(chain.stages), [i for i, a in enumerate(chain.args) if a.below == 2]
    looped = later and rng.random() < 0.3 and chain.shape == chain.args[0].shape

    def once(x: Any, arrays: list[Any]) -> Any:
        for stage in stages:
            x = stage(x, arrays)
        return x

    def forward(*arrays: Any) -> Any:
        if not looped:
            return once(arrays[0], list(arrays))
        trips = jnp.arange(_TRIPS)
        return lax.scan(lambda x, _: (once(x, list(arrays)), None), arrays[0], trips)[0]

    def loss(*arrays: Any) -> Any:
        return (forward(*arrays).astype(F32) ** 2).mean()

    backward = rng.random() < 0.5
    fn = jax.grad(loss, tuple(floats)) if backward else forward
    ending = "_loop" * looped + "_gradient" * backward
    add(f"random_{seed:03}{ending}", fn, *chain.args)


def _shape(rng: np.random.Generator, least: float) -> tuple[int, ...]:
    """Two or three axes; the last one often a multiple of 64."""
    elements = 2 ** rng.uniform(least, _MOST)
    last = round(2 ** rng.uniform(4, max(4.5, min(13, np.log2(elements) - 1))))
    last = max(8, last // 64 * 64 if last > 64 and rng.random() < 0.7 else last // 8 * 8)
    rest = max(2, round(elements / last))
    if rng.random() < 0.4 and rest >= 16:
        batch = round(2 ** rng.uniform(1, min(6, np.log2(rest) - 2)))
        return batch, max(2, rest // batch), last
    return (rest // 8 * 8 if rest > 64 else rest), last


def _element_wise(chain: _Chain) -> None:
    functions: list[Callable[[Any], Any]] = [
        jax.nn.gelu,
        jax.nn.silu,
        jnp.tanh,
        jax.nn.relu,
        lambda x: jnp.exp(-jnp.abs(x)),
        lambda x: jnp.where(x > 0, x, 0.1 * x),
        lambda x: x * lax.rsqrt(x * x + 1),
    ]
    function = functions[chain.rng.integers(len(functions))]
    chain.stages.append(lambda x, _: function(x))


def _with_other(chain: _Chain) -> None:
    """With another array: whole, a row, or a column."""
    shape = list(chain.shape)
    way = chain.rng.integers(3)
    if way == 1:
        shape = [1] * (len(shape) - 1) + shape[-1:]
    elif way == 2:
        shape[-1] = 1
    number, adds = chain.array(tuple(shape)), chain.rng.random() < 0.5
    chain.stages.append(lambda x, a: x + a[number] if adds else x * a[number])


def _norm(chain: _Chain) -> None:
    number, centred = chain.array(chain.shape[-1:]), chain.rng.random() < 0.5

    def stage(x: Any, arrays: list[Any]) -> Any:
        wide = x.astype(F32)
        wide = wide - wide.mean(-1, keepdims=True) if centred else wide
        normed = wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
        return (normed * arrays[number].astype(F32)).astype(x.dtype)

    chain.stages.append(stage)


def _softmax(chain: _Chain) -> None:
    axis = -1 if chain.rng.random() < 0.7 else 0
    chain.stages.append(lambda x, _: jax.nn.softmax(x.astype(F32), axis).astype(x.dtype))


def _reduced(chain: _Chain) -> None:
    axis = int(chain.rng.integers(len(chain.shape)))
    largest = chain.rng.random() < 0.3
    shape = chain.shape

    def stage(x: Any, _: list[Any]) -> Any:
        wide = x.astype(F32)
        reduced = wide.max(axis, keepdims=True) if largest else wide.sum(axis, keepdims=True)
        return (wide - jnp.broadcast_to(reduced, shape)).astype(x.dtype)

    chain.stages.append(stage)


def _product(chain: _Chain) -> None:
    """With a matrix, and sometimes a bias and an activation."""
    inputs = chain.shape[-1]
    rows = int(np.prod(chain.shape[:-1]))
    most = min(13.0, _MOST - np.log2(rows), 22 - np.log2(inputs))
    outputs = max(8, round(2 ** chain.rng.uniform(4, max(4.5, most))) // 8 * 8)
    weight = chain.array((inputs, outputs), scale=inputs**-0.5)
    bias = chain.array((outputs,)) if chain.rng.random() < 0.5 else None
    activated = chain.rng.random() < 0.4

    def stage(x: Any, arrays: list[Any]) -> Any:
        y = x @ arrays[weight]
        y = y if bias is None else y + arrays[bias]
        return jax.nn.gelu(y) if activated else y

    chain.stages.append(stage)
    chain.shape = (*chain.shape[:-1], outputs)


def _attention(chain: _Chain) -> None:
    """Scores of each row with all others of its batch, masked, times the rows."""
    if len(chain.shape) != 3 or chain.shape[1] > 1024:
        return _norm(chain)
    length, width = chain.shape[1:]

    def stage(x: Any, _: list[Any]) -> Any:
        scores = jnp.einsum("bqd,bkd->bqk", x, x).astype(F32) * width**-0.5
        mask = jnp.arange(length)[:, None] >= jnp.arange(length)[None]
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(x.dtype)
        return jnp.einsum("bqk,bkd->bqd", weights, x)

    return chain.stages.append(stage)


def _transposed(chain: _Chain) -> None:
    axes = list(itertools.permutations(range(len(chain.shape))))[1:]
    order = axes[chain.rng.integers(len(axes))]
    chain.stages.append(lambda x, _: x.transpose(order) * 2)
    chain.shape = tuple(chain.shape[axis] for axis in order)


def _gated(chain: _Chain) -> None:
    half = chain.shape[-1] // 2
    chain.stages.append(lambda x, _: jax.nn.silu(x[..., :half]) * x[..., half : 2 * half])
    chain.shape = (*chain.shape[:-1], half)


def _gathered(chain: _Chain) -> None:
    """Rows in a random order."""
    rows = chain.shape[0]
    number = chain.array((rows,), dtype=jnp.int32, below=max(3, rows))
    chain.stages.append(lambda x, a: jnp.take(x, a[number] % rows, axis=0, mode="clip"))


def _joined_arrays(chain: _Chain) -> None:
    """Shifted, padded or joined along an axis."""
    axis, way = int(chain.rng.integers(len(chain.shape))), chain.rng.integers(3)
    if way == 0:
        chain.stages.append(lambda x, _: x - jnp.roll(x, 1, axis))
    elif way == 1 and np.prod(chain.shape) < 1 << 21:
        chain.stages.append(lambda x, _: jnp.concatenate([x, -x], axis))
        chain.shape = tuple(n * (1 + (i == axis)) for i, n in enumerate(chain.shape))
    else:
        pads = [(1, 1) if i == axis else (0, 0) for i in range(len(chain.shape))]
        size = chain.shape[axis]
        sliced = partial(lax.slice_in_dim, start_index=2, limit_index=size + 2, axis=axis)
        chain.stages.append(lambda x, _: x + sliced(jnp.pad(x, pads)))


def _updated(chain: _Chain) -> None:
    """Some rows of another array are replaced."""
    rows = max(1, chain.shape[0] // 4)
    number = chain.array(chain.shape)
    chain.stages.append(
        lambda x, a: lax.dynamic_update_slice_in_dim(a[number], x[:rows] * 0.5, rows // 2, axis=0)
    )


def _interleaved(chain: _Chain) -> None:
    """Means and differences of neighbours along an axis, again of the means, joined."""
    levels, axis = int(chain.rng.integers(1, 5)), int(chain.rng.integers(len(chain.shape)))

    def stage(x: Any, _: list[Any]) -> Any:
        parts = []
        for _level in range(levels):
            if x.shape[axis] % 2:
                break
            even, odd = (lax.slice_in_dim(x, start, None, 2, axis) for start in (0, 1))
            parts.append((even - odd) * 0.7)
            x = (even + odd) * 0.7
        return jnp.concatenate([x, *reversed(parts)], axis)

    chain.stages.append(stage)


def _looked_up(chain: _Chain) -> None:
    """An element of a table for each element, or a short row for each of some."""
    size = round(2 ** chain.rng.uniform(4, 20))
    width = chain.shape[-1] if chain.rng.random() < 0.5 and chain.shape[-1] <= 64 else 1
    table = chain.array((size, width) if width > 1 else (size,))
    shape = chain.shape[:-1] if width > 1 else chain.shape
    indices = chain.array(shape, dtype=jnp.int32, below=max(3, size))
    chain.stages.append(lambda x, a: x * jnp.take(a[table], a[indices], axis=0, mode="clip"))


def _cumulative(chain: _Chain) -> None:
    axis = int(chain.rng.integers(len(chain.shape)))
    function = (jnp.cumsum, lax.cummax)[chain.rng.integers(2)]
    chain.stages.append(lambda x, _: function(x.astype(F32) * 0.01, axis=axis).astype(x.dtype))


def _pooled(chain: _Chain) -> None:
    """The largest of each window, or its mean."""
    axis, size = int(chain.rng.integers(len(chain.shape))), int(chain.rng.integers(2, 8))
    window = tuple(size if i == axis else 1 for i in range(len(chain.shape)))
    ones = (1,) * len(window)
    if chain.rng.random() < 0.5:
        chain.stages.append(
            lambda x, _: lax.reduce_window(x, x.dtype.type(-jnp.inf), lax.max, window, ones, "SAME")
        )
    else:
        chain.stages.append(
            lambda x, _: lax.reduce_window(x, x.dtype.type(0), lax.add, window, ones, "SAME") / size
        )


def _functions(chain: _Chain) -> None:
    functions: list[Callable[[Any], Any]] = [
        lambda x: jnp.sin(x) * jnp.cos(0.5 * x),
        lambda x: jnp.log1p(jnp.abs(x)),
        lambda x: jnp.sqrt(jnp.abs(x) + 0.1) / (1 + x * x),
        lambda x: jnp.power(jnp.abs(x) + 0.1, 1.7),
        lax.erf,
        jax.nn.sigmoid,
        lambda x: jnp.floor(x * 8) / 8 + jnp.clip(x, -0.5, 0.5),
    ]
    function = functions[chain.rng.integers(len(functions))]
    chain.stages.append(lambda x, _: function(x.astype(F32)).astype(x.dtype))


def _mixed_bits(chain: _Chain) -> None:
    """Integers mixed by shifts and exclusive or, as random bits are; some elements are dropped."""
    rounds, shape = int(chain.rng.integers(1, 9)), chain.shape

    def stage(x: Any, _: list[Any]) -> Any:
        bits = lax.iota(jnp.uint32, int(np.prod(shape))).reshape(shape)
        for shift in range(1, rounds + 1):
            bits = (bits ^ (bits >> shift)) * jnp.uint32(0x9E3779B1)
        return jnp.where(bits > (1 << 30), x, jnp.zeros_like(x))

    chain.stages.append(stage)


def _short_sums(chain: _Chain) -> None:
    """Groups of a few neighbours are divided by their sum."""
    shape = chain.shape
    fitting = [number for number in range(2, 25) if shape[-1] % number == 0]
    if not fitting:
        return _functions(chain)
    group = fitting[chain.rng.integers(len(fitting))]

    def stage(x: Any, _: list[Any]) -> Any:
        groups = x.astype(F32).reshape(*shape[:-1], -1, group)
        squares = (groups * groups).sum(-1, keepdims=True)
        return (groups / (squares + 1)).reshape(shape).astype(x.dtype)

    return chain.stages.append(stage)


_KINDS = (
    *(_element_wise, _element_wise, _with_other, _with_other, _norm, _softmax, _reduced),
    *(_product, _product, _attention, _transposed, _gated, _gathered, _joined_arrays, _updated),
)
_LATER_KINDS = (
    *_KINDS,
    *(_interleaved, _looked_up, _cumulative, _pooled, _functions, _functions, _mixed_bits),
    *(_short_sums, _transposed, _reduced, _with_other),
)
_OF_VECTORS = (_element_wise, _with_other, _reduced)
