"""Steps of haiku, jraph, mctx, brax and jaxopt."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.public.step import Step, f32, i32, key


def haiku_train() -> Step:
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
    return Step(train, args, donate_argnums=(0, 1, 2))


def haiku_lstm() -> Step:
    import haiku as hk

    def forward(xs: jax.Array) -> Any:
        core = hk.LSTM(32)
        return hk.dynamic_unroll(core, xs, core.initial_state(4))[0]

    network = hk.without_apply_rng(hk.transform(forward))
    params = jax.eval_shape(network.init, jax.random.PRNGKey(0), f32(20, 4, 16))
    return Step(network.apply, (params, f32(20, 4, 16)))


def haiku_attention() -> Step:
    import haiku as hk

    def forward(x: jax.Array) -> jax.Array:
        return hk.MultiHeadAttention(4, 16, w_init=hk.initializers.RandomNormal())(x, x, x)

    network = hk.without_apply_rng(hk.transform(forward))
    params = jax.eval_shape(network.init, jax.random.PRNGKey(0), f32(2, 16, 64))
    return Step(network.apply, (params, f32(2, 16, 64)))


def jraph_network() -> Step:
    import jraph

    network = jraph.GraphNetwork(
        update_edge_fn=lambda edges, sent, received, u: edges + sent.sum(1, keepdims=True),
        update_node_fn=lambda nodes, sent, received, u: nodes + received.sum(1, keepdims=True),
    )

    def update(nodes: Any, edges: Any, senders: Any, receivers: Any) -> Any:
        counts = jnp.array([20]), jnp.array([40])
        graph = jraph.GraphsTuple(nodes, edges, receivers, senders, None, *counts)
        return network(graph).nodes

    return Step(update, (f32(20, 8), f32(40, 4), i32(40), i32(40)))


def jraph_convolution() -> Step:
    import jraph

    network = jraph.GraphConvolution(lambda nodes: nodes * 2, add_self_edges=True)

    def update(nodes: Any, senders: Any, receivers: Any) -> Any:
        counts = jnp.array([20]), jnp.array([40])
        graph = jraph.GraphsTuple(nodes, None, receivers, senders, None, *counts)
        return network(graph).nodes

    return Step(update, (f32(20, 8), i32(40), i32(40)))


def _search(policy: str) -> Step:
    import mctx

    def recurrent(params: Any, rng: Any, action: Any, embedding: Any) -> Any:
        hidden = jnp.tanh(embedding @ params + action[:, None])
        zeros = jnp.zeros(hidden.shape[0])
        output = mctx.RecurrentFnOutput(
            reward=hidden[:, 0], discount=zeros + 0.9, prior_logits=hidden[:, :4], value=zeros
        )
        return output, hidden

    def search(params: Any, rng: Any, embedding: jax.Array) -> Any:
        root = mctx.RootFnOutput(
            prior_logits=embedding[:, :4], value=embedding[:, 0], embedding=embedding
        )
        found = getattr(mctx, policy)(params, rng, root, recurrent, num_simulations=8)
        return found.action_weights

    return Step(search, (f32(16, 16), key(), f32(4, 16)))


def mctx_muzero() -> Step:
    return _search("muzero_policy")


def mctx_gumbel() -> Step:
    return _search("gumbel_muzero_policy")


def _environment(name: str) -> Step:
    from brax import envs

    environment = envs.get_environment(name, backend="positional")
    state = jax.eval_shape(environment.reset, jax.random.PRNGKey(0))
    return Step(environment.step, (state, f32(environment.action_size)))


def brax_inverted_pendulum() -> Step:
    return _environment("inverted_pendulum")


def brax_reacher() -> Step:
    return _environment("reacher")


def brax_ppo_loss() -> Step:
    """The networks of PPO and the generalised advantage estimate."""
    from brax.training.agents.ppo import losses, networks

    nets = networks.make_ppo_networks(8, 2, policy_hidden_layer_sizes=(32,) * 2)
    params = jax.eval_shape(nets.policy_network.init, jax.random.PRNGKey(0))

    def loss(params: Any, observations: jax.Array, rewards: jax.Array) -> Any:
        def of(params: Any) -> jax.Array:
            logits = nets.policy_network.apply(None, params, observations)
            zeros = jnp.zeros_like(rewards)
            targets, advantages = losses.compute_gae(
                zeros, zeros, rewards, logits[..., 0], logits[-1, :, 0]
            )
            return jnp.mean((logits[..., 0] - targets) ** 2 + logits[..., 1] * advantages)

        return jax.grad(of)(params)

    return Step(loss, (params, f32(10, 4, 8), f32(10, 4)))


def _jaxopt(make: Any, *args: Any) -> Step:
    solver = make()

    def run(start: jax.Array, *args: Any) -> Any:
        return solver.run(start, *args).params

    return Step(run, args)


def _squares(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((x @ params - y) ** 2)


def jaxopt_lbfgs() -> Step:
    import jaxopt

    return _jaxopt(lambda: jaxopt.LBFGS(_squares, maxiter=5), f32(16), f32(64, 16), f32(64))


def jaxopt_gradient_descent() -> Step:
    import jaxopt

    make = lambda: jaxopt.GradientDescent(_squares, maxiter=5)  # noqa: E731
    return _jaxopt(make, f32(16), f32(64, 16), f32(64))


def jaxopt_gauss_newton() -> Step:
    import jaxopt

    def residuals(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return x @ params - y

    make = lambda: jaxopt.GaussNewton(residuals, maxiter=5)  # noqa: E731
    return _jaxopt(make, f32(16), f32(64, 16), f32(64))
