"""Qwen3 dense models: modules, workloads, expectations, text generation.

    config.py           the model's config (no jax)
    argument_bytes.py   bytes of the workloads' arguments (no jax)
    modules/            the Flax modules, and the KV cache
    steps.py            prefill and decode, as functions of plain pytrees
    kernels/            Pallas kernels for both
    reference.py        the step of reference dump 003, built from the same modules
    workloads.py        the workloads that `xlapipe dump` compiles
    expectations/       expectations about their plans (no jax)
    sharded/            a training step and a decode step over many devices
    checkpoint/         Hugging Face checkpoints: configs, weights, tokenizer
    generation/         text generation, with executables compiled here or in advance
    generate.py cli/    the command `python -m models.qwen3.generate`

Reference dump 003 is a step of a served Qwen3-0.6B (see docs/lab/seeds.md).

Axis letters in all modules: B sequences, T new tokens per sequence, S cache slots per sequence, D
hidden, F intermediate, V vocabulary, N query heads, K key/value heads, G = N / K query heads per
key/value head, H head width, P rows of a RoPE table, I in, O out.
"""

from models.qwen3.config import QWEN3_0_6B, Qwen3Config

__all__ = ["QWEN3_0_6B", "Qwen3Config"]
