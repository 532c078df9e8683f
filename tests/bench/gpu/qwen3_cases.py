"""The cases of the Qwen3 comparison: random weights, in bfloat16.

The variable QWEN3_SIZE chooses the model, by default the 0.6B one, and QWEN3_CASES some of KINDS.
One sequence of other sizes is decoded with an empty and with a full cache only.
"""

import os
from dataclasses import dataclass

from models.qwen3.config import CONFIGS

SIZE = os.environ.get("QWEN3_SIZE", "0.6b")
CONFIG = CONFIGS[SIZE]
# Decoding of one sequence and of 32, and a prompt.
KINDS = ("single", "batch", "prompt")
CASES = os.environ.get("QWEN3_CASES", ",".join(KINDS)).split(",")
_SMALLEST = SIZE == "0.6b"
_MODEL = "" if _SMALLEST else f"{SIZE}, "

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


_SINGLE = tuple(Decode(1, slot, 32) for slot in ((0, 1024, 2000) if _SMALLEST else (0, 2000)))
DECODES = (
    *(_SINGLE if "single" in CASES else ()),
    *((Decode(32, 2032, 16),) if "batch" in CASES else ()),
)
PREFILL = f"{_MODEL}prefill, {PROMPT:,} tokens"
PREFILLS = (PREFILL,) if "prompt" in CASES else ()
