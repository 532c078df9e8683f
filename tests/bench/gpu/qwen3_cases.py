"""The cases of the Qwen3 comparison: random weights, in bfloat16.

The variable QWEN3_SIZE chooses the model, by default the 0.6B one. Of other sizes, only the
decoding of one sequence is timed, with an empty and with a full cache.
"""

import os
from dataclasses import dataclass

from models.qwen3.config import CONFIGS

SIZE = os.environ.get("QWEN3_SIZE", "0.6b")
CONFIG = CONFIGS[SIZE]
# Several sequences and prompts are timed too.
ALL_CASES = SIZE == "0.6b"
_MODEL = "" if ALL_CASES else f"{SIZE}, "

SLOTS = 2048
PROMPT = 2048


@dataclass(frozen=True)
class Decode:
    """Greedy decoding of `tokens` tokens for `batch` sequences, from slot `position` on."""

    batch: int
    position: int
    tokens: int

    def __str__(self) -> str:
        last = self.position + self.tokens - 1
        slots = f"slots {self.position:,} to {last:,}"
        return f"{_MODEL}decode, batch {self.batch}, {slots}, per token"


_ENDS = (Decode(1, 0, 32), Decode(1, 2000, 32))
_SINGLE = (_ENDS[0], Decode(1, 1024, 32), _ENDS[1])
DECODES = (*_SINGLE, Decode(32, 2032, 16)) if ALL_CASES else _ENDS
PREFILL = f"{_MODEL}prefill, {PROMPT:,} tokens"
