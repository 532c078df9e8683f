"""Steps of numpyro, blackjax and flowjax."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.public.step import Step, f32, key


def _regression(x: Any, y: Any) -> None:
    import numpyro

    prior = numpyro.distributions.Normal(jnp.zeros(8), 1.0).to_event(1)
    weights = numpyro.sample("weights", prior)
    numpyro.sample("y", numpyro.distributions.Normal(x @ weights, 0.1), obs=y)


def _variational(guide_name: str) -> Step:
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    guide = getattr(autoguide, guide_name)(_regression)
    svi = SVI(_regression, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    state = svi.init(jax.random.PRNGKey(0), jnp.ones((64, 8)), jnp.ones(64))
    return Step(svi.update, (state, f32(64, 8), f32(64)), donate_argnums=(0,))


def numpyro_svi() -> Step:
    return _variational("AutoNormal")


def numpyro_svi_low_rank() -> Step:
    return _variational("AutoLowRankMultivariateNormal")


def numpyro_hmc() -> Step:
    """One transition of the kernel; the state is donated."""
    from numpyro.infer import NUTS

    kernel = NUTS(_regression, max_tree_depth=4)
    data = (jnp.ones((64, 8)), jnp.ones(64))
    state = kernel.init(jax.random.PRNGKey(0), 10, None, data, {})

    def transition(state: Any, x: jax.Array, y: jax.Array) -> Any:
        return kernel.sample(state, (x, y), {})

    return Step(transition, (state, f32(64, 8), f32(64)), donate_argnums=(0,))


def numpyro_predictive() -> Step:
    from numpyro.infer import Predictive

    def predict(rng: Any, weights: jax.Array, x: jax.Array) -> Any:
        return Predictive(_regression, {"weights": weights})(rng, x, None)["y"]

    return Step(predict, (key(), f32(10, 8), f32(64, 8)))


def _log_density(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2)


def _kernel(name: str, *args: Any) -> Step:
    import blackjax

    algorithm = getattr(blackjax, name)(_log_density, *args)
    state = jax.eval_shape(algorithm.init, f32(8))
    return Step(algorithm.step, (key(), state))


def blackjax_hmc() -> Step:
    return _kernel("hmc", 0.1, jnp.ones(8), 5)


def blackjax_nuts() -> Step:
    return _kernel("nuts", 0.1, jnp.ones(8))


def blackjax_mala() -> Step:
    return _kernel("mala", 0.1)


def blackjax_sgld() -> Step:
    import blackjax

    algorithm = blackjax.sgld(lambda x, batch: -jnp.mean((batch @ x) ** 2))
    return Step(algorithm.step, (key(), f32(8), f32(32, 8), 0.1))


def _flow(make: Any) -> Step:
    """A training step of maximum likelihood."""
    import equinox as eqx

    # Not abstract: functions inside a flow close over arrays, which would be tracers.
    flow = make()
    optimizer = optax.adam(1e-3)
    state = eqx.filter_eval_shape(
        lambda it: optimizer.init(eqx.filter(it, eqx.is_inexact_array)), flow
    )

    @eqx.filter_jit
    def train(flow: Any, state: Any, x: jax.Array) -> Any:
        gradients = eqx.filter_grad(lambda it: -_of(it).log_prob(x).mean())(flow)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(flow, updates), state

    return Step(train, (flow, state, f32(32, 4)))


def _of(flow: Any) -> Any:
    import paramax

    return paramax.unwrap(flow)


def flowjax_coupling() -> Step:
    from flowjax.distributions import Normal
    from flowjax.flows import coupling_flow

    base = Normal(jnp.zeros(4))
    return _flow(lambda: coupling_flow(jax.random.key(0), base_dist=base, flow_layers=2))


def flowjax_masked_autoregressive() -> Step:
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow

    base = Normal(jnp.zeros(4))
    make = lambda: masked_autoregressive_flow(  # noqa: E731
        jax.random.key(0), base_dist=base, flow_layers=2
    )
    return _flow(make)
