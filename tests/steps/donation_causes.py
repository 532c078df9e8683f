"""Donations that fail, each with the step that its advice leads to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct, lax
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

BUFFER = ShapeDtypeStruct((64, 256), jnp.float32)
ROW = ShapeDtypeStruct((256,), jnp.float32)
LAYERS = ShapeDtypeStruct((4, 256, 256), jnp.bfloat16)
TOKENS = ShapeDtypeStruct((128, 256), jnp.bfloat16)


@dataclass(frozen=True)
class Cause:
    """A step whose first argument is donated in vain, and one that is changed as advised.

    Attributes:
      reason, advice: parts of what the donation's row says.
      fixed: None if the advice is not to donate.
      workload, fixed_workload: fields of the two workloads.
    """

    fn: Callable[..., Any]
    reason: str
    advice: str
    fixed: Callable[..., Any] | None = None
    args: tuple[Any, ...] = (BUFFER,)
    workload: dict[str, Any] = field(default_factory=dict)
    fixed_workload: dict[str, Any] = field(default_factory=dict)


def _update(a: Array, row: Array) -> Array:
    return a.at[3].set(row)


def _scan(a: Array) -> Array:
    return lax.scan(lambda carry, x: (carry, x * 2), 0, a)[1]


def _scan_in_carry(a: Array) -> Array:
    def body(carry: Array, i: Array) -> tuple[Array, None]:
        return carry.at[i].set(carry[i] * 2), None

    return lax.scan(body, a, jnp.arange(64))[0]


def _map(a: Array, row: Array) -> Array:
    return lax.map(lambda x: jnp.cumsum(x) * row, a)


def _map_in_carry(a: Array, row: Array) -> Array:
    def body(carry: Array, i: Array) -> tuple[Array, None]:
        return carry.at[i].set(jnp.cumsum(carry[i]) * row), None

    return lax.scan(body, a, jnp.arange(64))[0]


def _add_one(a: Array) -> Array:
    return a + 1


_SPLIT = {"mesh": {"x": 2}, "in_specs": P("x"), "out_specs": P("x")}
_LATER = "do not read the old value after the update, and return the new value only once"

CAUSES = {
    "setting": Cause(
        _update,
        "jax drops donate_argnums while jax_debug_nans is on",
        "jax.config.update('jax_debug_nans', False)",
        _update,
        (BUFFER, ROW),
    ),
    "scan": Cause(
        _scan,
        "reads it in slices (xs) while it stacks out (ys)",
        "put the buffer in the carry",
        _scan_in_carry,
    ),
    "map": Cause(_map, "reads it in slices (xs)", "in the carry of", _map_in_carry, (BUFFER, ROW)),
    "dtype": Cause(
        lambda a: a.astype(jnp.bfloat16) + 1,
        "no output has its shape and dtype: out is bfloat16",
        "return it as float32",
        lambda a: (a.astype(jnp.bfloat16) + 1).astype(jnp.float32),
    ),
    "shape": Cause(
        lambda a: jnp.concatenate([a, a[:1]])[1:, 1:],
        "no output has its shape and dtype",
        "return the updated value",
        lambda a: a * 2,
    ),
    "replicated": Cause(
        _add_one,
        "the sharding of out differs: 65,536 B on each device, not 32,768 B",
        "the same sharding",
        _add_one,
        workload={**_SPLIT, "out_specs": P()},
        fixed_workload=_SPLIT,
    ),
    "other_axis": Cause(
        _add_one,
        "the sharding of out differs: PartitionSpec(None, 'x'), not PartitionSpec('x')",
        "the same sharding",
        _add_one,
        workload={**_SPLIT, "out_specs": P(None, "x")},
        fixed_workload=_SPLIT,
    ),
    "memory": Cause(
        lambda a: jax.device_put(a + 1, jax.memory.Space.Host),
        "out is in pinned_host memory, and the argument in device memory",
        "in the memory of the argument",
        _add_one,
    ),
    "unused": Cause(
        jnp.zeros_like,
        "the program does not use it",
        "keep_unused=True",
        jax.jit(jnp.zeros_like, donate_argnums=0, keep_unused=True),
    ),
    "taken": Cause(
        lambda b, a: a + b,
        "out has its shape and dtype, but is aliased to b",
        "return one more value of its shape and dtype",
        lambda b, a: (a + b, a * 2),
        (BUFFER, BUFFER),
        {"donate_argnums": (0, 1)},
        {"donate_argnums": (0, 1)},
    ),
    "swapped": Cause(
        lambda a, b: (b, a),
        "out[0], which is written over it, is b",
        "in the order of the arguments",
        lambda a, b: (a, b),
        (BUFFER, BUFFER),
        {"donate_argnums": (0, 1)},
        {"donate_argnums": (0, 1)},
    ),
    "updated_in_another_order": Cause(
        lambda a, b, row: (_update(b, row), _update(a, row)),
        "out[0], which is written over it, is b or an update of it",
        "in the order of the arguments",
        lambda a, b, row: (_update(a, row), _update(b, row)),
        (BUFFER, BUFFER, ROW),
        {"donate_argnums": (0, 1)},
        {"donate_argnums": (0, 1)},
    ),
    "update_of_another": Cause(
        lambda a, b, row: (_update(b, row), a.sum()),
        "copies 65,536 B into its memory: out[0], which is written over it, is b or an update",
        "donate b in its place",
        lambda b, a, row: (_update(a, row), b.sum()),
        (BUFFER, BUFFER, ROW),
        fixed_workload={"donate_argnums": 1},
    ),
    "read_after": Cause(
        lambda a, row: (_update(a, row), a), "copies 65,536 B of it", _LATER, _update, (BUFFER, ROW)
    ),
    "returned_twice": Cause(
        lambda a, row: (_update(a, row),) * 2,
        "out[1] is out[0], returned twice",
        "return it once: not as out[1] too",
        _update,
        (BUFFER, ROW),
    ),
}


def broken(name: str) -> Workload:
    """The step whose donation fails."""
    cause = CAUSES[name]
    jax.config.update("jax_debug_nans", name == "setting")
    return _workload(name, cause.fn, cause.args, cause.workload)


def fixed(name: str) -> Workload:
    """The step that is changed as advised."""
    cause = CAUSES[name]
    jax.config.update("jax_debug_nans", False)
    return _workload(name, cause.fixed, cause.args, cause.fixed_workload)


def _workload(name: str, fn: Any, args: tuple[Any, ...], more: dict[str, Any]) -> Workload:
    jitted = isinstance(fn, type(jax.jit(len)))
    donated = {} if jitted else {"donate_argnums": 0}
    return Workload(name=name, fn=fn, args=args, **{**donated, **more})


def layers(equation: str) -> Workload:
    """Products of tokens with the weights of each layer, as an einsum says."""
    jax.config.update("jax_debug_nans", False)
    return Workload(
        name="layers", fn=lambda ws, x: jnp.einsum(equation, x, ws), args=(LAYERS, TOKENS)
    )
