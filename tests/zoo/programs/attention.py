"""Attention through cuDNN, which is not installed where the programs are compiled."""

from typing import Any

import jax
import jax.numpy as jnp
from step import array, step

from xlapipe import Workload

_QUERY = array(jnp.bfloat16, 2, 256, 4, 64)


def _attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")


def cudnn_attention() -> Workload:
    return step("cudnn_attention", _attention, [_QUERY] * 3)


def cudnn_attention_gradient() -> Workload:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return _attention(q, k, v).astype(jnp.float32).sum()

    return step("cudnn_attention_gradient", jax.grad(loss, argnums=(0, 1, 2)), [_QUERY] * 3)
