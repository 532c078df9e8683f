"""SamplingSettings of sampling, with checks of their ranges. Imports no jax."""

import math
from dataclasses import dataclass

from xlapipe import XlapipeError

# All values of top-k up to this share one executable.
FEW_CANDIDATES = 64
# Maximum number of ids that end a sequence. Fixed, so that one executable serves all checkpoints.
MAX_EOS = 8
MAX_SEED = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Greedy decoding, or sampling with temperature, then top-k, then top-p.

    Attributes:
      greedy: take the most probable token and ignore the other settings.
      temperature: above 0; logits are divided by it.
      top_k: keep this number of the most probable tokens; None keeps all.
      top_p: in (0, 1]; of those, keep the smallest set of most probable tokens whose total
        probability is at least this; 1 keeps all.
      seed: in [0, 2³²).

    Raises:
      XlapipeError: a value is out of range.
    """

    greedy: bool = True
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise XlapipeError(
                f"temperature {self.temperature:g}: expected a number above 0; "
                "fix: --greedy takes the most probable token"
            )
        if self.top_k is not None and self.top_k < 1:
            raise XlapipeError(
                f"top-k {self.top_k}: expected 1 or more, or no top-k for all tokens"
            )
        if not 0 < self.top_p <= 1:
            raise XlapipeError(f"top-p {self.top_p:g}: expected a number in (0, 1]")
        if not 0 <= self.seed <= MAX_SEED:
            raise XlapipeError(f"seed {self.seed}: expected 0 to {MAX_SEED:,}")

    def candidates(self, vocab_size: int) -> int | None:
        """Number of most probable tokens to sort: the static argument of `sampling.next_tokens`.

        1 for greedy; None, which sorts nothing, if neither top-k nor top-p is used.
        """
        if self.greedy:
            return 1
        if self.top_k is None:
            return None if self.top_p == 1 else vocab_size
        if self.top_k <= FEW_CANDIDATES:
            return min(FEW_CANDIDATES, vocab_size)
        return min(1 << (self.top_k - 1).bit_length(), vocab_size)
