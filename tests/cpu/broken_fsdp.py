"""The sharded MLP's programs, each broken in one way; at the sizes of the workloads."""

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
    """A smaller one on more devices, where XLA combines unless told not to; nothing is donated."""
    smaller = workloads.fsdp_mlp(hidden=4096, layers=2, devices=64)
    return replace(smaller, name="smaller", donate_argnums=(), options={})


def _kept(params: Any, x: Any, target: Any) -> Any:
    """All kernels are gathered first, in float32, and kept for backward; one is handed out."""
    shards = [each["kernel"] for _, each in sorted(params["layers"].items())]
    kernels = lax.optimization_barrier([layer.gather(each, training.AXIS) for each in shards])
    x = x.astype(jnp.float32)
    for kernel in kernels:
        x = layer.plain_layer(x, kernel)
    return ((x - target.astype(jnp.float32)) ** 2).mean(), kernels[0]


def training_kept() -> Workload:
    """Besides, the moments come out swapped, and the loss is reduced twice."""

    def step(state: Any, x: Any, target: Any) -> Any:
        loss_of = partial(_kept, x=x, target=target)
        (loss, kernel), found = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        after = training.adam(state, found)
        first, second = after["first_moment"], after["second_moment"]
        after |= {"first_moment": second, "second_moment": first}
        loss = lax.psum(lax.psum(loss, training.AXIS) * kernel[0, :2].sum(), training.AXIS)
        return after, (loss, kernel)

    specs = (training.STATE_SPECS, (training.OUT_SPECS[1], training.IN_SPECS[1]))
    fn = jax.shard_map(step, in_specs=training.IN_SPECS, out_specs=specs)
    return replace(TRAINING, name="kept", fn=fn, out_specs=specs)


def _much(*arguments: Any) -> Any:
    """W1 is used, activations are exchanged too, and much is written on the way."""
    shards, x, *_ = arguments
    found = reference.backward(*arguments)
    with jax.named_scope("w1"):
        w1 = lax.all_gather(shards[0], training.AXIS, tiled=True).reshape(16, 16)
    gathered = lax.all_gather(x, training.AXIS, tiled=True)
    scattered = lax.psum_scatter(x[0], training.AXIS, tiled=True)
    written = lax.optimization_barrier(jnp.outer(shards[0], shards[1]).astype(jnp.float32))
    return found, x @ w1, gathered, scattered, (written @ written).sum(0)


def reference_much() -> Workload:
    specs = training.IN_SPECS[1]
    fn = jax.shard_map(_much, in_specs=reference.IN_SPECS, out_specs=specs)
    return replace(REFERENCE, name="much", fn=fn, out_specs=specs)


def _undefined(shards: Any, *arguments: Any) -> Any:
    """As in the dump, what nobody has written is copied; and gradients are whole at the end."""
    nothing = lax.empty((256, 128), jnp.bfloat16)
    whole = [
        lax.psum(lax.all_gather(each, training.AXIS, tiled=True), training.AXIS)
        for each in reference.backward(shards, *arguments)[:2]
    ]
    return whole, shards[0], (nothing, nothing)


def reference_undefined() -> Workload:
    """Besides, shards are donated, and a gathered array is handed out."""

    def backward(shards: Any, x: Any, *arguments: Any) -> Any:
        gathered = lax.all_gather(x, training.AXIS, tiled=True)
        return gathered, _undefined(shards, x, *arguments)

    specs = training.IN_SPECS[1]
    fn = jax.shard_map(backward, in_specs=reference.IN_SPECS, out_specs=specs, check_vma=False)
    return replace(REFERENCE, name="undefined", fn=fn, out_specs=specs, donate_argnums=0)
