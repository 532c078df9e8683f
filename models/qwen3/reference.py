"""The step of reference dump 003, built from this package's modules.

The step is a part of a served model: embedding, layers 0 and 1 with their attention outputs
replaced by a constant, then layer 2's qkv projection, key norm and RoPE. Parameters are named by
their numbers in the dump.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from models.qwen3.argument_bytes import ReferenceSizes
from models.qwen3.config import Qwen3Config
from models.qwen3.modules.cache import write_slots
from models.qwen3.modules.model import Qwen3
from models.qwen3.modules.rope import rotation_from_table
from models.qwen3.steps import Params, abstract_model

Keys: TypeAlias = Float[Array, "T K H"]
HalfPages: TypeAlias = Float[Array, "blocks block_size K H"]
Pages: TypeAlias = Float[Array, "2 blocks block_size K H"]
Path: TypeAlias = tuple[str | int, ...]

# The model's leaf for each weight of the dump, by parameter number; other parameters are data.
WEIGHTS: Mapping[int, Path] = {
    0: ("layers", 2, "attention", "k_norm", "scale"),
    2: ("layers", 2, "attention", "qkv_proj", "weight"),
    3: ("layers", 2, "input_norm", "scale"),
    5: ("embed", "weight"),
    6: ("layers", 0, "attention", "o_proj", "weight"),
    7: ("layers", 0, "mlp", "down_proj", "weight"),
    8: ("layers", 0, "mlp", "gate_up_proj", "weight"),
    9: ("layers", 0, "post_attention_norm", "scale"),
    10: ("layers", 1, "attention", "o_proj", "weight"),
    11: ("layers", 1, "mlp", "down_proj", "weight"),
    12: ("layers", 1, "mlp", "gate_up_proj", "weight"),
    13: ("layers", 1, "post_attention_norm", "scale"),
}


def _three_layers(config: Qwen3Config) -> Qwen3Config:
    return replace(config, num_hidden_layers=3)


def _leaf(params: Params, path: Path) -> Any:
    node: Any = params
    for key in path:
        node = node[key]
    return node


def _with_leaves(node: Any, leaves: Mapping[Path, Any], path: Path = ()) -> Any:
    """A copy of nested dicts with the leaves at the given paths replaced."""
    if not isinstance(node, dict):
        return leaves.get(path, node)
    return {key: _with_leaves(value, leaves, (*path, key)) for key, value in node.items()}


def reference_args(sizes: ReferenceSizes, *, with_slots: bool) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The step's abstract arguments: p0 to p16 and, with slots, p17."""
    config = sizes.config
    dtype = jnp.dtype(config.dtype)
    _, params = abstract_model(_three_layers(config))
    per_token = jax.ShapeDtypeStruct((sizes.tokens,), jnp.int32)
    pages = (2, sizes.blocks, sizes.block_size, config.num_key_value_heads, config.head_dim)
    data = {
        1: jax.ShapeDtypeStruct((), jnp.float32),
        4: per_token,
        14: per_token,
        15: jax.ShapeDtypeStruct((sizes.positions, config.head_dim), dtype),
        16: jax.ShapeDtypeStruct(pages, dtype),
        17: per_token,
    }
    numbers = range(18 if with_slots else 17)
    return tuple(data[n] if n in data else _leaf(params, WEIGHTS[n]) for n in numbers)


def reference_step(sizes: ReferenceSizes) -> Callable[..., tuple[Array, ...]]:
    """The step as a function of p0 to p16 or, to write into the cache, p0 to p17.

    Returns:
      `fn(p0, ..., p16)` -> (k, v, cache's keys, cache's values): the cache is not written, and its
      halves are returned as copies, as in the dump.
      `fn(p0, ..., p16, p17)` -> (k, v, cache): k and v are written into the cache, at slots p17.
      k and v are [T, K, H].
    """
    config = _three_layers(sizes.config)
    graphdef, abstract = abstract_model(config)

    def step(
        p0: Float[Array, " H"],  # key norm, layer 2
        p1: Float[Array, ""],  # epsilon of every norm
        p2: Float[Array, "qkv D"],  # qkv, layer 2
        p3: Float[Array, " D"],  # input norm, layer 2
        p4: Int[Array, " T"],  # token ids
        p5: Float[Array, "V D"],  # embedding
        p6: Float[Array, "D NH"],  # output projection, layer 0
        p7: Float[Array, "D F"],  # down, layer 0
        p8: Float[Array, "2*F D"],  # gate and up, layer 0
        p9: Float[Array, " D"],  # post-attention norm, layer 0
        p10: Float[Array, "D NH"],  # output projection, layer 1
        p11: Float[Array, "D F"],  # down, layer 1
        p12: Float[Array, "2*F D"],  # gate and up, layer 1
        p13: Float[Array, " D"],  # post-attention norm, layer 1
        p14: Int[Array, " T"],  # positions
        p15: Float[Array, "P H"],  # RoPE table
        p16: Pages,
        p17: Int[Array, " T"] | None = None,  # slots
    ) -> tuple[Keys, Keys, HalfPages, HalfPages] | tuple[Keys, Keys, Pages]:
        weights = {0: p0, 2: p2, 3: p3, 5: p5, 6: p6, 7: p7, 8: p8, 9: p9}
        weights |= {10: p10, 11: p11, 12: p12, 13: p13}
        # Weights that are not in the dump stay abstract: the step does not read them.
        leaves = {WEIGHTS[number]: weight for number, weight in weights.items()}
        model: Qwen3 = nnx.merge(graphdef, _with_leaves(abstract, leaves))

        with jax.named_scope("embed"):
            x = model.embed(p4)
        attended = jnp.zeros((x.shape[0], config.q_size), x.dtype)
        for index in (0, 1):
            layer = model.layers[index]
            with jax.named_scope(f"layers_{index}"):
                with jax.named_scope("attention"):
                    x = x + layer.attention.output(attended)
                x = layer.feed_forward(x, p1)

        attention = model.layers[2].attention
        with jax.named_scope("layers_2"):
            with jax.named_scope("input_norm"):
                normed = model.layers[2].input_norm(x, p1)
            with jax.named_scope("attention"):
                _, k, v = attention.heads(normed)
                k = attention.keys(k, rotation_from_table(p15, p14), p1)
        if p17 is None:
            return k, v, p16[0], p16[1]
        return k, v, write_slots(p16, k, v, p17)

    return step
