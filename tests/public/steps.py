"""Five steps of public projects, as their users jit them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from xlapipe import Workload


@dataclass(frozen=True)
class Step:
    """A function of a public project, jitted by its own wrapper, or to be given to `jax.jit`.

    Attributes:
      args: abstract or concrete arrays, and what else the function takes.
      donate_argnums: of `jax.jit`; empty if `fn` is jitted.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def optax_adamw() -> Step:
    optimizer, params = optax.adamw(1e-3), {"w": f32(256, 128), "v": f32(128, 64), "b": f32(64)}

    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return Step(step, (params, jax.eval_shape(optimizer.init, params), params), (0, 1))


def nnx_linear() -> Step:
    from flax import nnx

    model = nnx.eval_shape(lambda: nnx.Linear(64, 128, rngs=nnx.Rngs(0)))
    state = nnx.eval_shape(lambda: nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param))

    @nnx.jit(donate_argnums=(0, 1))
    def train(model: Any, state: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        state.update(model, gradients)
        return loss

    return Step(train, (model, state, f32(32, 64)))


def equinox_mlp() -> Step:
    import equinox as eqx

    optimizer = optax.adam(1e-3)

    @eqx.filter_jit(donate="all")
    def train(model: Any, state: Any, x: Any) -> Any:
        gradients = eqx.filter_grad(lambda it: jnp.mean(jax.vmap(it)(x) ** 2))(model)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state

    model = eqx.filter_eval_shape(lambda: eqx.nn.MLP(8, 4, 64, 2, key=jax.random.key(0)))
    state = eqx.filter_eval_shape(lambda it: optimizer.init(eqx.filter(it, eqx.is_array)), model)
    return Step(train, (model, state, f32(32, 8)))


def haiku_train() -> Step:
    """A convolutional network with batch normalisation."""
    import haiku as hk

    def forward(x: jax.Array) -> jax.Array:
        x = hk.BatchNorm(True, True, 0.9)(hk.Conv2D(16, 3)(x), is_training=True)
        return hk.Linear(10)(jax.nn.relu(x).mean((1, 2)))

    network = hk.without_apply_rng(hk.transform_with_state(forward))
    optimizer, image = optax.sgd(0.1, momentum=0.9), f32(8, 16, 16, 3)
    params, state = jax.eval_shape(network.init, jax.random.PRNGKey(0), image)

    def train(params: Any, state: Any, momentum: Any, x: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, new_state = network.apply(params, state, x)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), new_state

        gradients, new_state = jax.grad(loss, has_aux=True)(params)
        updates, new_momentum = optimizer.update(gradients, momentum, params)
        return optax.apply_updates(params, updates), new_state, new_momentum

    labels = jax.ShapeDtypeStruct((8,), jnp.int32)
    momentum = jax.eval_shape(optimizer.init, params)
    return Step(train, (params, state, momentum, image, labels), (0, 1, 2))


def numpyro_svi() -> Step:
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    def regression(x: Any, y: Any) -> None:
        prior = numpyro.distributions.Normal(jnp.zeros(8), 1.0).to_event(1)
        weights = numpyro.sample("weights", prior)
        numpyro.sample("y", numpyro.distributions.Normal(x @ weights, 0.1), obs=y)

    guide = autoguide.AutoNormal(regression)
    svi = SVI(regression, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    state = svi.init(jax.random.PRNGKey(0), jnp.ones((64, 8)), jnp.ones(64))
    return Step(svi.update, (state, f32(64, 8), f32(64)), (0,))


STEPS = {step.__name__: step for step in (
    optax_adamw, nnx_linear, equinox_mlp, haiku_train, numpyro_svi
)}  # fmt: skip


def of(step: str) -> Workload:
    """The step as a Workload."""
    made = STEPS[step]()
    return Workload(name=step, fn=made.fn, args=made.args, donate_argnums=made.donate_argnums)
