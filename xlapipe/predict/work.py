"""What one launch of a kernel does, as far as its time depends on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2

from xlapipe.predict.convolutions import EngineWork
from xlapipe.predict.triton_tiles import ProductTile

MEETING_SECONDS = 20e-9
"""An update that meets another one in its place, as an H200 took with rows of 64 elements."""
TRYING_SECONDS = 350e-9
"""Of n rows of 16 bits in one place, for each of n^1.5: 200 to 480 ns (docs/lab/time.md)."""
# Of `beside_memory`: an operation and a read of a thread's chain, and what a small kernel takes.
_CHAIN_SECONDS, _READ_SECONDS, _SMALL_SECONDS = 3e-9, 10e-9, 0.5e-6


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One launch of a kernel.

    Attributes:
      kind: what kernels are compared with; a calibration has timed kernels of each kind.
      point: coordinates of the kernel among those of its kind, base-2 logarithms mostly.
      read_bytes, written_bytes: as touched.
      operations: arithmetic on elements, in simple float32 operations.
      flops: of products and convolutions by type; empty if there are none.
      threads: number of threads; 0 if unknown.
      what: the same in words, for people.
      link_bytes: that a device sends to others.
      serial_accesses: that each thread of a column reduction makes one after another: of each
        element it adds up, one for each result and a quarter for each operand.
      lines, sector_bytes, far_sector_bytes: of the caches, as `ThreadWork` has them.
      rows_of_a_constant: of a scatter, that are assumed to have one index, which a select chooses.
      missing_threads: that blocks have less than others, which start as slowly.
      update_seconds: that the L2 cache takes for the updates of a scatter.
      chain_operations, chain_reads: of the thread that has most of them, of those that wait for
        each other: operations, and reads for terms of a sum.
      scattered_bytes: of sectors that a warp writes in several parts, each part counted once.
      tile: of a product by Triton; None if unknown.
      blocks: of another product or a convolution that compute one tile of the result each; 0 if
        unknown.
      block_flops: operations of each, those of a tile's padding included.
      engine: of a convolution; None if unknown.
      as_tuned: an untuned product or convolution, of which the work is that with a tile or an
        engine as tuners choose it.
      partly_unknown: a Pallas kernel whose author does not state what it reads and computes.
    """

    kind: str
    point: tuple[float, ...]
    read_bytes: int
    written_bytes: int
    operations: float
    flops: Mapping[str, int]
    threads: int
    what: str
    link_bytes: int = 0
    serial_accesses: float = 0.0
    sector_bytes: int = 0
    far_sector_bytes: int = 0
    scattered_bytes: int = 0
    update_seconds: float = 0.0
    rows_of_a_constant: float = 0.0
    missing_threads: int = 0
    chain_operations: float = 0.0
    chain_reads: float = 0.0
    lines: float = 0.0
    tile: ProductTile | None = None
    blocks: float = 0.0
    block_flops: float = 0.0
    engine: EngineWork | None = None
    partly_unknown: bool = False
    as_tuned: bool = False

    @property
    def beside_memory(self) -> float:
        """A coordinate of kernels that XLA emits: what takes longer, memory or all else.

        The base-2 logarithm of the ratio of the two on an H200, roughly; 0 of small kernels.
        """
        each = _CHAIN_SECONDS if self.kind.startswith("loop") else _CHAIN_SECONDS / 6
        beside = max(
            self.operations / 29e12,
            self.threads / 0.21e12,
            self.lines / 0.46e12,
            self.scattered_bytes / 3.1e12,
            self.sector_bytes / 6.7e12 + self.far_sector_bytes / 1.3e12,
            self.update_seconds,
            self.chain_operations * each + self.chain_reads * _READ_SECONDS,
        )
        memory = self.touched_bytes / 4.5e12
        return log2((beside + _SMALL_SECONDS) / (memory + _SMALL_SECONDS))

    @property
    def touched_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def rows_that_may_meet(self) -> float:
        """Updates of a scatter with several for each place, which wait for each other; else 0.

        Of 16 bits also those with fewer: there, n updates of one place try some n^1.5 times.
        """
        words = self.kind.split()
        if "scatter" not in words or (self.point[-1] <= 0 and not self.tries_again):
            return 0.0
        return float(2 ** (self.point[0] - self.point[3]))

    @property
    def tries_again(self) -> bool:
        """Whether an update reads, adds, and does so again if another one came between."""
        return self.kind.endswith("scatter of 16 bits")
