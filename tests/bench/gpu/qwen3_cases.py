"""The cases of the Qwen3 comparison: the 0.6B model with random weights, in bfloat16."""

from dataclasses import dataclass

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
        return f"decode, batch {self.batch}, slots {self.position:,} to {last:,}, per token"


DECODES = (Decode(1, 0, 32), Decode(1, 1024, 32), Decode(1, 2000, 32), Decode(32, 2032, 16))
PREFILL = f"prefill, {PROMPT:,} tokens"
