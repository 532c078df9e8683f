"""Qwen3 dense models: modules, workloads, expectations.

    config.py sizes.py  the model's sizes, and bytes of the workloads' arguments (no jax)
    projection.py norm.py rope.py embedding.py attention.py mlp.py block.py model.py
    cache.py            where keys and values are kept, and how they are written in place
    steps.py            prefill and decode, as functions of plain pytrees
    reference.py        the step of dump 003, from the same modules
    workloads.py        what `xlapipe dump` compiles
    expectations/       what must hold of the plans (no jax)

Axis letters, everywhere: B sequences, T new tokens of each, S cache slots of each, D hidden,
F intermediate, V vocabulary, N query heads, K key/value heads, G = N / K query heads for one
key/value head, H head width, P rows of a RoPE table, I in, O out.
"""

from models.qwen3.config import QWEN3_0_6B, Qwen3Config

__all__ = ["QWEN3_0_6B", "Qwen3Config"]
