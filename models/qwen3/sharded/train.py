"""The training step over many devices: forward, backward, AdamW on float32 shards."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.sharded.loss import mean_loss
from models.qwen3.sharded.weight_layout import FSDP, TENSOR, weight_layouts

State: TypeAlias = dict[str, Any]
TrainStep: TypeAlias = Callable[[State, Array, Array], tuple[State, Array]]

TOKENS, TARGETS = PartitionSpec(FSDP), PartitionSpec(FSDP, TENSOR)


def optimizer() -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101), with weight decay of matrices only."""
    return optax.adamw(1e-4, b1=0.9, b2=0.95, weight_decay=0.1, mask=_decays)


def _decays(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not jax.tree_util.keystr(path).endswith("norm']"), params
    )


def param_tree(config: Qwen3Config, leaf: Callable[[Any], Any]) -> State:
    """The tree of the parameters, with `leaf(layout)` for each weight."""
    tree: State = {}
    for layout in weight_layouts(config):
        *parents, name = layout.path.split(".")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[name] = leaf(layout)
    return tree


def abstract_state(config: Qwen3Config) -> State:
    """Parameters and optimiser state as `ShapeDtypeStruct`s: float32, and an s32 step count."""
    params = param_tree(config, lambda layout: jax.ShapeDtypeStruct(layout.shape, jnp.float32))
    return {"params": params, "optimizer": jax.eval_shape(optimizer().init, params)}


def state_specs(config: Qwen3Config) -> State:
    """The sharding of each leaf of the state; moments are sharded as their weights."""
    params = param_tree(config, lambda layout: PartitionSpec(*layout.split_over))
    moments = jax.eval_shape(optimizer().init, abstract_state(config)["params"])
    specs = optax.tree_utils.tree_map_params(
        optimizer(),
        lambda _, spec: spec,
        moments,
        params,
        transform_non_params=lambda _: PartitionSpec(),
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )
    return {"params": params, "optimizer": specs}


def train_step(config: Qwen3Config, *, unrolled: bool = False) -> TrainStep:
    """The step over the current mesh, whose axes are `fsdp` and `tensor`.

    Returns:
      `fn(state, token_ids, targets)`: the state as in `abstract_state`; token_ids s32[B, T];
      targets s32[B, T], the token after each token, or negative for no prediction. Result: the
    """

    def step(
        state: State, token_ids: Int[Array, "B T"], targets: Int[Array, "B t"]
    ) -> tuple[State, Float[Array, ""]]:
        loss, gradients = jax.value_and_grad(mean_loss)(
            state["params"], token_ids, targets, config, unrolled=unrolled
        )
        with jax.named_scope("adamw"):
            updates, moments = optimizer().update(gradients, state["optimizer"], state["params"])
            params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": moments}, loss

    specs = state_specs(config)
    sharded: TrainStep = jax.shard_map(
        step, in_specs=(specs, TOKENS, TARGETS), out_specs=(specs, PartitionSpec())
    )

    def train(state: State, token_ids: Array, targets: Array) -> tuple[State, Array]:
        return sharded(state, token_ids, targets)

    return train


def mesh_axes(devices: int, tensor: int) -> Mapping[str, int]:
    """The mesh: `tensor` neighbouring devices share each layer.

    Raises:
      ValueError: `tensor` does not divide `devices`.
    """
    if min(devices, tensor) < 1 or devices % tensor:
        raise ValueError(f"tensor={tensor} does not divide devices={devices}")
    return {FSDP: devices // tensor, TENSOR: tensor}
