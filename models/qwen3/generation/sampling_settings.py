"""How tokens are to be chosen, checked. Imports no jax."""

import math
from dataclasses import dataclass

from xlapipe.errors import XlapipeError

# Top-k's up to this share one executable.
FEW_CANDIDATES = 64
# Room for the ids that end a sequence, whichever they are: one executable serves all checkpoints.
MAX_EOS = 8
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Greedy, or drawn by temperature, then top-k, then top-p.

    Attributes:
      greedy: the likeliest token; the rest is not looked at.
      temperature: above 0; logits are divided by it.
      top_k: how many of the likeliest tokens stay; None for all.
      top_p: in (0, 1]; of those, as few of the likeliest as reach this mass; 1 for all.
      seed: in [0, 2³²).

    Raises:
      XlapipeError: a value outside its range.
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
                "--greedy takes the likeliest token"
            )
        if self.top_k is not None and self.top_k < 1:
            raise XlapipeError(f"top-k {self.top_k}: expected 1 or more; leave it out for all")
        if not 0 < self.top_p <= 1:
            raise XlapipeError(f"top-p {self.top_p:g}: expected a number in (0, 1]")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise XlapipeError(f"seed {self.seed}: expected 0 to {LARGEST_SEED:,}")

    def candidates(self, vocab_size: int) -> int | None:
        """How many of the likeliest tokens have to be put in order: `sampling`'s static argument.

        1 for greedy, None where temperature alone is asked for.
        """
        if self.greedy:
            return 1
        if self.top_k is None:
            return None if self.top_p == 1 else vocab_size
        if self.top_k <= FEW_CANDIDATES:
            return min(FEW_CANDIDATES, vocab_size)
        return min(1 << (self.top_k - 1).bit_length(), vocab_size)
