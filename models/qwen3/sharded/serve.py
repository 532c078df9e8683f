"""The decode step over many devices: weights split over `tensor`, sequences over `data`.

Each layer's weights are separate leaves, and the loop over layers is unrolled: products read
weights in place, without slicing them from a stack. Each layer's cache is as in
`models.qwen3.modules.cache`, and is updated in place.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.modules.attention import grouped_query_attention
from models.qwen3.modules.cache import Cache, LayerCache, write_positions
from models.qwen3.modules.norm import rms_norm
from models.qwen3.modules.rope import Rotation, rotation_of
from models.qwen3.sharded.forward import (
    Weights,
    attention_output,
    feed_forward,
    heads,
    own_columns,
)
from models.qwen3.sharded.train import State, param_tree
from models.qwen3.sharded.weight_layout import DATA, TENSOR, WeightLayout

Outputs: TypeAlias = dict[str, Array | Cache]
ServeStep: TypeAlias = Callable[[State, Cache, Array, Array], Outputs]

SEQUENCES = PartitionSpec(DATA)
CACHE = PartitionSpec(DATA, TENSOR)


def serve_specs(config: Qwen3Config) -> State:
    """The sharding of each weight: over `tensor` only."""

    def spec(weight: WeightLayout) -> PartitionSpec:
        return PartitionSpec(*(axis if axis == TENSOR else None for axis in weight.split_over))

    return _tree(config, spec, lambda stacked: PartitionSpec(*stacked[1:]))


def abstract_weights(config: Qwen3Config) -> State:
    """The weights as `ShapeDtypeStruct`s in the config's dtype, each layer separate."""
    dtype = jnp.dtype(config.dtype)
    return _tree(
        config,
        lambda weight: jax.ShapeDtypeStruct(weight.shape, dtype),
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], dtype),
    )


def _tree(
    config: Qwen3Config, leaf: Callable[[WeightLayout], Any], of_layer: Callable[[Any], Any]
) -> State:
    """The tree of `leaf(layout)`, with `layers` as a list; `of_layer` maps stacked leaves."""
    tree = param_tree(config, leaf)
    layer = {name: of_layer(stacked) for name, stacked in tree["layers"].items()}
    return {**tree, "layers": [dict(layer) for _ in range(config.num_hidden_layers)]}


def serve_step(config: Qwen3Config) -> ServeStep:
    """The step over the current mesh, whose axes are `data` and `tensor`.

    Returns:
      `fn(params, cache, token_ids, positions)`, as in `steps.decode_step`: token_ids and positions
      s32[B]. Result: `{"logits": f32[B, V], "cache": the cache}`; logits are split over both axes.
    """

    def step(
        params: State, cache: Cache, token_ids: Int[Array, " B"], positions: Int[Array, " B"]
    ) -> Outputs:
        with jax.named_scope("embed"):
            x = jax.lax.psum(own_columns(params["embed"], token_ids[:, None]), TENSOR)
        slots = positions[:, None]
        rotation = rotation_of(slots, head_dim=config.head_dim, theta=config.rope_theta)
        written: Cache = []
        for number, (weights, layer_cache) in enumerate(zip(params["layers"], cache, strict=True)):
            with jax.named_scope(f"layers_{number}"):
                x, new_cache = decode_layer(x, weights, layer_cache, rotation, slots, config)
            written.append(new_cache)
        with jax.named_scope("lm_head"):
            x = rms_norm(x[:, 0], params["final_norm"], config.rms_norm_eps)
            head = params["embed" if config.tie_word_embeddings else "lm_head"]
            logits = jnp.einsum("BD,DV->BV", x, head, preferred_element_type=jnp.float32)
        return {"logits": logits, "cache": written}

    sharded: ServeStep = jax.shard_map(
        step,
        in_specs=(serve_specs(config), CACHE, SEQUENCES, SEQUENCES),
        out_specs={"logits": PartitionSpec(DATA, TENSOR), "cache": CACHE},
    )

    def serve(params: State, cache: Cache, token_ids: Array, positions: Array) -> Outputs:
        return sharded(params, cache, token_ids, positions)

    return serve


def decode_layer(
    x: Float[Array, "B T D"],
    weights: Weights,
    cache: LayerCache,
    rotation: Rotation,
    positions: Int[Array, "B T"],
    config: Qwen3Config,
) -> tuple[Float[Array, "B T D"], LayerCache]:
    """One decoder layer over new tokens; writes keys and values of this device's heads."""
    eps = config.rms_norm_eps
    with jax.named_scope("attention"):
        tokens = rms_norm(x, weights["input_norm"], eps)
        q, k, v = heads(tokens, weights["qkv"], weights, rotation, config)
        cache = {
            "k": write_positions(cache["k"], k, positions),
            "v": write_positions(cache["v"], v, positions),
        }
        attended = grouped_query_attention(q, cache["k"], cache["v"], positions)
        x = x + jax.lax.psum(attention_output(attended, weights["o"]), TENSOR)
    with jax.named_scope("mlp"):
        tokens = rms_norm(x, weights["post_attention_norm"], eps)
        return x + jax.lax.psum(
            feed_forward(tokens, weights["gate_up"], weights["down"]), TENSOR
        ), cache
