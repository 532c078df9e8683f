"""What must hold of the plans, in closed form from the config. Imports no jax.

Sizes are bytes. Temporary memory is bounded by the sum of what one layer computes and of what the
GEMM policy adds. XLA overlays most of it, so that plans stay well below; what a bound is for is
anything that grows with the number of layers, with the vocabulary or with the cache.
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
