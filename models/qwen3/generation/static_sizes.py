"""The sizes that a generation is compiled for, and checks of prompts. Imports no jax."""

from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe import XlapipeError

SMALLEST_BUCKET = 16
# Cache lengths are rounded up to a multiple of this, so that prompts of similar lengths share
# executables.
CACHE_LENGTH_MULTIPLE = 128
# Tokens per call of the decode loop. On a CPU a token takes long; fewer per call show it earlier.
GPU_STEPS, CPU_STEPS = 16, 4


@dataclass(frozen=True, kw_only=True)
class GenerationSizes:
    """The static sizes of a generation's executables.

    Attributes:
      batch: sequences (B).
      cache_length: cache slots per sequence (S).
      bucket: tokens that a prompt is padded to (T), at most S.
      steps: tokens per call of the decode loop.
      candidates: static argument of `sampling.next_tokens`; 1 is greedy.
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
    return -(-needed // CACHE_LENGTH_MULTIPLE) * CACHE_LENGTH_MULTIPLE


def check_prompts(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raises XlapipeError if there is no prompt, an empty one, or an id outside the vocabulary."""
    if not prompts:
        raise XlapipeError("no prompt; fix: pass one with --prompt or --prompt-ids")
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise XlapipeError(f"prompt {number} has no tokens; expected at least one")
        for position, token_id in enumerate(prompt):
            if not 0 <= token_id < vocab_size:
                raise XlapipeError(
                    f"prompt {number}: token id {token_id} at position {position} is outside the "
                    f"model's vocabulary of {vocab_size:,} tokens"
                )


def check_lengths(prompts: Sequence[Sequence[int]], cache_length: int, max_new_tokens: int) -> None:
    """Raises XlapipeError if a length is less than 1, or a prompt is longer than the cache.

    A prompt may fill the cache: the one token after it is returned, but not written to the cache.
    """
    if max_new_tokens < 1:
        raise XlapipeError(f"max-new-tokens {max_new_tokens}: expected 1 or more")
    if cache_length < 1:
        raise XlapipeError(f"cache-length {cache_length}: expected 1 or more")
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) > cache_length:
            raise XlapipeError(
                f"prompt {number} has {len(prompt):,} tokens, but the cache has {cache_length:,} "
                "slots; fix: a larger --cache-length"
            )
