"""Forms in which a step updates donated buffers, one small program each.

Every form is a function of buffers `a`, `b` and `c` of one shape, of a `row` of them, of an index
`i` and of a `flag`, and takes those that it names.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct, lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

BUFFER = ShapeDtypeStruct((64, 256), jnp.float32)
_ARGUMENTS = {
    **dict.fromkeys("abc", BUFFER),
    "row": ShapeDtypeStruct((256,), jnp.float32),
    "i": ShapeDtypeStruct((), jnp.int32),
    "flag": ShapeDtypeStruct((), jnp.bool_),
}


@dataclass(frozen=True)
class Form:
    """A step, and what XLA makes of its donated buffers.

    Attributes:
      aliased: donated buffers that an output is written over.
      copied: of those, the ones of which half or more is copied as well.
      kept: buffers that are not donated.
      others: places of a buffer's size that the step needs if nothing is copied: for outputs that
        it computes, and for copies of buffers that it keeps.
      devices: among which the buffers are split.
      on_host: buffers that are in the host's memory.
    """

    fn: Callable[..., Any]
    aliased: str = "a"
    copied: str = ""
    kept: str = ""
    others: int = 0
    devices: int = 1
    on_host: str = ""

    @property
    def donated(self) -> tuple[str, ...]:
        """Names of the donated buffers."""
        names = inspect.signature(self.fn).parameters
        return tuple(name for name in names if name in "abc" and name not in self.kept)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a buffer on one device."""
        return 64 * 256 * 4 // self.devices


def _set(a: Array, row: Array, i: Array) -> Array:
    return a.at[i].set(row)


def _rows(a: Array, row: Array) -> Array:
    """A loop that sets all rows."""
    return lax.fori_loop(0, 64, lambda k, b: b.at[k].set(row), a)


def _branch_in_loop(a: Array, row: Array) -> Array:
    def body(k: Array, b: Array) -> Array:
        return lax.cond(k % 3 == 0, lambda v: v.at[k].set(row), lambda v: v, b)

    return lax.fori_loop(0, 64, body, a)


def _nested(a: Array, row: Array, flag: Array) -> Array:
    """A loop in a branch in a loop in a branch."""

    def body(k: Array, b: Array) -> Array:
        return lax.cond(k % 2 == 0, partial(_rows, row=row), lambda v: v * 2, b)

    return lax.cond(flag, lambda b: lax.fori_loop(0, 3, body, b), lambda b: b, a)


def _dict_carry(a: Array, b: Array, row: Array) -> dict[str, Array]:
    def body(k: Array, carry: dict[str, Array]) -> dict[str, Array]:
        return {"k": carry["k"].at[k].set(row), "v": carry["v"].at[k].add(row)}

    return lax.fori_loop(0, 64, body, {"k": a, "v": b})


def _scan_carry(a: Array, b: Array) -> tuple[Array, Array]:
    """A scan that updates a row of its carry, and returns one of another buffer."""

    def body(carry: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        k, row = x
        return carry.at[k].set(row), row + 1

    return lax.scan(body, a, (jnp.arange(64), b))


def _nested_tuples(a: Array, b: Array, c: Array, row: Array) -> Any:
    def body(k: Array, carry: Any) -> Any:
        first, (second, third) = carry
        return first.at[k].set(row), (second.at[k].add(row), third)

    return lax.fori_loop(0, 64, body, (a, (b, c)))


def _while(a: Array, row: Array) -> Array:
    """A loop whose condition reads the buffer."""
    return lax.while_loop(lambda b: b[0, 0] < 3, lambda b: b.at[0].add(row), a)


def _shard_map(a: Array, row: Array, i: Array) -> Array:
    body = jax.shard_map(_set, in_specs=(P("x"), P(), P()), out_specs=P("x"))
    return body(a, row, i)


def _exchange(a: Array) -> Array:
    def shift(part: Array) -> Array:
        return lax.ppermute(part, "x", [(0, 1), (1, 0)])

    return jax.shard_map(shift, in_specs=P("x"), out_specs=P("x"))(a)


def _to_host(buffer: Array) -> Array:
    return jax.device_put(buffer, jax.memory.Space.Host)


def _to_device(buffer: Array) -> Array:
    return jax.device_put(buffer, jax.memory.Space.Device)


def _on_host() -> ShapeDtypeStruct:
    place = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    return ShapeDtypeStruct(BUFFER.shape, BUFFER.dtype, sharding=place)


FORMS = {
    "update": Form(_set),
    "elementwise": Form(lambda a: a * 0.9 + 1),
    "tuple": Form(lambda a, b, row, i: (_set(a, row, i), b * 2), "ab"),
    "passed_through": Form(lambda a: a),
    "beside_passed_through": Form(lambda a, b: (a + 1, b), kept="b", others=1),
    "both_returned_and_one_kept": Form(
        lambda a, b, c, row, i: (_set(a, row, i), b, c), "ab", kept="c", others=1
    ),
    "swapped": Form(lambda a, b: (b, a), "ab", "ab"),
    "branch": Form(lambda a, row, i, flag: lax.cond(flag, _set, lambda b, *_: b, a, row, i)),
    "branches": Form(lambda a, row, i, flag: lax.cond(flag, _set, lambda b, *_: b * 2, a, row, i)),
    "switch": Form(
        lambda a, row, i: lax.switch(
            i, [lambda b: b, lambda b: b.at[3].set(row), lambda b: b.at[i].add(row)], a
        )
    ),
    "branch_of_a_tuple": Form(
        lambda a, b, row, i, flag: lax.cond(
            flag, lambda s: (_set(s[0], row, i), s[1]), lambda s: (s[0], s[1] * 2), (a, b)
        ),
        "ab",
    ),
    "branch_that_swaps": Form(
        lambda a, b, flag: lax.cond(flag, lambda x, y: (y, x), lambda x, y: (x, y), a, b),
        "ab",
        "ab",
    ),
    "loop": Form(_rows),
    "loop_in_branch": Form(
        lambda a, row, flag: lax.cond(flag, partial(_rows, row=row), lambda b: b, a)
    ),
    "branch_in_loop": Form(_branch_in_loop),
    "nested": Form(_nested),
    "dict_carry": Form(_dict_carry, "ab"),
    "nested_tuples": Form(_nested_tuples, "abc"),
    "swapped_carry": Form(
        lambda a, b: lax.fori_loop(0, 7, lambda _, c: (c[1], c[0] + 1), (a, b)), "ab", "ab"
    ),
    "while": Form(_while),
    "promise_in_bounds": Form(
        lambda a, row, i: a.at[i].set(row, mode="promise_in_bounds", unique_indices=True)
    ),
    "dynamic_update_slice": Form(lambda a, row, i: lax.dynamic_update_slice(a, row[None], (i, 0))),
    "scatter_of_rows": Form(lambda a, row, i: a.at[jnp.array([1, 5, 9])].add(row)),
    "scan_carry": Form(_scan_carry, "ab", "b"),
    "xs_to_ys": Form(lambda a: lax.scan(lambda c, x: (c, x * 2), 0, a)[1], copied="a"),
    "map": Form(lambda a, row: lax.map(lambda x: x @ x * row, a), copied="a"),
    "carry_read_and_written": Form(
        lambda a: lax.fori_loop(1, 64, lambda k, b: b.at[k].add(b[k - 1]), a)
    ),
    "optimizer": Form(lambda a, b, c: (a - 0.1 * (0.9 * b + c), 0.9 * b + c), "ab", kept="c"),
    "vmapped_rows": Form(lambda a, i: jax.vmap(lambda x: x.at[i].set(0))(a)),
    "sorted": Form(lambda a: lax.sort(a, num_keys=1), others=1),
    "chain": Form(lambda a, row, i: _set(_set(_set(a, row, i), row * 2, i + 1), row * 3, i + 2)),
    "returned_twice": Form(lambda a, row, i: (_set(a, row, i),) * 2, copied="a"),
    "read_before": Form(lambda a, row, i: (_set(a, row, i), a.sum())),
    "read_after": Form(lambda a, row, i: (_set(a, row, i), a), copied="a"),
    "read_old_rows": Form(lambda a, row, i: (_set(a, row, i), a[:8])),
    "one_output_of_two": Form(lambda a, b: a + b),
    "barrier": Form(lambda a, b, row, i: (_set(*lax.optimization_barrier((a, row, i))), b), "ab"),
    "reshaped": Form(lambda a, i: a.reshape(-1).at[i].set(0).reshape(a.shape)),
    "called": Form(lambda a, row, i: jax.jit(_set)(a, row * 2, i)),
    "rematerialised": Form(jax.checkpoint(_set)),
    "shard_map": Form(_shard_map, devices=2),
    "partitioned": Form(lambda a, row: a * row, devices=2),
    "exchanged": Form(_exchange, copied="a", devices=2),
    "offloaded": Form(
        lambda a, b: (a + 1, _to_host(_to_device(b) * 0.9 + a)), "ab", others=2, on_host="b"
    ),
}


def form(name: str) -> Workload:
    """The form of that name as a workload."""
    this = FORMS[name]
    names = list(inspect.signature(this.fn).parameters)
    mesh: dict[str, Any] = {}
    if this.devices > 1:
        specs = tuple(P("x") if name in "abc" else P() for name in names)
        mesh = {"mesh": {"x": this.devices}, "in_specs": specs, "out_specs": P("x")}
    return Workload(
        name=name,
        fn=this.fn,
        args=tuple(_on_host() if it in this.on_host else _ARGUMENTS[it] for it in names),
        donate_argnums=tuple(map(names.index, this.donated)),
        **mesh,
    )


def propagated() -> Workload:
    """A jitted step of two arguments without shardings, which XLA takes from the outputs."""
    half = NamedSharding(AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,)), P("x"))

    def step(a: Array, b: Array) -> tuple[Array, Array]:
        return lax.with_sharding_constraint(a + 1, half), b

    fn = jax.jit(step, donate_argnums=0, in_shardings=(None, None), out_shardings=(None, half))
    return Workload(name="propagated", fn=fn, args=(BUFFER, BUFFER))
