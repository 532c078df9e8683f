"""Steps of public projects, as their users write them."""

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from xlapipe import Workload


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def equinox_train() -> Workload:
    """A training step under `filter_jit`, which donates model and optimizer state."""
    import equinox as eqx

    optimizer = optax.adam(1e-3)

    @eqx.filter_jit(donate="all")
    def train(model: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(model: Any) -> jax.Array:
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        gradients = eqx.filter_grad(loss)(model)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state

    model = eqx.filter_eval_shape(eqx.nn.MLP, 8, 4, 64, 2, key=jax.random.key(0))
    state = eqx.filter_eval_shape(lambda it: optimizer.init(eqx.filter(it, eqx.is_array)), model)
    return Workload(name="equinox_train", fn=train, args=(model, state, f32(32, 8), f32(32, 4)))


def diffrax_solve() -> Workload:
    """An adaptive solve with the default error checks, which call back into Python."""
    import diffrax

    def solve(y0: jax.Array) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: -y),
            diffrax.Tsit5(),
            0.0,
            1.0,
            0.1,
            y0,
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-4),
        ).ys

    return Workload(name="diffrax_solve", fn=solve, args=(f32(64),))


def optimistix_least_squares() -> Workload:
    import optimistix as optx

    def residuals(coefficients: jax.Array, data: Any) -> jax.Array:
        x, y = data
        return jnp.polyval(coefficients, x) - y

    def fit(start: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        solver = optx.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
        return optx.least_squares(residuals, solver, start, (x, y), throw=False).value

    return Workload(name="optimistix_least_squares", fn=fit, args=(f32(4), f32(128), f32(128)))


def numpyro_svi() -> Workload:
    """An update of stochastic variational inference; it donates the state."""
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x: jax.Array, y: jax.Array) -> None:
        prior = numpyro.distributions.Normal(jnp.zeros(8), 1.0).to_event(1)
        weights = numpyro.sample("weights", prior)
        numpyro.sample("y", numpyro.distributions.Normal(x @ weights, 0.1), obs=y)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), Trace_ELBO())
    state = svi.init(jax.random.PRNGKey(0), jnp.ones((64, 8)), jnp.ones(64))
    args = (state, f32(64, 8), f32(64))
    return Workload(name="numpyro_svi", fn=svi.update, args=args, donate_argnums=0)


def jraph_network() -> Workload:
    import jraph

    network = jraph.GraphNetwork(
        update_edge_fn=lambda edges, sent, received, u: edges + sent.sum(1, keepdims=True),
        update_node_fn=lambda nodes, sent, received, u: nodes + received.sum(1, keepdims=True),
    )

    def update(nodes: Any, edges: Any, senders: Any, receivers: Any) -> Any:
        counts = jnp.array([20]), jnp.array([40])
        graph = jraph.GraphsTuple(nodes, edges, receivers, senders, None, *counts)
        return network(graph).nodes

    args = (f32(20, 8), f32(40, 4), i32(40), i32(40))
    return Workload(name="jraph_network", fn=update, args=args)


def haiku_train() -> Workload:
    """A convolutional network with batch normalisation; it donates parameters and state."""
    import haiku as hk

    def forward(x: jax.Array) -> jax.Array:
        x = hk.Conv2D(16, 3)(x)
        x = hk.BatchNorm(True, True, 0.9)(x, is_training=True)
        return hk.Linear(10)(jax.nn.relu(x).mean((1, 2)))

    network = hk.without_apply_rng(hk.transform_with_state(forward))
    optimizer = optax.sgd(0.1, momentum=0.9)
    image = f32(8, 16, 16, 3)
    params, state = jax.eval_shape(network.init, jax.random.PRNGKey(0), image)
    momentum = jax.eval_shape(optimizer.init, params)

    def train(params: Any, state: Any, momentum: Any, x: jax.Array, labels: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits, new_state = network.apply(params, state, x)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), new_state

        gradients, new_state = jax.grad(loss, has_aux=True)(params)
        updates, new_momentum = optimizer.update(gradients, momentum, params)
        return optax.apply_updates(params, updates), new_state, new_momentum

    args = (params, state, momentum, image, i32(8))
    return Workload(name="haiku_train", fn=train, args=args, donate_argnums=(0, 1, 2))


def linen_decode() -> Workload:
    """One token through flax's own attention with its cache, which the step donates."""
    attention = linen.MultiHeadDotProductAttention(num_heads=4, qkv_features=64, decode=True)
    whole, token = f32(2, 128, 64), f32(2, 1, 64)
    variables = jax.eval_shape(attention.init, jax.random.key(0), whole)

    def decode(cache: Any, params: Any, x: jax.Array) -> Any:
        return attention.apply({"params": params, "cache": cache}, x, mutable=["cache"])

    args = (variables["cache"], variables["params"], token)
    return Workload(name="linen_decode", fn=decode, args=args, donate_argnums=0)


def _tunix_qwen3() -> Any:
    """tunix's module of Qwen3, without the packages around it.

    Importing those loads data pipelines and trainers with their many dependencies.
    """
    if "tunix.models.qwen3.model" in sys.modules:
        return sys.modules["tunix.models.qwen3.model"]
    spec = importlib.util.find_spec("tunix")
    assert spec is not None
    (root,) = spec.submodule_search_locations or ()
    for name in ("tunix", "tunix.models", "tunix.models.qwen3", "tunix.generate", "tunix.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(root).joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    return importlib.import_module("tunix.models.qwen3.model")


def _tunix_model(qwen3: Any) -> Any:
    config = qwen3.ModelConfig(
        num_layers=1,
        vocab_size=512,
        embed_dim=64,
        hidden_dim=128,
        num_heads=4,
        head_dim=16,
        num_kv_heads=2,
        rope_theta=10_000,
        norm_eps=1e-6,
    )
    return nnx.eval_shape(lambda: qwen3.Qwen3(config, rngs=nnx.Rngs(0)))


def tunix_train() -> Workload:
    """A supervised step of tunix's Qwen3 under `nnx.jit`, which updates the model in place."""
    model = _tunix_model(_tunix_qwen3())
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param))

    @nnx.jit(donate_argnums=(0, 1))
    def train(model: Any, optimizer: Any, tokens: jax.Array, positions: jax.Array) -> Any:
        mask = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), bool))[None]

        def loss(model: Any) -> jax.Array:
            logits, _ = model(tokens, positions, None, mask)
            targets = tokens[:, 1:]
            losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], targets)
            return losses.mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    args = (model, optimizer, i32(2, 32), i32(2, 32))
    return Workload(name="tunix_train", fn=train, args=args)


def tunix_decode() -> Workload:
    """One token of tunix's Qwen3 with its cache, which the step donates."""
    graph, state = nnx.split(_tunix_model(_tunix_qwen3()))
    rows = f32(2, 128, 2, 16)
    cache = {f"layer_{n}": {"k": rows, "v": rows, "end_index": i32(2)} for n in range(1)}

    def decode(cache: Any, state: Any, tokens: jax.Array, positions: jax.Array) -> Any:
        mask = jnp.ones((2, 1, 128), bool)
        return nnx.merge(graph, state)(tokens, positions, cache, mask)

    args = (cache, state, i32(2, 1), i32(2, 1))
    return Workload(name="tunix_decode", fn=decode, args=args, donate_argnums=0)
