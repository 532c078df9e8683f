"""The parameters' pytree, from the config alone: without flax, whose import takes long."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from models.qwen3.checkpoint.leaf_tensors import leaves
from models.qwen3.config import Qwen3Config

Params: TypeAlias = dict[str, Any]


def abstract_params(config: Qwen3Config) -> Params:
    """The parameters of `steps.abstract_model(config)`: nested dicts of `ShapeDtypeStruct`."""
    dtype = jnp.dtype(config.dtype)
    params: Params = {}
    for leaf in leaves(config):
        *branches, name = (int(key) if key.isdigit() else key for key in leaf.path.split("."))
        branch: dict[Any, Any] = params
        for key in branches:
            branch = branch.setdefault(key, {})
        branch[name] = jax.ShapeDtypeStruct(leaf.shape, dtype)
    return params
