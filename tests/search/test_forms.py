"""Other forms of a step: offered only where their results are equal, which the CPU computes."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.folders import ROOT, STEPS
from tests.steps import batch_steps, form_steps
from xlapipe.cli import main
from xlapipe.compile.lowering.changed_functions import AppliedPolicy
from xlapipe.compile.lowering.chosen_policy import apply_policy, apply_to_libraries, stop
from xlapipe.compile.lowering.forward_graph import FormSite, ForwardGraph
from xlapipe.compile.lowering.jaxprs import equations
from xlapipe.compile.lowering.pasted.loss_in_blocks import evaluated, loss_in_blocks
from xlapipe.compile.lowering.pasted.scanned import scanned as plain_scanned
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.errors import WorkloadError
from xlapipe.search.candidate import StepChange
from xlapipe.search.choosing import forms
from xlapipe.search.choosing.compiles import forward_graph_at
from xlapipe.search.choosing.forms import form_changes, refused_forms

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
    apply_to_libraries()
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
    apply_to_libraries()
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
    own = by_kind(changes(step, args, tmp_path), "vmap")
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


@pytest.mark.parametrize(
    ("step", "refused"),
    [
        (of_axis, "axis_name is given"),
        (of_bits, "bits of rbg's keys depend on how many are mapped"),
        (printing, "it has side effects"),
        (of_constants, None),
        (small, ""),
        (whole, "axis_size is given"),
    ],
)
def test_a_vmap_with_another_result_or_little_use_has_no_blocks(
    step: Callable[..., Any], refused: str | None, tmp_path: Path
) -> None:
    graph = recorded(step, (uniform(64, 8),), tmp_path)
    assert [*form_changes(Written(), graph)] == []  # type: ignore[arg-type]
    assert [site.refused for site in graph.forms] == ([] if refused is None else [refused])
    texts = [*refused_forms(Written(), graph)]  # type: ignore[arg-type]
    assert [text.rpartition("): ")[2] for text in texts] == [f"{refused}."] * bool(refused)


def test_inner_and_outer_vmaps_of_a_line_are_distinguished(tmp_path: Path) -> None:
    def both(x: jax.Array) -> jax.Array:
        pairs = jax.vmap(jax.vmap(lambda a, b: jnp.outer(a, b).max(), (None, 0)), (0, None))(x, x)
        return pairs.sum()

    args = (uniform(64, 4),)
    sites = recorded(both, args, tmp_path).forms
    assert {site.kind for site in sites} == {"vmap"}
    outer, inner = sorted(sites, key=lambda site: -site.largest_bytes)
    assert outer.source == inner.source and outer.column < inner.column
    assert outer.largest_bytes == 64 * 64 * 16 * 4
    for change in changes(both, args, tmp_path / "again"):
        assert_equal(both, args, change)


def test_blocks_of_small_values_and_sharded_steps_are_left_out() -> None:
    graph = ForwardGraph((), (), forms=(FormSite("vmap", "a.py:1", 0, 4096, 2**22),))
    large = type("Large", (Written,), {"plan": type("P", (), {"totals": Totals(2**26)})})
    sharded = type("Sharded", (Written,), {"facts": type("F", (), {"mesh": {"data": 2}})})
    (text,) = refused_forms(sharded(), graph)
    assert text == "No vmap in blocks (a.py:1): over a mesh, what it maps may be sharded."
    assert [*form_changes(large(), graph)] == [*form_changes(sharded(), graph)] == []
    assert len([*form_changes(Written(), graph)]) == 3  # type: ignore[arg-type]


def mlp_weights() -> Any:
    return {"first": uniform(16, 16) - 0.5, "second": uniform(16, 16) - 0.4}


def pairs(batch: int = 8) -> Any:
    return {"x": uniform(batch, 16) - 0.5, "y": uniform(batch, 16)}


def tokens() -> tuple[jax.Array, jax.Array]:
    both = jax.random.randint(KEY, (8, 13), 0, batch_steps.VOCABULARY)
    return both[:, :-1], both[:, 1:]


IMAGES = ({"kernel": uniform(4, 3, 3, 3) - 0.5, "head": uniform(4, 5)}, uniform(8, 3, 8, 8))
MEANS = {
    "optax": (batch_steps.optax_loss, (batch_steps.gpt_weights(), *tokens())),
    "picked": (batch_steps.picked_loss, (batch_steps.gpt_weights(), *tokens())),
    "one hot": (batch_steps.one_hot_loss, (batch_steps.gpt_weights(), *tokens())),
    "mlp": (batch_steps.mlp_loss, (mlp_weights(), pairs())),
    "convolution": (batch_steps.convolution_loss, (*IMAGES, jnp.arange(8) % 5)),
}


def by_kind(own: list[StepChange], kind: str) -> list[StepChange]:
    return [change for change in own if change.policy is not None and change.policy.kind == kind]


def gradient_of(loss: Callable[..., Any]) -> Callable[..., Any]:
    has_aux = loss is batch_steps.mlp_loss

    def step(*args: Any) -> Any:
        return jax.value_and_grad(loss, has_aux=has_aux)(*args)

    return step


SLOW = pytest.mark.slow
LOSSES = ["picked", pytest.param("optax", marks=SLOW), pytest.param("one hot", marks=SLOW)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOSSES, "mlp", "convolution"])
def test_microbatches_of_a_mean_over_the_batch_are_equal(name: str, tmp_path: Path) -> None:
    loss, args = MEANS[name]
    own = by_kind(changes(gradient_of(loss), args, tmp_path), "microbatches")
    counts = [change.text.partition(" (")[0] for change in own]
    assert counts == [f"{count} microbatches of {8 // count}" for count in (2, 4)]
    assert_equal(gradient_of(loss), args, own[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_in_blocks_is_equal(name: str, tmp_path: Path) -> None:
    loss, args = MEANS[name]
    (change,) = by_kind(changes(gradient_of(loss), args, tmp_path), "loss")
    assert "4 blocks of 2" in change.text
    assert "write jax.value_and_grad(loss_in_blocks(…)) for" in change.code
    assert_equal(gradient_of(loss), args, change)


class Sharded(Written):
    facts = type("Facts", (), {"mesh": {"data": 2}})


def test_over_a_mesh_parts_of_flat_rows_have_every_nth_example(tmp_path: Path) -> None:
    args = mlp_weights(), {"x": uniform(16, 4, 16), "y": uniform(16, 4, 16) - 0.5}
    step = gradient_of(batch_steps.flat_loss)
    own = [*form_changes(Sharded(), recorded(step, args, tmp_path))]  # type: ignore[arg-type]
    (change,) = by_kind(own, "loss")
    assert "size // parts, parts, -1" in change.code
    assert_equal(step, args, change)


SUMS = {
    "padded": (batch_steps.padded_loss, MEANS["optax"][1]),
    "masked": (batch_steps.masked_loss, (mlp_weights(), pairs())),
    "summed": (batch_steps.summed_loss, (mlp_weights(), pairs())),
}


@pytest.mark.parametrize("name", [pytest.param("padded", marks=SLOW), "masked", "summed"])
def test_a_loss_that_is_a_sum_over_the_batch_has_blocks_and_no_microbatches(
    name: str, tmp_path: Path
) -> None:
    loss, args = SUMS[name]
    (change,) = changes(gradient_of(loss), args, tmp_path)
    assert change.text.startswith("loss in 4 blocks of 2 (") and "mean=False" in change.code
    assert_equal(gradient_of(loss), args, change)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "function"), [("loss", "loss_in_blocks"), ("microbatches", "accumulated")]
)
def test_parts_of_a_batch_are_joined_with_a_policy(
    kind: str, function: str, tmp_path: Path
) -> None:
    loss, args = MEANS["optax"]
    graph = recorded(gradient_of(loss), args, tmp_path)
    own = [*form_changes(Written(), graph)]  # type: ignore[arg-type]
    lines = tuple(site.source for site in graph.sites if site.kind == "scan")
    source = "import jax\npolicy = jax.checkpoint_policies.nothing_saveable\n"
    policy = StepChange(
        "recompute", source, policy=PolicyChange(kind="scan", source=source, lines=lines)
    )
    parts = by_kind(own, kind)[0]
    both = policy.joined(parts) if kind == "loss" else parts.joined(policy)
    assert "policy =" in both.code and f"def {function}" in both.code
    texts = set()
    for change in (policy, parts, both):
        assert_equal(gradient_of(loss), args, change)
        apply_policy(change.policy or PolicyChange())
        texts.add(jax.jit(partial(gradient_of(loss))).lower(*args).as_text())
        stop()
    assert len(texts) == 3


@pytest.mark.slow
def test_where_nothing_fits_policies_are_joined_with_microbatches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = "tests.steps.public_forms:step(name='gpt',small=True)"
    assert main(["choose", step, "--memory", "100", "--json"]) == 1
    rows = {row["change"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    joined = {tuple(text.split("; ")): row for text, row in rows.items() if text and "; " in text}
    assert joined and all("microbatches" in first for first, _ in joined)
    for names, row in joined.items():
        assert all(row["total_bytes"] < rows[name]["total_bytes"] for name in names)


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("btd,vd->btv", ((4, 3, 8), (5, 8))),
        ("bhtd,dhbs->bhts", ((2, 3, 4, 5), (5, 3, 2, 6))),
        ("btdc,cdv->btv", ((2, 3, 4, 5), (5, 4, 6))),
    ],
)
def test_the_gradient_of_a_wide_input_of_a_product_is_not_rounded(spec: str, shapes: Any) -> None:
    def of(*values: jax.Array) -> jax.Array:
        return jnp.sin(jnp.einsum(spec, *values, preferred_element_type=jnp.float32)).sum()

    narrow = [uniform(*shape).astype(jnp.bfloat16) for shape in shapes]
    wide = [value.astype(jnp.float32) for value in narrow]
    closed = jax.make_jaxpr(of)(*narrow)
    expected = jax.grad(of, (0, 1))(*wide)
    for args in (wide, [narrow[0], wide[1]], narrow):
        found = jax.grad(lambda *values: evaluated(closed, values)[0], (0, 1))(*args)
        for a, b, given in zip(expected, found, args, strict=True):
            assert (b.shape, b.dtype) == (given.shape, given.dtype)
            np.testing.assert_allclose(a, b.astype(jnp.float32), atol=2e-2 * np.max(np.abs(a)))


def test_a_loss_in_blocks_computes_no_product_twice() -> None:
    loss, args = MEANS["optax"]

    def products(function: Callable[..., Any]) -> int:
        closed = jax.make_jaxpr(jax.value_and_grad(function))(*args)
        return sum(equation.primitive.name == "dot_general" for equation in equations(closed.jaxpr))

    assert products(loss_in_blocks(loss)) == products(loss)


@pytest.mark.parametrize(
    "loss",
    [
        batch_steps.paired_loss,
        batch_steps.normalised_loss,
        batch_steps.contrastive_loss,
        batch_steps.dropout_loss,
        batch_steps.root_loss,
        batch_steps.shifted_loss,
        batch_steps.ranked_loss,
        batch_steps.clipped,
    ],
)
def test_what_mixes_the_batch_has_no_microbatches(
    loss: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = mlp_weights(), pairs()
    monkeypatch.chdir(ROOT)
    graph = recorded(gradient_of(loss), args, tmp_path)
    assert not any(str(ROOT) in text for text in refused_forms(Written(), graph))  # type: ignore[arg-type]
    refused = {site.kind: site.refused for site in graph.forms}
    assert refused["microbatches"]
    if loss is not batch_steps.dropout_loss:  # before the products whose results are large
        assert refused["loss"]


def closing(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step whose loss closes over its batch."""

    def step(weights: Any, tokens: Any, targets: Any) -> Any:
        scale = jnp.float32(2)
        return jax.value_and_grad(lambda w: scale * loss(w, tokens, targets))(weights)

    return step


@pytest.mark.slow
def test_a_batch_that_the_loss_closes_over_is_split(tmp_path: Path) -> None:
    loss, args = MEANS["optax"]
    own = changes(closing(loss), args, tmp_path)
    for kind in ("microbatches", "loss"):
        change = by_kind(own, kind)[0]
        assert "batch=(1, 2)" in change.code
        assert "# with targets, tokens as last arguments of the function" in change.code
        assert_equal(closing(loss), args, change)


def test_a_batch_of_a_helper_that_is_closed_over_is_refused(tmp_path: Path) -> None:
    def step(weights: Any, batch: Any) -> Any:
        def error() -> jax.Array:
            return jnp.mean((batch["x"] @ weights["first"] - batch["y"]) ** 2)

        return jax.grad(lambda w: error() * jnp.sum(w["second"]))(weights)

    graph = recorded(step, (mlp_weights(), pairs()), tmp_path)
    (text,) = refused_forms(Written(), graph)  # type: ignore[arg-type]
    assert text.startswith("No microbatches and no loss in blocks (")
    assert "the variables that the function closes over, but the weights, none has a batch" in text


def unchanged(gradient: Any) -> Any:
    return gradient


def nnx_step() -> tuple[Callable[..., Any], Any]:
    model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))

    def loss(model: nnx.Linear, batch: Any) -> jax.Array:
        return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

    def step(form: Any, state: Any, batch: Any) -> Any:
        if form.__name__ == "loss_in_blocks":
            return nnx.value_and_grad(form(loss))(nnx.merge(graph, state), batch)
        return form(nnx.value_and_grad(loss))(nnx.merge(graph, state), batch)

    graph, state = nnx.split(model)
    return step, (state, pairs())


def equinox_step() -> tuple[Callable[..., Any], Any]:
    import equinox as eqx

    model = eqx.nn.MLP(16, 16, 32, 1, key=KEY)
    arrays, static = eqx.partition(model, eqx.is_array)

    def loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    def step(form: Any, arrays: Any, batch: Any) -> Any:
        own = eqx.combine(arrays, static), batch["x"], batch["y"]
        if form.__name__ == "loss_in_blocks":
            return eqx.filter_value_and_grad(form(loss))(*own)
        return form(eqx.filter_value_and_grad(loss))(*own)

    return step, (arrays, pairs())


@pytest.mark.parametrize(
    ("form", "batch"), [(nnx_step, (1,)), pytest.param(equinox_step, (1, 2), marks=SLOW)]
)
def test_the_printed_microbatches_of_libraries_are_what_was_compiled(
    form: Callable[..., Any], batch: tuple[int, ...], tmp_path: Path
) -> None:
    step, args = form()
    as_written = partial(step, unchanged)
    own = changes(as_written, args, tmp_path)
    expected = jax.tree.leaves(jax.jit(as_written)(*args))
    for kind, name in (("microbatches", "accumulated"), ("loss", "loss_in_blocks")):
        change = by_kind(own, kind)[0]
        assert f"batch={batch}" in change.code
        assert_equal(as_written, args, change)
        joined = replace(PolicyChange(), also=change.policy)
        assert_equal(as_written, args, StepChange("joined", policy=joined))
        code: dict[str, Any] = {}
        exec(change.code, code)
        found = jax.tree.leaves(jax.jit(partial(step, code[name]))(*args))
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


LOOP = """
import jax
import jax.numpy as jnp


def block(x, w):
    return x + jnp.tanh(x @ w["a"]) @ w["b"]


def loss(weights, x):
    for w in weights:
        x = block(x, w)
    return jnp.mean(x**2)


def step(weights, x):
    return jax.value_and_grad(loss)(weights, x)
"""


@pytest.mark.parametrize("equal", [True, False])
def test_a_loop_over_equal_blocks_is_a_scan(equal: bool, tmp_path: Path) -> None:
    path = tmp_path / "looped.py"
    path.write_text(LOOP)
    weights = [{"a": uniform(8, 16) - 0.5, "b": uniform(16, 8) - 0.5} for _ in range(4)]
    if not equal:
        weights[2] = {"a": uniform(8, 24), "b": uniform(24, 8)}
    args = weights, uniform(16, 8)

    def imported() -> Any:
        spec = importlib.util.spec_from_file_location("looped", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.step

    apply_policy(PolicyChange(record=str(tmp_path / "graph.json")))
    written = jax.jit(partial(imported())).lower(*args)
    stop()
    graph = forward_graph_at(tmp_path / "graph.json")
    (change,) = by_kind([*form_changes(Written(), graph)], "loop")  # type: ignore[arg-type]
    assert "write `x = scanned(lambda x, w: block(x, w), x, weights)` for the loop" in change.code
    assert change.policy is not None
    apply_policy(change.policy)
    step = imported()
    if not equal:
        with pytest.raises(WorkloadError, match="iterations of the loop differ in more than"):
            jax.jit(step).lower(*args)
        return
    changed = jax.jit(step).lower(*args)
    assert "stablehlo.while" in changed.as_text() and "while" not in written.as_text()
    pairs = (jax.tree.leaves(form.compile()(*args)) for form in (written, changed))
    for a, b in zip(*pairs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * np.max(np.abs(a)))


def drawing(items: list[Any]) -> Callable[..., Any]:
    """The body of a loop that draws the weight from an iterator."""
    own = iter([*items, *items, *items])
    return lambda x, w: x + next(own)["a"]


def counting(items: list[Any]) -> Callable[..., Any]:
    numbers = iter(range(12))
    return lambda x, w: x * next(numbers) + w["a"]


def changing(items: list[Any]) -> Callable[..., Any]:
    """The body of a loop that writes to its item, as batch norm of nnx does."""
    return lambda x, w: (x + w["a"], w.update(a=w["a"] + x))[0]


def alike(items: list[Any]) -> Callable[..., Any]:
    return lambda x, w: jax.nn.relu(x @ jnp.asarray(np.tril(np.ones((4, 4)))) + w["a"])


@pytest.mark.parametrize(
    ("body_of", "more", "reason"),
    [
        (drawing, {}, "iterations of the loop differ in more than their items"),
        (counting, {}, "iterations of the loop differ in more than their items"),
        (changing, {}, "an iteration of the loop changes its item"),
        (alike, {"rate": 0.5}, "the items of the loop have numbers of Python"),
        (alike, {}, ""),
    ],
)
def test_a_loop_is_a_scan_only_where_iterations_differ_in_their_items(
    body_of: Callable[..., Any], more: dict[str, float], reason: str
) -> None:
    scanned = AppliedPolicy("loop", {}, (), None).scanned(plain_scanned)

    def step(x: jax.Array, items: list[Any]) -> Any:
        return scanned(body_of(items), x, [{**item, **more} for item in items])

    args = uniform(4), [{"a": uniform(4)}] * 3
    if not reason:
        assert "scan" in str(jax.make_jaxpr(step)(*args))
        return
    with pytest.raises(WorkloadError, match=reason) as refused:
        jax.jit(step).lower(*args)
    assert refused.type is WorkloadError, "choose lists it"


def test_a_loop_without_a_source_file_has_no_scan() -> None:
    assert forms._scan_of("<ipython-input-1>:3") is None


@pytest.mark.slow
def test_forms_over_a_mesh_that_splits_the_batch_are_equal(tmp_path: Path) -> None:
    out = tmp_path / "forms.json"
    subprocess.run(
        [sys.executable, STEPS / "forms_on_cpus.py", out],
        check=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": "."},
    )
    record = json.loads(out.read_text())
    assert record["forms"].keys() == {
        *(f"{count} microbatches of {16 // count}" for count in (2, 4)),
        "loss in 4 blocks of 4",
    }
    for name, form in record["forms"].items():
        assert form["error"] < TOLERANCE and form["gathers"] == 0
        assert "loss" in name or form["temp_bytes"] < 0.6 * record["written_bytes"]
