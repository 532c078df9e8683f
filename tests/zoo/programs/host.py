"""Programs that use host memory."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import SingleDeviceSharding
from step import f32, step

from xlapipe import Workload
from xlapipe.expect import Offloaded


def _on_host(*shape: int) -> jax.ShapeDtypeStruct:
    pinned = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=pinned)


def output_on_the_host() -> Workload:
    fn = lambda x: {"kept": x + 1, "offloaded": jax.device_put(x * 2, jax.memory.Space.Host)}  # noqa: E731
    return step("output_on_the_host", fn, [f32(128, 256)], expectations=[
        Offloaded("*offloaded*"),
    ])  # fmt: skip


def argument_on_the_host() -> Workload:
    fn = lambda x, y: jax.device_put(x, jax.memory.Space.Device) @ y  # noqa: E731
    return step("argument_on_the_host", fn, [_on_host(128, 256), f32(256, 64)], expectations=[
        Offloaded("x"),
    ])  # fmt: skip


def offloaded_optimizer_state() -> Workload:
    """Momentum stays on the host between steps."""

    def fn(params: Any, momentum: Any, gradient: Any) -> Any:
        new = jax.device_put(momentum, jax.memory.Space.Device) * 0.9 + gradient
        return params - 0.1 * new, jax.device_put(new, jax.memory.Space.Host)

    args = [f32(128, 256), _on_host(128, 256), f32(128, 256)]
    return step("offloaded_optimizer_state", fn, args, donate_argnums=(0, 1), expectations=[
        Offloaded("momentum"),
    ])  # fmt: skip


def offloaded_activations() -> Workload:
    """The residuals of a scan's gradient are kept on the host."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def loss(weights: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            return checkpoint_name(jnp.tanh(x @ w), "h"), None

        run = jax.checkpoint(lambda w: jax.lax.scan(body, x, w)[0].sum(), policy=policy)
        return run(weights)

    return step("offloaded_activations", jax.grad(loss), [f32(4, 128, 128), f32(128, 128)])
