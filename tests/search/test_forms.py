"""Other forms of a step: offered only where their results are equal, which the CPU computes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.steps import form_steps
from xlapipe.compile.lowering.chosen_policy import apply_policy, stop
from xlapipe.compile.lowering.forward_graph import FormSite, ForwardGraph
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.search.candidate import StepChange
from xlapipe.search.choosing import forms
from xlapipe.search.choosing.compiles import forward_graph_at
from xlapipe.search.choosing.forms import form_changes

pytestmark = pytest.mark.jax

KEY = jax.random.key(0)
# Sums of blocks are added in another order.
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def undo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(forms, "_LEAST_BYTES", 1)
    yield
    stop()


@dataclass
class Totals:
    temp_bytes: int


class Written:
    """A program on one device, of which the plan needs few bytes."""

    plan = type("Plan", (), {"totals": Totals(1)})
    facts = type("Facts", (), {"mesh": None})


def recorded(step: Callable[..., Any], args: Any, folder: Path) -> ForwardGraph:
    record = folder / "graph.json"
    apply_policy(replace(PolicyChange(), record=str(record)))
    jax.jit(partial(step)).lower(*args)  # a function that jax has not traced
    stop()
    return forward_graph_at(record)


def changes(step: Callable[..., Any], args: Any, folder: Path) -> list[StepChange]:
    return [*form_changes(Written(), recorded(step, args, folder))]  # type: ignore[arg-type]


def assert_equal(step: Callable[..., Any], args: Any, change: StepChange) -> None:
    def traced() -> Any:
        return jax.jit(partial(step)).trace(*args)

    written = traced().lower()
    apply_policy(change.policy or PolicyChange())
    changed = traced().lower()
    stop()
    assert changed.as_text() != written.as_text()
    expected, found = (jax.tree.leaves(form.compile()(*args)) for form in (written, changed))
    for a, b in zip(expected, found, strict=True):
        scale = np.max(np.abs(np.asarray(a, np.float64)), initial=1e-30)
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * scale)


def uniform(*shape: int) -> jax.Array:
    return jax.random.uniform(jax.random.fold_in(KEY, sum(shape)), shape)


def pytrees(x: jax.Array, y: jax.Array) -> Any:
    """Axes of leaves, an output along another axis, and a name."""

    def one(pair: Any, scale: jax.Array, *, shift: jax.Array) -> Any:
        return {"a": pair[0] * scale + shift, "b": pair[1] + pair[0].sum()}

    mapped = jax.vmap(one, in_axes=((1, None), None), out_axes={"a": 1, "b": 0})
    return mapped((x, y[0]), y[1], shift=x.T)


MAPPED = {
    "patches": (form_steps.patches, (uniform(4, 64), uniform(40, 40)), 289),
    "neighbours": (form_steps.neighbours, (uniform(96, 3),), 96),
    "kernel": (form_steps.kernel_product, (uniform(64, 4), uniform(64, 2), jnp.float32(1)), 64),
    "pytrees": (pytrees, (uniform(8, 33), uniform(2, 8)), 33),
}


@pytest.mark.parametrize("name", MAPPED)
def test_a_vmap_in_blocks_is_equal(name: str, tmp_path: Path) -> None:
    step, args, size = MAPPED[name]
    own = changes(step, args, tmp_path)
    assert own and f"of {size}" in own[0].text and "write vmap_in_blocks for" in own[0].code
    for change in own[:2]:
        assert_equal(step, args, change)


def of_axis(x: jax.Array) -> jax.Array:
    return jax.vmap(lambda row: row - jax.lax.pmean(row, "rows"), axis_name="rows")(x)


def of_bits(x: jax.Array) -> jax.Array:
    keys = jax.random.split(jax.random.key(0, impl="rbg"), len(x))
    return jax.vmap(lambda row, key: jnp.sum(row * jax.random.normal(key, row.shape)))(x, keys)


def printing(x: jax.Array) -> jax.Array:
    def one(row: jax.Array) -> jax.Array:
        jax.debug.print("{}", row[0])
        return jnp.sum(row * row)

    return jax.vmap(one)(x)


def of_constants(x: jax.Array) -> jax.Array:
    return x + jax.vmap(lambda row: jnp.sum(row**2))(np.ones((64, 8), np.float32))[0]


def small(x: jax.Array) -> jax.Array:
    return jax.vmap(lambda row: jnp.sum(jnp.outer(row, row)))(x[:8])


def whole(x: jax.Array) -> jax.Array:
    return jax.vmap(lambda row: jnp.sum(x**2), out_axes=None, axis_size=64)(x)


@pytest.mark.parametrize("step", [of_axis, of_bits, printing, of_constants, small, whole])
def test_a_vmap_with_another_result_or_little_use_has_no_blocks(
    step: Callable[..., Any], tmp_path: Path
) -> None:
    assert changes(step, (uniform(64, 8),), tmp_path) == []


def test_inner_and_outer_vmaps_of_a_line_are_distinguished(tmp_path: Path) -> None:
    def both(x: jax.Array) -> jax.Array:
        pairs = jax.vmap(jax.vmap(lambda a, b: jnp.outer(a, b).max(), (None, 0)), (0, None))(x, x)
        return pairs.sum()

    args = (uniform(64, 4),)
    sites = recorded(both, args, tmp_path).forms
    outer, inner = sorted(sites, key=lambda site: -site.largest_bytes)
    assert outer.source == inner.source and outer.column < inner.column
    assert outer.largest_bytes == 64 * 64 * 16 * 4
    for change in changes(both, args, tmp_path / "again"):
        assert_equal(both, args, change)


def test_blocks_of_small_values_and_sharded_steps_are_left_out() -> None:
    graph = ForwardGraph((), (), forms=(FormSite("vmap", "a.py:1", 0, 4096, 2**22),))
    large = type("Large", (Written,), {"plan": type("P", (), {"totals": Totals(2**26)})})
    sharded = type("Sharded", (Written,), {"facts": type("F", (), {"mesh": {"data": 2}})})
    assert [*form_changes(large(), graph)] == [*form_changes(sharded(), graph)] == []
    assert len([*form_changes(Written(), graph)]) == 3  # type: ignore[arg-type]
