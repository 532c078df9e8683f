"""Generates tokens from prompts: one call for the prompts, then the decode loop in chunks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.compiled_steps import CompiledGeneration
from models.qwen3.generation.jax_device import JaxDevice
from models.qwen3.generation.sampling_settings import SamplingSettings
from models.qwen3.generation.state import ENDED, first_state
from models.qwen3.generation.static_sizes import check_lengths, check_prompts
from xlapipe import XlapipeError

# Called with the index of a sequence, and its next tokens.
OnTokens = Callable[[int, list[int]], None]


@dataclass(frozen=True)
class Generated:
    """The result of a generation.

    Attributes:
      token_ids: new tokens of each sequence, including the one that ended it.
      finish: why each sequence ended: `eos`, `length` (max_new_tokens), or `cache` (full).
      prefill_seconds: time until the first tokens were on the host.
      decode_seconds: time from then until the last tokens were; 0 if the loop was not run.
      decoded_tokens: number of tokens from the decode loop, of all sequences.
    """

    token_ids: list[list[int]]
    finish: list[str]
    prefill_seconds: float
    decode_seconds: float
    decoded_tokens: int

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of all sequences after the first tokens; None without a loop."""
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds else None


@dataclass(frozen=True)
class Generator:
    """Generates with compiled steps, and parameters on the device."""

    config: Qwen3Config
    compiled: CompiledGeneration
    params: Any
    device: JaxDevice

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        settings: SamplingSettings,
        eos_token_ids: Sequence[int] = (),
        on_tokens: OnTokens = lambda index, token_ids: None,
        cache: Any = None,
    ) -> Generated:
        """Generates up to `max_new_tokens` for each prompt.

        The host reads a chunk's tokens while the device computes the next chunk.

        Args:
          on_tokens: called with each sequence's tokens of a chunk, in order.

        Raises:
          XlapipeError: the steps were compiled for other sizes or settings.
        """
        sizes = self.compiled.sizes
        check_prompts(prompts, self.config.vocab_size)
        check_lengths(prompts, sizes.cache_length, max_new_tokens)
        self._check_compiled_for(prompts, settings)
        sequences = [_Sequence(max_new_tokens, frozenset(eos_token_ids)) for _ in prompts]
        token_ids, lengths = _padded(prompts, sizes.batch, sizes.bucket)
        state = first_state(settings, eos_token_ids, batch=sizes.batch)

        started = time.perf_counter()
        on_device = self.device.put(state, token_ids, lengths)
        if cache is None:
            cache = self.device.empty_cache(self.config, sizes)
        out = self.compiled.prompts(self.params, cache, *on_device)
        prefill_seconds = None
        for chunk in range(-(-(max_new_tokens - 1) // sizes.steps) + 1):
            tokens = out["tokens"]
            if chunk * sizes.steps < max_new_tokens - 1:
                out = self.compiled.decode(self.params, out["cache"], out["state"])
            rows = np.asarray(tokens)  # waits for this chunk; the next one is already running
            if prefill_seconds is None:
                prefill_seconds = time.perf_counter() - started
            for index, sequence in enumerate(sequences):
                if new_tokens := sequence.take(rows[index].tolist()):
                    on_tokens(index, new_tokens)
            if all(sequence.finish for sequence in sequences):
                break
        seconds = time.perf_counter() - started - (prefill_seconds or 0.0)
        decoded = sum(len(sequence.token_ids) - 1 for sequence in sequences)
        return Generated(
            [sequence.token_ids for sequence in sequences],
            [sequence.finish or "cache" for sequence in sequences],
            prefill_seconds or 0.0,
            seconds if decoded else 0.0,
            decoded,
        )

    def _check_compiled_for(
        self, prompts: Sequence[Sequence[int]], settings: SamplingSettings
    ) -> None:
        sizes = self.compiled.sizes
        if len(prompts) > sizes.batch:
            raise XlapipeError(
                f"the executables are compiled for a batch of {sizes.batch}; found {len(prompts)} "
                "prompts"
            )
        longest = max(map(len, prompts))
        if longest > sizes.bucket:
            raise XlapipeError(
                f"the executables are compiled for prompts of at most {sizes.bucket:,} tokens; "
                f"found a prompt of {longest:,} tokens"
            )
        candidates = settings.candidates(self.config.vocab_size)
        if candidates != sizes.candidates:
            raise XlapipeError(
                f"the executables are compiled to take {_described(sizes.candidates)}; the "
                f"settings require {_described(candidates)}"
            )


class _Sequence:
    """The new tokens of one sequence, collected from chunks."""

    def __init__(self, max_new_tokens: int, eos_token_ids: frozenset[int]) -> None:
        self._max_new_tokens = max_new_tokens
        self._eos_token_ids = eos_token_ids
        self.token_ids: list[int] = []
        self.finish = ""

    def take(self, chunk: Sequence[int]) -> list[int]:
        """Takes the chunk's tokens up to the end of the sequence, and returns them."""
        if self.finish:
            return []
        before = len(self.token_ids)
        remaining = self._max_new_tokens - before
        for token_id in chunk[:remaining]:
            if token_id == ENDED:
                self.finish = "cache"
                break
            self.token_ids.append(token_id)
            if token_id in self._eos_token_ids:
                self.finish = "eos"
                break
        if not self.finish and len(self.token_ids) == self._max_new_tokens:
            self.finish = "length"
        return self.token_ids[before:]


def _padded(
    prompts: Sequence[Sequence[int]], batch: int, bucket: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Prompts [B, T] padded on the right, and lengths [B]; an unused row has length 0."""
    token_ids = np.zeros((batch, bucket), np.int32)
    lengths = np.zeros(batch, np.int32)
    for index, prompt in enumerate(prompts):
        token_ids[index, : len(prompt)] = prompt
        lengths[index] = len(prompt)
    return token_ids, lengths


def _described(candidates: int | None) -> str:
    if candidates == 1:
        return "the most probable token (greedy)"
    if candidates is None:
        return "a sample of the whole vocabulary (neither top-k nor top-p)"
    return f"a sample of the {candidates:,} most probable tokens"
