"""Qwen3 dense models: modules, workloads, expectations.

    config.py        sizes (no jax)
    embedding.py norm.py projection.py rope.py attention.py mlp.py block.py model.py
    cache.py         where keys and values are kept, and how they are written in place
    steps.py         prefill and decode, as functions of plain pytrees
    reference.py     the step of dump 003, from the same modules
    workloads.py     what `xlapipe dump` compiles
    expectations.py  what must hold of the plans (no jax)

Axis letters, everywhere: B sequences, T new tokens of each, S cache slots of each, D hidden,
F intermediate, V vocabulary, N query heads, K key/value heads, G = N / K query heads for one
key/value head, H head width, C = N + 2 K heads of the fused projection, I in, O out.
"""

from models.qwen3.config import QWEN3_0_6B, Qwen3Config

__all__ = ["QWEN3_0_6B", "Qwen3Config"]
