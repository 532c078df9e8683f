"""Donations that fail in the ways of published bug reports, one leaf per way.

No two leaves have the same shape, so each is paired within its own case (except `one_of_two`).

- jax#9675, jax#9237: a donated buffer without a matching output; jax warns once and continues.
- jax#9635, jax#12627: one array is passed as a donated leaf and as another argument.
- jax#17845: a carry that is shifted inside a scan, which reads the elements that it overwrites.
- tensorflow#59022: an input that is aliased but copied completely before it is used.
- xla#45912: an intermediate in temporary memory, although the donated buffer could be reused.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct, lax

from xlapipe import Workload

F32, BF16 = jnp.float32, jnp.bfloat16

LEAVES = {
    "in_place": ShapeDtypeStruct((64, 1024), BF16),
    "widened": ShapeDtypeStruct((65, 1024), BF16),
    "grown": ShapeDtypeStruct((66, 1024), F32),
    "reshaped": ShapeDtypeStruct((67, 1024), F32),
    "mispaired": ShapeDtypeStruct((80, 1024), F32),
    "unlike": ShapeDtypeStruct((40, 1024), F32),
    "summed": ShapeDtypeStruct((68, 1024), F32),
    "read_after": ShapeDtypeStruct((69, 1024), BF16),
    "returned_twice": ShapeDtypeStruct((70, 1024), BF16),
    "ignored": ShapeDtypeStruct((71, 1024), F32),
    "one_of_two": ShapeDtypeStruct((72, 1024), F32),
    "other_of_two": ShapeDtypeStruct((72, 1024), F32),
    "shifted": ShapeDtypeStruct((73 * 1024,), F32),
}


def step(state: dict[str, jax.Array], row: jax.Array) -> dict[str, Any]:
    """One or two outputs for each outcome of a donation."""
    out: dict[str, Any] = {}
    out["in_place"] = state["in_place"].at[3].set(row)
    out["widened"] = state["widened"].astype(F32) + 1
    out["grown"] = jnp.concatenate([state["grown"], state["grown"][:30]])
    out["reshaped"] = (state["reshaped"] * 2).reshape(67 * 1024)
    out["mispaired"] = (state["mispaired"] * 2)[:79]
    out["unlike"] = jnp.concatenate([state["unlike"], state["unlike"]])
    out["summed"] = jnp.sum(state["summed"])
    out["read_after"] = (state["read_after"].at[3].set(row), state["read_after"])
    updated = state["returned_twice"].at[3].set(row)
    out["returned_twice"] = (updated, updated)
    out["one_of_two"] = state["one_of_two"] + state["other_of_two"]
    out["shifted"] = _shift(state["shifted"])
    return out


def _shift(carry: jax.Array) -> jax.Array:
    """Shift the elements after an index to the left by one, 16 times."""

    def pop(carry: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        following = lax.dynamic_slice(carry, (index + 1,), (70 * 1024,))
        return lax.dynamic_update_slice(carry, following, (index,)), carry[index]

    return lax.scan(pop, carry, jnp.arange(16))[0]


def cases() -> Workload:
    """Every case in one program."""
    row = ShapeDtypeStruct((1024,), BF16)
    return Workload(name="donation-cases", fn=step, args=(LEAVES, row), donate_argnums=0)


LENGTH = 1 << 20


def read_by_loop() -> Workload:
    """A loop reads an intermediate before the last update; all of it could be in place."""

    def step(initial: jax.Array) -> jax.Array:
        intermediate = jnp.exp(initial)
        total = lax.fori_loop(0, 8, lambda i, s: s + intermediate[i * (LENGTH // 8)], jnp.zeros(()))
        return intermediate * total

    argument = ShapeDtypeStruct((LENGTH,), F32)
    return Workload(name="read-by-loop", fn=step, args=(argument,), donate_argnums=0)
