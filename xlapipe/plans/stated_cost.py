"""What a program's author states of the cost of its kernels."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StatedCost:
    """What the author states of a Pallas kernel, whose code XLA does not have.

    Attributes:
      kernel: its name.
      result_bytes: size of its results, if kernels of the name differ; None for all of the name.
      accessed_bytes: bytes that one launch reads and writes in device memory.
      flops: operations of one launch; None if they are not stated.
    """

    kernel: str
    result_bytes: int | None
    accessed_bytes: int
    flops: int | None = None
