"""Training steps for `xlapipe choose`: layers that are scanned and layers in a Python loop."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlapipe import Workload

Params = tuple[jax.Array, jax.Array]


def layer(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
    hidden = checkpoint_name(jax.nn.silu(x @ weights[0]), "hidden")
    return x + jnp.tanh(hidden @ weights[1]), None


def scanned_loss(params: Params, x: jax.Array) -> jax.Array:
    x, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(x**2)


def unrolled_loss(params: Params, x: jax.Array) -> jax.Array:
    for number in range(params[0].shape[0]):
        x, _ = layer(x, (params[0][number], params[1][number]))
    return jnp.mean(x**2)


def workload(batch: int = 512, layers: int = 4, width: int = 256, scan: bool = True) -> Workload:
    """One step of gradient descent."""

    def step(params: Params, x: jax.Array) -> tuple[jax.Array, Params]:
        loss = scanned_loss if scan else unrolled_loss
        value, gradients = jax.value_and_grad(loss)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    up = jax.ShapeDtypeStruct((layers, width, 4 * width), jnp.float32)
    down = jax.ShapeDtypeStruct((layers, 4 * width, width), jnp.float32)
    x = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    return Workload(name=f"choose-{batch}", fn=step, args=((up, down), x), donate_argnums=(0,))


def forward(batch: int = 512) -> Workload:
    """A step without a gradient."""
    x = jax.ShapeDtypeStruct((batch, 64), jnp.float32)
    return Workload(name="forward", fn=lambda x: jnp.tanh(x @ x.T), args=(x,))


def named_workload(
    offload: bool = True, scan: bool = True, layers: int = 2, microbatches: int = 1
) -> Workload:
    """Layers with named values: `up`, `hidden` and `attn`.

    Args:
      offload: whether a policy of `jax.checkpoint` saves `up` and moves `hidden` to the host.
      microbatches: over which gradients are accumulated.
    """
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["up"],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def named_layer(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
        up = checkpoint_name(x @ weights[0], "up")
        hidden = checkpoint_name(jax.nn.silu(up), "hidden")
        return x + checkpoint_name(jnp.tanh(hidden @ weights[1]), "attn"), None

    body = named_layer
    if offload:
        body = jax.checkpoint(named_layer, policy=policy, prevent_cse=not scan)

    def loss(params: Params, x: jax.Array) -> jax.Array:
        if scan:
            x, _ = jax.lax.scan(body, x, params)
        else:
            for number in range(layers):
                x, _ = body(x, (params[0][number], params[1][number]))
        return jnp.mean(x**2)

    def step(params: Params, x: jax.Array) -> Params:
        if microbatches == 1:
            return jax.grad(loss)(params, x)

        def add(total: Params, part: jax.Array) -> tuple[Params, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None

        parts = x.reshape(microbatches, -1, x.shape[1])
        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)[0]

    return Workload(name="named", fn=step, args=workload(512, layers).args)


def nested_workload(batch: int = 512, width: int = 256) -> Workload:
    """Two scans of two layers each, in a scan."""

    def loss(params: Params, x: jax.Array) -> jax.Array:
        def pair(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
            return jax.lax.scan(layer, x, weights)

        return jnp.mean(jax.lax.scan(pair, x, params)[0] ** 2)

    up = jax.ShapeDtypeStruct((2, 2, width, 4 * width), jnp.float32)
    down = jax.ShapeDtypeStruct((2, 2, 4 * width, width), jnp.float32)
    x = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    return Workload(name="nested", fn=jax.grad(loss), args=((up, down), x))
