"""The static sizes of a generation, from prompts and what is asked for. Imports no jax."""

from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.errors import XlapipeError

SMALLEST_BUCKET = 16
# Cache lengths are rounded up to this, so that prompts of about the same length share executables.
CACHE_GRANULE = 128
# Tokens for each call of the loop. On a CPU a token takes long, and is wanted when it is there.
GPU_STEPS, CPU_STEPS = 16, 4


@dataclass(frozen=True, kw_only=True)
class GenerationSizes:
    """What executables of a generation are compiled for.

    Attributes:
      batch: sequences (B).
      cache_length: cache slots of each (S).
      bucket: tokens that a prompt is padded to (T), at most S.
      steps: tokens of each call of the decode loop.
      candidates: of `sampling`; 1 is greedy.
    """

    batch: int
    cache_length: int
    bucket: int
    steps: int
    candidates: int | None = 1


def bucket_of(length: int, cache_length: int) -> int:
    """The power of two that a prompt of `length` tokens is padded to, or the cache's length."""
    return min(max(SMALLEST_BUCKET, 1 << (length - 1).bit_length()), cache_length)


def cache_length_for(longest: int, max_new_tokens: int) -> int:
    """Slots for a prompt and all new tokens but the last, which is never read; rounded up."""
    needed = longest + max_new_tokens - 1
    return -(-needed // CACHE_GRANULE) * CACHE_GRANULE


def check_prompts(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raises XlapipeError for no prompt, an empty one, or an id outside the vocabulary."""
    if not prompts:
        raise XlapipeError("no prompt; give one with --prompt or --prompt-ids")
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise XlapipeError(f"prompt {number} has no tokens; expected at least one")
        for place, token_id in enumerate(prompt):
            if not 0 <= token_id < vocab_size:
                raise XlapipeError(
                    f"prompt {number}: token {token_id} at place {place} is outside the model's "
                    f"vocabulary of {vocab_size:,} tokens"
                )


def check_lengths(prompts: Sequence[Sequence[int]], cache_length: int, max_new_tokens: int) -> None:
    """Raises XlapipeError for lengths below 1, or a prompt that the cache has no room for.

    A prompt that fills the cache is in order: there is room for the token behind it, which is
    not written.
    """
    if max_new_tokens < 1:
        raise XlapipeError(f"max-new-tokens {max_new_tokens}: expected 1 or more")
    if cache_length < 1:
        raise XlapipeError(f"cache-length {cache_length}: expected 1 or more")
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) > cache_length:
            raise XlapipeError(
                f"prompt {number} has {len(prompt):,} tokens, {len(prompt) - cache_length:,} more "
                f"than the cache's {cache_length:,} slots; allow more with --cache-length"
            )
