"""The sharded MLP's programs, each broken in several ways, at the sizes of the workloads."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from models.fsdp_mlp import layer, reference, training, workloads
from xlapipe import Workload

TRAINING = workloads.fsdp_mlp()
REFERENCE = workloads.fsdp_mlp_reference()


def training_smaller() -> Workload:
    """A smaller step on 32 devices, without donation, and with XLA's collective combiners on.

    The XLA of jaxlib 0.12.0.1 crashes on the loss's all-reduce over 64 devices.
    """
    smaller = workloads.fsdp_mlp(hidden=4096, layers=2, devices=32)
    return replace(smaller, name="smaller", donate_argnums=(), options={})


def _loss_with_all_kernels(params: Any, x: Any, target: Any) -> Any:
    """Gathers all kernels first, in float32, keeps them for backward, and returns one of them."""
    shards = [weights["kernel"] for _, weights in sorted(params["layers"].items())]
    kernels = lax.optimization_barrier([layer.gather(shard, training.AXIS) for shard in shards])
    x = x.astype(jnp.float32)
    for kernel in kernels:
        x = layer.plain_layer(x, kernel)
    return ((x - target.astype(jnp.float32)) ** 2).mean(), kernels[0]


def training_kernels_kept() -> Workload:
    """Keeps all kernels; also swaps the two moments in the output, and reduces the loss twice."""

    def step(state: Any, x: Any, target: Any) -> Any:
        loss_of = partial(_loss_with_all_kernels, x=x, target=target)
        (loss, kernel), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        after = training.adam(state, gradients)
        first, second = after["first_moment"], after["second_moment"]
        after |= {"first_moment": second, "second_moment": first}
        loss = lax.psum(lax.psum(loss, training.AXIS) * kernel[0, :2].sum(), training.AXIS)
        return after, (loss, kernel)

    specs = (training.STATE_SPECS, (training.OUT_SPECS[1], training.IN_SPECS[1]))
    fn = jax.shard_map(step, in_specs=training.IN_SPECS, out_specs=specs)
    return replace(TRAINING, name="kernels-kept", fn=fn, out_specs=specs)


def _with_more_collectives(*arguments: Any) -> Any:
    """Also uses W1, exchanges activations, and writes a large temporary."""
    shards, x, *_ = arguments
    gradients = reference.backward(*arguments)
    with jax.named_scope("w1"):
        w1 = lax.all_gather(shards[0], training.AXIS, tiled=True).reshape(16, 16)
    gathered = lax.all_gather(x, training.AXIS, tiled=True)
    scattered = lax.psum_scatter(x[0], training.AXIS, tiled=True)
    written = lax.optimization_barrier(jnp.outer(shards[0], shards[1]).astype(jnp.float32))
    return gradients, x @ w1, gathered, scattered, (written @ written).sum(0)


def reference_more_collectives() -> Workload:
    specs = training.IN_SPECS[1]
    fn = jax.shard_map(_with_more_collectives, in_specs=reference.IN_SPECS, out_specs=specs)
    return replace(REFERENCE, name="more-collectives", fn=fn, out_specs=specs)


def _with_undefined_copies(shards: Any, *arguments: Any) -> Any:
    """Copies uninitialised memory, as reference dump 000 does, and gathers the gradients."""
    uninitialised = lax.empty((256, 128), jnp.bfloat16)
    whole_gradients = [
        lax.psum(lax.all_gather(gradient, training.AXIS, tiled=True), training.AXIS)
        for gradient in reference.backward(shards, *arguments)[:2]
    ]
    return whole_gradients, shards[0], (uninitialised, uninitialised)


def reference_undefined_copies() -> Workload:
    """Copies uninitialised memory; also donates the shards and returns a gathered array."""

    def backward(shards: Any, x: Any, *arguments: Any) -> Any:
        gathered = lax.all_gather(x, training.AXIS, tiled=True)
        return gathered, _with_undefined_copies(shards, x, *arguments)

    specs = training.IN_SPECS[1]
    fn = jax.shard_map(backward, in_specs=reference.IN_SPECS, out_specs=specs, check_vma=False)
    return replace(REFERENCE, name="undefined-copies", fn=fn, out_specs=specs, donate_argnums=0)
