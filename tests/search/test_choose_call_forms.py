"""`choose --remat`: forms of calls to jax and Flax, and the code that is printed for them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from xlapipe import XlapipeError
from xlapipe.compile.lowering.chosen_policy import apply_policy, stop
from xlapipe.compile.lowering.forward_graph import ForwardGraph
from xlapipe.compile.lowering.forward_values import forward_graph, named_values
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.plans.program import KeptIn
from xlapipe.search.choosing.compiles import forward_graph_at, target_device
from xlapipe.search.choosing.policies import (
    PolicyPlace,
    applicable,
    chosen_values,
    places_of,
    presets,
)
from xlapipe.search.choosing.search import keep_within

pytestmark = pytest.mark.jax

Step = Callable[[jax.Array, jax.Array, Any], Any]
W = jax.ShapeDtypeStruct((32, 32), jnp.float32)
X = jax.ShapeDtypeStruct((64, 32), jnp.float32)


class Code(SimpleNamespace):
    """What the printed code defines; as long as nothing is printed, what leaves a step as it is."""

    policy: Any = None

    @staticmethod
    def rematerialised(function: Any, *positions: Any) -> Any:
        return function

    @property
    def wrapped(self) -> Any:
        """What the printed line writes around the body of a loop."""
        policy = self.policy
        if policy is None:
            return lambda body: body
        return lambda body: jax.checkpoint(body, policy=policy, prevent_cse=False)


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(2):
        x = jnp.tanh(jnp.sin(x @ w))
    return jnp.mean(x**2)


def swapped(x: jax.Array, w: jax.Array) -> jax.Array:
    return loss(w, x)


def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
    return jnp.tanh(jnp.sin(x @ w)), None


def keyword(w: jax.Array, x: jax.Array, code: Any) -> Any:
    return jax.grad(fun=code.rematerialised(loss))(w, x)


def negative(w: jax.Array, x: jax.Array, code: Any) -> Any:
    return jax.grad(code.rematerialised(swapped), argnums=-1)(x, w)


def two_arguments(w: jax.Array, x: jax.Array, code: Any) -> Any:
    first = jax.grad(code.rematerialised(loss, (0,)))(w, x)
    return first, jax.grad(code.rematerialised(swapped, (1,)), 1)(x, w)


def penalised(w: jax.Array, x: jax.Array, code: Any) -> Any:
    """The gradient of a loss with a gradient: only the outer one takes the policy."""

    def penalty(w: jax.Array, x: jax.Array) -> jax.Array:
        return loss(w, x) + jnp.sum(jax.grad(swapped)(x, w) ** 2)

    return jax.grad(code.rematerialised(penalty))(w, x)


def remat(w: jax.Array, x: jax.Array, code: Any) -> Any:
    return jax.grad(jax.remat(loss, policy=code.policy))(w, x)


def accumulated(w: jax.Array, x: jax.Array, code: Any) -> Any:
    """Gradients of micro-batches: the scan itself is not differentiated."""

    def add(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
        return total + jax.grad(code.rematerialised(loss))(w, part), None

    return jax.lax.scan(add, jnp.zeros_like(w), x.reshape(4, 16, 32))[0]


def counted_loop(w: jax.Array, x: jax.Array, code: Any) -> Any:
    def after_three(w: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.fori_loop(0, 3, code.wrapped(lambda _, x: layer(x, w)[0]), x))

    return jax.grad(after_three)(w)


def mapped_loop(w: jax.Array, x: jax.Array, code: Any) -> Any:
    def of_parts(w: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.map(code.wrapped(lambda part: loss(w, part)), x.reshape(4, 16, 32)))

    return jax.grad(of_parts)(w)


def branch(w: jax.Array, x: jax.Array, code: Any) -> Any:
    def of_branch(w: jax.Array) -> jax.Array:
        named = lambda x: checkpoint_name(layer(x, w)[0], "in a branch")  # noqa: E731
        return jnp.sum(jax.lax.cond(x[0, 0] > 0, named, lambda x: x, x) ** 2)

    return jax.grad(of_branch)(w)


def per_example(w: jax.Array, x: jax.Array, code: Any) -> Any:
    gradient = jax.grad(lambda w, row: loss(w, row[None]))
    return jnp.sum(jax.vmap(gradient, in_axes=(None, 0))(w, x), axis=0)


@pytest.fixture(autouse=True)
def undo() -> Iterator[None]:
    yield
    stop()


AS_WRITTEN = PolicyChange()


def recorded(step: Step, folder: Path, change: PolicyChange = AS_WRITTEN) -> ForwardGraph:
    record = folder / "graph.json"
    apply_policy(replace(change, record=str(record)))
    jax.jit(lambda w, x: step(w, x, Code())).lower(W, X)
    stop()
    return forward_graph_at(record)


def places_in(
    step: Step, folder: Path, change: PolicyChange = AS_WRITTEN
) -> tuple[PolicyPlace, ...]:
    return places_of(recorded(step, folder, change))


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        (keyword, "jax.grad(rematerialised(…), …)"),
        (negative, "jax.grad(rematerialised(…), …)"),
        (two_arguments, "jax.grad(rematerialised(…, (1,)), …)"),
        (penalised, "jax.grad(rematerialised(…), …)"),
        (remat, "jax.remat(…, policy=policy)"),
        (accumulated, "jax.grad(rematerialised(…), …)"),
        (counted_loop, "fori_loop over the body jax.checkpoint(body, policy=policy, prevent_cse"),
        (mapped_loop, "map over the body jax.checkpoint(body, policy=policy, prevent_cse"),
    ],
)
def test_the_printed_code_written_by_hand_lowers_to_what_is_compiled(
    step: Step, printed: str, tmp_path: Path
) -> None:
    def lowered(code: Any) -> str:
        return str(jax.jit(lambda w, x: step(w, x, code)).lower(W, X).as_text())

    place = places_in(step, tmp_path)[0]
    change = next(change for change in presets(place) if "dots_saveable" in change.code)
    assert printed in change.code and "scan" not in change.code
    assert change.code.count(".py:") == (2 if step is two_arguments else 1)
    code: dict[str, Any] = {"rematerialised": Code.rematerialised}
    exec(change.code, code)
    by_hand = lowered(Code(**code))
    written = lowered(Code())
    apply_policy(change.policy)
    assert lowered(Code()) == by_hand != written


@pytest.mark.parametrize("step", [per_example, branch, counted_loop, mapped_loop])
def test_a_searched_policy_keeps_the_values_that_it_lists(step: Step, tmp_path: Path) -> None:
    place = places_in(step, tmp_path)[0]
    kept = keep_within(place.values, place.saved_bytes // 2, target_device("h200"))
    assert kept is not None and kept.groups
    change = chosen_values(kept, place)
    changed = places_in(step, tmp_path / "changed", change.policy)
    (after,) = (other for other in changed if other.kind == place.kind)
    needed = {value.key for value in after.values if value.needed and value.key is not None}
    assert needed == {group.key for group in kept.groups}


def test_a_checkpoint_of_a_small_part_leaves_the_rest_to_the_gradient(tmp_path: Path) -> None:
    def step(w: jax.Array, x: jax.Array, code: Any) -> Any:
        exponential = jax.checkpoint(lambda x: jnp.exp(x) * 2)
        return jax.grad(lambda w: loss(w, exponential(x @ w)))(w)

    (own,) = places_in(step, tmp_path)
    everything = next(change for change in presets(own) if change.text.startswith("keep every"))
    places = places_in(step, tmp_path / "everything", everything.policy)
    primitives = {
        place.kind: {value.key.primitive for value in place.values if value.needed and value.key}
        for place in places
    }
    assert "exp" in primitives["checkpoint"] and "cos" not in primitives["checkpoint"]
    assert "cos" in primitives["gradient"] and "exp" not in primitives["gradient"]


def test_names_in_a_branch_and_a_gradient_in_a_while_loop_are_seen() -> None:
    traced = jax.jit(lambda w, x: branch(w, x, Code())).trace(W, X)
    assert forward_graph(traced.jaxpr).names == ("in a branch",)

    def trained(w: jax.Array, x: jax.Array) -> jax.Array:
        """Steps of gradient descent until the loss is small."""
        small = lambda w: loss(w, x) > 0.1  # noqa: E731
        return jax.lax.while_loop(small, lambda w: w - 0.1 * jax.grad(loss)(w, x), w)

    graph = forward_graph(jax.jit(trained).trace(W, X).jaxpr)
    needed = [value.key.primitive for value in graph.values if value.needed and value.key]
    assert {"cos", "sin", "tanh"} & set(needed)


@pytest.mark.parametrize(("at_start", "kept"), [(True, KeptIn.HOST), (False, KeptIn.CARRY)])
def test_a_name_for_what_a_scan_carries_is_of_the_body_that_gets_it(
    at_start: bool, kept: KeptIn
) -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["residual"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def named(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        x = checkpoint_name(x, "residual") if at_start else x
        y = x + jnp.tanh(jnp.sin(x @ w))
        return (y if at_start else checkpoint_name(y, "residual")), None

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        body = jax.checkpoint(named, policy=policy, prevent_cse=False)
        return jnp.mean(jax.lax.scan(body, x, jnp.stack([w, w]))[0] ** 2)

    (value,) = named_values(jax.jit(jax.grad(loss)).trace(W, X).jaxpr)
    assert (value.name, value.kept) == ("residual", kept)


def test_two_loops_on_a_line_are_counted(tmp_path: Path) -> None:
    def step(w: jax.Array, x: jax.Array, code: Any) -> Any:
        def nested(w: jax.Array) -> jax.Array:
            pairs = jnp.broadcast_to(w, (2, 2, *w.shape))
            return jnp.sum(jax.lax.scan(lambda x, w: jax.lax.scan(layer, x, w), x, pairs)[0])

        return jax.grad(nested)(w)

    place = places_in(step, tmp_path)[0]
    assert "prevent_cse=False), in all 2 such calls of this line" in next(presets(place)).code


def test_an_auxiliary_output_that_is_not_an_array_is_refused(tmp_path: Path) -> None:
    def step(w: jax.Array, x: jax.Array, code: Any) -> Any:
        named = lambda w: (loss(w, x), {"name": "run"})  # noqa: E731
        return jax.grad(named, has_aux=True)(w)[0]

    places = places_in(step, tmp_path)
    with pytest.raises(XlapipeError, match=r"returns 'run' .*; fix: return"):
        applicable("step", ForwardGraph((), ()), places)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sin(nn.Dense(32)(x))


def nnx_gradient_made_before(w: jax.Array, x: jax.Array, code: Any) -> Any:
    gradient = nnx.value_and_grad(loss)
    return gradient(w, x)


def linen_remat_made_before(w: jax.Array, x: jax.Array, code: Any) -> Any:
    block = nn.remat(Block)()
    params = jax.eval_shape(block.init, jax.random.key(0), x)
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), params)
    return jax.grad(lambda params: jnp.sum(block.apply(params, x)))(params)


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        (
            nnx_gradient_made_before,
            "nnx.value_and_grad(nnx.remat(…, policy=policy), …), whose result is called here",
        ),
        (linen_remat_made_before, "nn.remat(…, policy=policy), whose result is called here"),
    ],
)
def test_a_line_that_calls_what_a_library_made_before_says_so(
    step: Step, printed: str, tmp_path: Path
) -> None:
    (place,) = places_in(step, tmp_path)
    assert printed in next(presets(place)).code


class Halves(nnx.Module):
    """A block of two parts, in a list of blocks."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.second = (nnx.Linear(32, 32, rngs=rngs) for _ in range(2))

    def part(self, x: jax.Array, layer: nnx.Linear) -> jax.Array:
        return jnp.tanh(layer(x))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.part(x, self.first)
        return x - self.part(x, self.second)


class Stack(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Halves(rngs) for _ in range(3)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for one in self.blocks:
            x = one(x)
        return x


def stacked(w: jax.Array, x: jax.Array, code: Any) -> Any:
    model = Stack(nnx.Rngs(0))
    return nnx.grad(lambda model, x: jnp.mean(model(x @ w) ** 2))(model, x)


def linen_stack(w: jax.Array, x: jax.Array, code: Any) -> Any:
    class Whole(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(4):
                x = Block()(x)
            return jnp.cos(x)

    params = Whole().init(jax.random.key(0), jnp.ones((2, 32)))
    return jax.grad(lambda p: jnp.mean(Whole().apply(p, x)))(params)  # type: ignore[arg-type]


def half(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.cos(jnp.sin(x @ w))


def two_kinds(w: jax.Array, x: jax.Array, code: Any) -> Any:
    def of_both(w: jax.Array) -> jax.Array:
        y = x
        for _ in range(2):
            y = half(y, w)
        for _ in range(5):
            y, _ = layer(y, w)
        return jnp.mean(y)

    return jax.grad(of_both)(w)


def scanned_once(w: jax.Array, x: jax.Array, code: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(jax.lax.scan(layer, x, w[None])[0]))(w)


@pytest.mark.parametrize(
    ("step", "repeated"),
    [
        (
            stacked,
            [("Halves.__call__", 3, "nnx.remat", None), ("Halves.part", 6, "nnx.remat", 0)],
        ),
        (linen_stack, [("Block.__call__", 4, "nn.remat", None)]),
        (two_kinds, [("half", 2, "jax.checkpoint", None), ("layer", 5, "jax.checkpoint", None)]),
        (two_arguments, []),
        (scanned_once, []),
    ],
)
def test_what_a_forward_pass_calls_several_times_is_found(
    step: Step, repeated: list[tuple[str, int, str, int | None]], tmp_path: Path
) -> None:
    graph = recorded(step, tmp_path)
    assert [(own.function, own.calls, own.form, own.outer) for own in graph.repeated] == repeated
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    for own in graph.repeated:
        path, _, line = own.source.rpartition(":")
        assert path == __file__ and lines[int(line) - 1].lstrip().startswith(("def ", "@nn"))
