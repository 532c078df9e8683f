"""The code that `choose --remat` prints, pasted into a step, at other batches and sequences."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx

from xlapipe.compile.lowering.chosen_policy import apply_policy, stop
from xlapipe.compile.lowering.forward_graph import ForwardValue
from xlapipe.compile.lowering.forward_values import forward_graph
from xlapipe.compile.lowering.policy_change import PolicyChange
from xlapipe.search.choosing.compiles import forward_graph_at, target_device
from xlapipe.search.choosing.policies import PolicyPlace, chosen_values, places_of
from xlapipe.search.choosing.search import keep_within

pytestmark = pytest.mark.jax

WIDTH, HEADS, LAYERS = 32, 4, 2
# The batch and the sequence for which a policy is chosen: both are sizes of weights too.
CHOSEN = (HEADS, WIDTH)
# The last ones are sizes of weights, and of a head.
OTHERS = ((2, 16), (6, 48), (WIDTH, WIDTH // HEADS))
Policy = Callable[..., Any] | None
Weights = dict[str, jax.Array]
Step = Callable[[Any, jax.Array], Any]


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    batch, length, _ = q.shape
    q, k, v = (x.reshape(batch, length, HEADS, WIDTH // HEADS) for x in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 3
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(batch, length, WIDTH)


def normalised(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def block(x: jax.Array, weights: Weights) -> tuple[jax.Array, None]:
    q, k, v = jnp.split(normalised(x) @ weights["qkv"], 3, axis=-1)
    x = x + attention(q, k, v)
    return x + jax.nn.gelu(normalised(x) @ weights["up"]) @ weights["down"], None


def weights() -> Weights:
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    own = {name: jnp.zeros((LAYERS, *shape)) for name, shape in shapes.items()}
    return {**own, "embedding": jnp.zeros((64, WIDTH)), "positions": jnp.zeros((99, WIDTH))}


def embedded(own: Weights, tokens: jax.Array) -> jax.Array:
    return own["embedding"][tokens] + own["positions"][: tokens.shape[1]]


def in_loop(policy: Policy) -> Step:
    def loss(own: Weights, tokens: jax.Array) -> jax.Array:
        x = embedded(own, tokens)
        for layer in range(LAYERS):
            x, _ = block(x, {name: own[name][layer] for name in ("qkv", "up", "down")})
        return jnp.mean(x @ own["embedding"].T)

    def with_policy(own: Weights, tokens: jax.Array) -> jax.Array:
        if policy is None:
            return loss(own, tokens)
        return jax.checkpoint(lambda own: loss(own, tokens), policy=policy)(own)

    return jax.value_and_grad(with_policy)


def scanned(policy: Policy) -> Step:
    body = block if policy is None else jax.checkpoint(block, policy=policy, prevent_cse=False)

    def loss(own: Weights, tokens: jax.Array) -> jax.Array:
        layers = {name: own[name] for name in ("qkv", "up", "down")}
        return jnp.mean(jax.lax.scan(body, embedded(own, tokens), layers)[0])

    return jax.grad(loss)


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = (nn.Dense(WIDTH)(nn.LayerNorm()(x)) for _ in range(3))
        x = x + attention(q, k, v)
        return x + nn.Dense(WIDTH)(nn.silu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(64, WIDTH)(tokens)
        for _ in range(LAYERS):
            x = LinenBlock()(x)
        return x


def linen(policy: Policy) -> Step:
    def loss(own: Any, tokens: jax.Array) -> jax.Array:
        def inner(own: Any) -> Any:
            return jnp.mean(LinenModel().apply(own, tokens) ** 2)  # type: ignore[operator]

        return inner(own) if policy is None else jax.checkpoint(inner, policy=policy)(own)

    return jax.value_and_grad(loss)


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + attention(*jnp.split(self.qkv(self.norm(x)), 3, axis=-1))
        return x + self.down(jnp.tanh(self.up(x)))


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(64, WIDTH, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens)
        for one in self.blocks:
            x = one(x)
        return x


def nnx_step(policy: Policy) -> Step:
    def loss(model: NnxModel, tokens: jax.Array) -> jax.Array:
        return jnp.mean(model(tokens) ** 2)

    with_policy = loss if policy is None else nnx.remat(loss, policy=policy)
    graph = nnx.graphdef(NnxModel(nnx.Rngs(0)))

    def step(state: Any, tokens: jax.Array) -> Any:
        value, gradients = nnx.value_and_grad(with_policy)(nnx.merge(graph, state), tokens)
        return value, gradients

    return step


def convolved(policy: Policy) -> Step:
    """Convolutions over sequences, with batch norms; the batch is the number of channels too."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = nn.Conv(WIDTH, (3,))(tokens[..., None].astype(jnp.float32))
            for _ in range(LAYERS):
                x = x + nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(WIDTH, (3,))(x)))
            return nn.Dense(HEADS)(nn.avg_pool(x, (2,), (2,)))

    def loss(own: Any, tokens: jax.Array) -> jax.Array:
        def inner(own: Any) -> Any:
            variables = Model().init(jax.random.key(0), tokens)
            y: Any = Model().apply({**variables, "params": own}, tokens, mutable=["batch_stats"])
            return jnp.mean(jnp.tanh(y[0]) ** 2)

        return inner(own) if policy is None else jax.checkpoint(inner, policy=policy)(own)

    return jax.value_and_grad(loss)


def per_example(policy: Policy) -> Step:
    """Gradients of each example of a batch, under `jax.vmap`."""

    def loss(own: Weights, tokens: jax.Array) -> jax.Array:
        def inner(own: Weights) -> jax.Array:
            x = embedded(own, tokens[None])
            return jnp.mean(block(x, {name: own[name][0] for name in ("qkv", "up", "down")})[0])

        return inner(own) if policy is None else jax.checkpoint(inner, policy=policy)(own)

    return jax.vmap(jax.grad(loss), in_axes=(None, 0))


def model_of(step: Callable[[Policy], Step]) -> Any:
    if step is linen:
        return jax.eval_shape(LinenModel().init, jax.random.key(0), jnp.zeros((2, 8), int))
    if step is convolved:
        kernels = {f"Conv_{n}": (3, WIDTH if n else 1, WIDTH) for n in range(LAYERS + 1)}
        own: Any = {
            n: {"kernel": jnp.zeros(s), "bias": jnp.zeros(WIDTH)} for n, s in kernels.items()
        }
        norm = {"scale": jnp.zeros(WIDTH), "bias": jnp.zeros(WIDTH)}
        own |= {f"BatchNorm_{n}": norm for n in range(LAYERS)}
        return own | {"Dense_0": {"kernel": jnp.zeros((WIDTH, HEADS)), "bias": jnp.zeros(HEADS)}}
    return nnx.state(NnxModel(nnx.Rngs(0))) if step is nnx_step else weights()


@pytest.fixture(autouse=True)
def undo() -> Iterator[None]:
    yield
    stop()


def place_in(step: Callable[[Policy], Step], folder: Path) -> PolicyPlace:
    record = folder / "graph.json"
    apply_policy(PolicyChange(record=str(record)))
    traced(step(None), model_of(step), CHOSEN).lower()
    stop()
    return places_of(forward_graph_at(record))[0]


def traced(step: Step, model: Any, size: tuple[int, int]) -> Any:
    return jax.jit(step).trace(model, jax.ShapeDtypeStruct(size, jnp.int32))


def origins(values: Any) -> Counter[tuple[str, str | None]]:
    """How many values each operation of each line makes."""
    own: list[ForwardValue] = [v for v in values if v.key is not None and v.differentiated]
    return Counter((v.key.primitive, v.source) for v in own if v.key is not None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "share"),
    [
        *((step, 0.25) for step in (in_loop, scanned, linen, nnx_step, convolved, per_example)),
        (scanned, 0.6),
    ],
)
def test_the_printed_code_keeps_the_same_values_at_other_sizes(
    step: Callable[[Policy], Step], share: float, tmp_path: Path
) -> None:
    place = place_in(step, tmp_path)
    kept = keep_within(place.values, int(share * place.saved_bytes), target_device("h200"))
    assert kept is not None and len(kept.groups) > 1
    promised = set(origins(value for group in kept.groups for value in group.values))
    searched = set(origins(place.values))
    code: dict[str, Any] = {}
    exec(chosen_values(kept, place).code, code)

    def kept_at(size: tuple[int, int]) -> Counter[tuple[str, str | None]]:
        graph = forward_graph(traced(step(code["policy"]), model_of(step), size).jaxpr)
        return origins(value for value in graph.values if value.needed)

    at_chosen = kept_at(CHOSEN)
    assert set() < searched.intersection(at_chosen) <= promised
    for size in OTHERS:
        assert kept_at(size) == at_chosen, size
