"""Expectations about the plans, in closed form from the config. Imports no jax.

Sizes are bytes. The bound on temporary memory is the sum of one layer's values and of what the GEMM
policy adds. XLA reuses most of this memory, so that plans are well below the bound. The bound
detects memory that grows with the number of layers, the vocabulary or the cache.
"""

from models.qwen3.expectations.generation import generate, prompts
from models.qwen3.expectations.reference import reference_step, reference_step_donated
from models.qwen3.expectations.steps import decode, prefill

__all__ = [
    "decode",
    "generate",
    "prefill",
    "prompts",
    "reference_step",
    "reference_step_donated",
]
