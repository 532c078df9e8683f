"""Converts weights of the Qwen3 model to the layout of this package, and stacks its layers."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.qwen3.config import Qwen3Config
from models.qwen3.sharded.train import State


def stacked_weights(params: Any, config: Qwen3Config) -> State:
    """The parameters of `steps.abstract_model`, in the layout of `weight_layout`.

    Args:
      params: nested dicts of arrays; dtypes are kept.
    """
    layers = [_layer(params["layers"][i], config) for i in range(config.num_hidden_layers)]
    stacked: State = {
        "embed": params["embed"]["weight"].T,
        "final_norm": params["final_norm"]["scale"],
        "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers),
    }
    if not config.tie_word_embeddings:
        stacked["lm_head"] = params["lm_head"]["weight"].T
    return stacked


def unstacked_weights(stacked: State) -> State:
    """Stacked weights with `layers` as a list, for `serve`."""
    count = stacked["layers"]["input_norm"].shape[0]
    layers = [{name: leaf[i] for name, leaf in stacked["layers"].items()} for i in range(count)]
    return {**stacked, "layers": layers}


def _layer(block: Any, config: Qwen3Config) -> dict[str, Array]:
    attention, mlp = block["attention"], block["mlp"]
    group = (config.num_key_value_heads, config.queries_per_kv_head, config.head_dim)
    gate_up = mlp["gate_up_proj"]["weight"].reshape(2, config.intermediate_size, -1)
    return {
        "input_norm": block["input_norm"]["scale"],
        "qkv": _by_kv_head(attention["qkv_proj"]["weight"], config),
        "q_norm": attention["q_norm"]["scale"],
        "k_norm": attention["k_norm"]["scale"],
        "o": attention["o_proj"]["weight"].reshape(-1, *group),
        "post_attention_norm": block["post_attention_norm"]["scale"],
        "gate_up": jnp.moveaxis(gate_up, -1, 0),
        "down": mlp["down_proj"]["weight"],
    }


def _by_kv_head(weight: Float[Array, "O D"], config: Qwen3Config) -> Float[Array, "D K P H"]:
    """Regroups rows from all queries, all keys, all values to those of each key/value head."""
    kv_heads, width = config.num_key_value_heads, config.head_dim
    parts = jnp.split(weight, [config.q_size, config.q_size + config.kv_size])
    per_head = [part.reshape(kv_heads, -1, width, weight.shape[1]) for part in parts]
    return jnp.moveaxis(jnp.concatenate(per_head, axis=1), -1, 0)
