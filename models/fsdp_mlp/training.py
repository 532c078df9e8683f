"""A training step of the sharded MLP, its state, and their shardings."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from models.fsdp_mlp.model import MLP
from models.fsdp_mlp.sizes import MLPSizes

AXIS = "fsdp"
Params: TypeAlias = dict[str, Any]
State: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[State, Array, Array], tuple[State, Array]]

# Kernels, their moments and the batch are sharded by rows. Specs are prefixes of the trees.
STATE_SPECS = {
    "params": PartitionSpec(AXIS),
    "first_moment": PartitionSpec(AXIS),
    "second_moment": PartitionSpec(AXIS),
    "steps": PartitionSpec(),
}
IN_SPECS = (STATE_SPECS, PartitionSpec(AXIS), PartitionSpec(AXIS))
OUT_SPECS = (STATE_SPECS, PartitionSpec())

# Adam's constants, from the paper (Kingma & Ba, 2015).
LEARNING_RATE = 1e-3
DECAY_1 = 0.9
DECAY_2 = 0.999
EPSILON = 1e-8


def training_step(sizes: MLPSizes) -> Step:
    """One step of Adam on the mean squared error, over the current mesh (`jax.set_mesh`).

    Returns:
      `fn(state, x, target)`: state as from `initial_state`, to be donated; x and target
      bf16[B·devices, I]. Result: the next state, and the loss before the step, f32[].
    """
    return jax.shard_map(_step(sizes, AXIS), in_specs=IN_SPECS, out_specs=OUT_SPECS)


def plain_training_step(sizes: MLPSizes) -> Step:
    """`training_step` on one device, without gathers, for the same global arrays."""
    return _step(sizes, None)


def gradients(sizes: MLPSizes) -> Callable[[Params, Array, Array], tuple[Array, Params]]:
    """`fn(params, x, target)`: the loss, f32[], and its gradients, f32, sharded like params."""
    return jax.shard_map(
        _gradients(sizes, AXIS),
        in_specs=(STATE_SPECS["params"], *IN_SPECS[1:]),
        out_specs=(PartitionSpec(), STATE_SPECS["params"]),
    )


def plain_gradients(sizes: MLPSizes) -> Callable[[Params, Array, Array], tuple[Array, Params]]:
    """`gradients` on one device, without gathers, for the same global arrays."""
    return _gradients(sizes, None)


def device_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh with one axis over `devices`, in their order."""
    return Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,))


def shardings(mesh: Mesh, specs: Any) -> Any:
    """`specs` (IN_SPECS, OUT_SPECS, STATE_SPECS) as shardings on `mesh`, for `jax.jit`."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


def initial_state(sizes: MLPSizes, seed: int, mesh: Mesh | None = None) -> State:
    """The state before the first step, on `mesh`, or on the default device.

    Each device computes its own rows: no array larger than a shard is allocated. The values depend
    only on the seed, not on the mesh.
    """
    out_shardings = None if mesh is None else shardings(mesh, STATE_SPECS)
    initialize = jax.jit(partial(_initial_state, sizes), out_shardings=out_shardings)
    state: State = initialize(seed)
    return state


def abstract_state(sizes: MLPSizes) -> State:
    """The state as `ShapeDtypeStruct`s with global shapes; allocates no arrays."""
    state: State = jax.eval_shape(partial(_initial_state, sizes), 0)
    return state


def random_batch(
    sizes: MLPSizes, seed: int, mesh: Mesh | None = None
) -> tuple[Float[Array, "B I"], Float[Array, "B O"]]:
    """Random x (normal) and target (|x|, which an MLP can learn), both bf16[B·devices, I]."""

    def draw(seed: Int[Array, ""]) -> tuple[Array, Array]:
        rows = sizes.batch * sizes.devices
        x = jax.random.normal(jax.random.key(seed), (rows, sizes.hidden), jnp.bfloat16)
        return x, jnp.abs(x)

    out_shardings = None if mesh is None else shardings(mesh, IN_SPECS[1:])
    batch: tuple[Array, Array] = jax.jit(draw, out_shardings=out_shardings)(seed)
    return batch


def _structure(sizes: MLPSizes, axis: str | None) -> nnx.GraphDef[MLP]:
    model = nnx.eval_shape(lambda: MLP(sizes.hidden, sizes.layers, axis=axis, rngs=nnx.Rngs(0)))
    return nnx.graphdef(model)


def _initial_state(sizes: MLPSizes, seed: Int[Array, ""]) -> State:
    model = MLP(sizes.hidden, sizes.layers, axis=AXIS, rngs=nnx.Rngs(jax.random.key(seed)))
    params = nnx.to_pure_dict(nnx.state(model))
    return {
        "params": params,
        "first_moment": jax.tree.map(jnp.zeros_like, params),
        "second_moment": jax.tree.map(jnp.zeros_like, params),
        "steps": jnp.zeros((), jnp.int32),
    }


def _gradients(
    sizes: MLPSizes, axis: str | None
) -> Callable[[Params, Array, Array], tuple[Array, Params]]:
    graphdef = _structure(sizes, axis)
    # A float, since it overflows an int32 on many devices.
    element_count = float(sizes.batch * sizes.devices * sizes.hidden)

    def share_of_loss(params: Params, x: Array, target: Array) -> Array:
        y = nnx.merge(graphdef, params)(x)
        with jax.named_scope("loss"):
            error = y.astype(jnp.float32) - target.astype(jnp.float32)
            return (error * error).sum() / element_count

    def loss_and_gradients(params: Params, x: Array, target: Array) -> tuple[Array, Params]:
        loss, gradients = jax.value_and_grad(share_of_loss)(params, x, target)
        return (loss if axis is None else lax.psum(loss, axis)), gradients

    return loss_and_gradients


def _step(sizes: MLPSizes, axis: str | None) -> Step:
    loss_and_gradients = _gradients(sizes, axis)

    def step(state: State, x: Array, target: Array) -> tuple[State, Array]:
        loss, gradients = loss_and_gradients(state["params"], x, target)
        with jax.named_scope("adam"):
            return adam(state, gradients), loss

    return step


def adam(state: State, gradients: Params) -> State:
    """The state after one step of Adam. The step is elementwise, so that it applies to shards."""
    steps = state["steps"] + 1
    first = jax.tree.map(
        lambda m, g: DECAY_1 * m + (1 - DECAY_1) * g, state["first_moment"], gradients
    )
    second = jax.tree.map(
        lambda v, g: DECAY_2 * v + (1 - DECAY_2) * g * g, state["second_moment"], gradients
    )
    # Corrects the bias from moments that start at 0.
    unbias_1 = 1 / (1 - DECAY_1**steps)
    unbias_2 = 1 / (1 - DECAY_2**steps)
    params = jax.tree.map(
        lambda p, m, v: p - LEARNING_RATE * m * unbias_1 / (jnp.sqrt(v * unbias_2) + EPSILON),
        state["params"],
        first,
        second,
    )
    return {"params": params, "first_moment": first, "second_moment": second, "steps": steps}
