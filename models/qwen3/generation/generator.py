"""Prompts to tokens: a call for the prompts, then the decode loop in chunks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.decode_loop import ENDED, first_state
from models.qwen3.generation.programs import Programs
from models.qwen3.generation.sampling_settings import Settings
from models.qwen3.generation.sizes import check_lengths, check_prompts
from models.qwen3.modules.cache import Cache
from models.qwen3.steps import Params
from xlapipe.errors import XlapipeError

# The number of a sequence, and its next tokens.
OnTokens = Callable[[int, list[int]], None]


@dataclass(frozen=True)
class Generated:
    """What came out.

    Attributes:
      token_ids: new tokens of each sequence, the one that ended it included.
      finish: why each ended: `eos`, `length` (max_new_tokens), or `cache` (no slot left).
      prefill_seconds: until the first tokens were on the host.
      decode_seconds: from then until the last ones were; 0 where there was no loop.
      decoded_tokens: of all sequences, those of the loops.
    """

    token_ids: list[list[int]]
    finish: list[str]
    prefill_seconds: float
    decode_seconds: float
    decoded_tokens: int

    @property
    def tokens_per_second(self) -> float | None:
        """Of all sequences together, behind the first tokens; None where there was no loop."""
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds else None


@dataclass(frozen=True)
class Generator:
    """Generates with programs and parameters that are on the device."""

    config: Qwen3Config
    programs: Programs
    params: Params
    device: jax.Device

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        settings: Settings,
        eos_token_ids: Sequence[int] = (),
        on_tokens: OnTokens = lambda index, token_ids: None,
    ) -> Generated:
        """Up to `max_new_tokens` for each prompt; a sequence ends with an id of `eos_token_ids`.

        The host reads a chunk's tokens while the device is at the next one; `on_tokens` is told
        of them then, in order.

        Raises:
          XlapipeError: prompts or settings that the programs do not fit.
        """
        sizes = self.programs.sizes
        check_prompts(prompts, self.config.vocab_size)
        check_lengths(prompts, sizes.cache_length, max_new_tokens)
        self._check_fit(prompts, settings)
        sequences = [_Sequence(max_new_tokens, frozenset(eos_token_ids)) for _ in prompts]
        token_ids, lengths = _padded(prompts, sizes.batch, sizes.bucket)
        state = first_state(settings, eos_token_ids, batch=sizes.batch)

        started = time.perf_counter()
        placed = jax.device_put((state, token_ids, lengths), self.device)
        out = self.programs.prompts(self.params, self._empty_cache(), *placed)
        prefill_seconds = None
        for chunk in range(-(-(max_new_tokens - 1) // sizes.steps) + 1):
            tokens = out["tokens"]
            if chunk * sizes.steps < max_new_tokens - 1:
                out = self.programs.decode(self.params, out["cache"], out["state"])
            rows = np.asarray(tokens)  # waits for this chunk; the next one is under way
            if prefill_seconds is None:
                prefill_seconds = time.perf_counter() - started
            for index, sequence in enumerate(sequences):
                if new := sequence.take(rows[index].tolist()):
                    on_tokens(index, new)
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

    def _check_fit(self, prompts: Sequence[Sequence[int]], settings: Settings) -> None:
        sizes = self.programs.sizes
        if len(prompts) > sizes.batch:
            raise XlapipeError(
                f"{len(prompts)} prompts; the executables are for {sizes.batch} at once"
            )
        longest = max(map(len, prompts))
        if longest > sizes.bucket:
            raise XlapipeError(
                f"a prompt of {longest:,} tokens; the executables are for {sizes.bucket:,}"
            )
        wanted = settings.candidates(self.config.vocab_size)
        if wanted != sizes.candidates:
            raise XlapipeError(
                f"the executables draw from {_described(sizes.candidates)}, the settings ask for "
                f"{_described(wanted)}"
            )

    def _empty_cache(self) -> Cache:
        """Made leaf by leaf, with one small program for all of them."""
        config, sizes = self.config, self.programs.sizes
        shape = (sizes.batch, config.num_key_value_heads, sizes.cache_length, config.head_dim)
        return [
            {name: jnp.zeros(shape, config.dtype, device=self.device) for name in ("k", "v")}
            for _ in range(config.num_hidden_layers)
        ]


class _Sequence:
    """The new tokens of one sequence, as chunks of them come."""

    def __init__(self, max_new_tokens: int, eos_token_ids: frozenset[int]) -> None:
        self._max_new_tokens = max_new_tokens
        self._eos_token_ids = eos_token_ids
        self.token_ids: list[int] = []
        self.finish = ""

    def take(self, chunk: Sequence[int]) -> list[int]:
        """Those of the chunk that belong to the sequence; notes whether it has ended."""
        if self.finish:
            return []
        before = len(self.token_ids)
        room = self._max_new_tokens - before
        for token_id in chunk[:room]:
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
    """Prompts [B, T] padded on the right, and lengths [B]; length 0 where there is no prompt."""
    token_ids = np.zeros((batch, bucket), np.int32)
    lengths = np.zeros(batch, np.int32)
    for index, prompt in enumerate(prompts):
        token_ids[index, : len(prompt)] = prompt
        lengths[index] = len(prompt)
    return token_ids, lengths


def _described(candidates: int | None) -> str:
    if candidates == 1:
        return "the likeliest token (greedy)"
    if candidates is None:
        return "the whole vocabulary, by temperature alone"
    return f"the {candidates:,} likeliest tokens"
