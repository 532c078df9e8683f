"""What one launch of a kernel does, as far as its time depends on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log2

from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.time.predict.convolutions import EngineWork
from xlapipe.time.predict.gpu import HOPPER, Gpu
from xlapipe.time.predict.program_work import ProgramWork
from xlapipe.time.predict.triton_tiles import ProductTile

TRIED_SCATTER = "scatter by attempts"
"""Of a kind: an update reads, adds, and tries again if another one came between."""
# Of `beside_memory`: an operation and a read of a thread's chain, and what a small kernel takes.
_CHAIN_SECONDS, _READ_SECONDS, _SMALL_SECONDS = 3e-9, 10e-9, 0.5e-6
_SERIAL_SECONDS = 20e-9
# Beginnings of kinds whose time follows from what they compute, and of the calls that XLA makes.
_COUNTED = ("loop", "input", "triton", "custom", "copy", "host", "pallas", "__", *COLLECTIVES)
# Of `meeting_rows`: more of them rarely meet in one place.
_MEETING_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of a scatter.

    Attributes:
      seconds: that the L2 cache takes if they are spread evenly over the places.
      rows: that are added at one index each, of which nobody knows how many meet; 0 of those that
        are unique or have several indices each.
      several_of_a_place: whether there are more of them than places.
      tried: whether a thread tries again where another update came between.
      negated: whether that is since a sum with a negated update becomes a difference.
      rows_of_a_constant: that are assumed to have one index, which a select chooses.
      meeting_seconds: of each of those in one place, or of `meeting_rows` if they met there.
      most_seconds: that the kernel takes, whatever kernels took that were timed.
    """

    seconds: float
    rows: float
    several_of_a_place: bool
    tried: bool
    negated: bool
    rows_of_a_constant: float
    meeting_seconds: float
    most_seconds: float = inf

    @property
    def meeting_rows(self) -> float:
        """Rows for which is said what they take if they meet: half of them, but not very many."""
        return min(self.rows / 2, _MEETING_ROWS)


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
      serial_accesses: that each thread makes one after another. Of a column reduction: of each
        element it adds up, one for each result and a quarter for each operand.
      lines, sector_bytes, far_sector_bytes: of the caches, as `ThreadWork` has them.
      missing_threads: that blocks have less than others, which start as slowly.
      updates: of a scatter; None of other kernels.
      chain_operations, chain_reads: of the thread that has most of them, of those that wait for
        each other: operations, and reads for terms of a sum.
      scattered_bytes: of sectors that a warp writes in several parts, each part counted once.
      apart_seconds: until all threads have made reads that follow each other.
      tile: of a product by Triton; None if unknown.
      program: of a Pallas kernel whose code was counted; None of others.
      update_seconds: that the L2 cache takes for what it adds to.
      blocks: of another product or a convolution that compute one tile of the result each; 0 if
        unknown.
      block_flops: operations of each, those of a tile's padding included.
      engine: of a convolution; None if unknown.
      as_tuned: an untuned product or convolution, of which the work is that with a tile or an
        engine as tuners choose it.
      or_else: of such a product, its work by cuBLAS, which a tuner takes if it is faster.
      partly_unknown: a Pallas kernel whose author does not state what it reads and computes.
      gpu: that runs it.
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
    apart_seconds: float = 0.0
    updates: Updates | None = None
    missing_threads: int = 0
    chain_operations: float = 0.0
    chain_reads: float = 0.0
    lines: float = 0.0
    tile: ProductTile | None = None
    program: ProgramWork | None = None
    update_seconds: float = 0.0
    blocks: float = 0.0
    block_flops: float = 0.0
    engine: EngineWork | None = None
    partly_unknown: bool = False
    as_tuned: bool = False
    or_else: "KernelWork | None" = None
    gpu: Gpu = HOPPER

    @property
    def beside_memory(self) -> float:
        """A coordinate of kernels that XLA emits: what takes longer, memory or all else.

        The base-2 logarithm of the ratio of the two, roughly; 0 of small kernels.
        """
        each = _CHAIN_SECONDS if self.kind.startswith("loop") else _CHAIN_SECONDS / 6
        memory_rate, rate = self.gpu.bandwidth, self.gpu.vector
        beside = max(
            self.operations / (29e12 * rate),
            self.threads / (0.21e12 * rate),
            self.lines / (0.46e12 * rate),
            self.scattered_bytes / (3.1e12 * rate),
            self.sector_bytes / (6.7e12 * rate) + self.far_sector_bytes / (1.3e12 * memory_rate),
            self.updates.seconds if self.updates is not None else 0.0,
            self.chain_operations * each + self.chain_reads * _READ_SECONDS,
            self.serial_accesses * _SERIAL_SECONDS,
            self.apart_seconds,
        )
        memory = self.touched_bytes / (4.5e12 * memory_rate)
        return log2((beside + _SMALL_SECONDS) / (memory + _SMALL_SECONDS))

    @property
    def is_library_call(self) -> bool:
        """Whether it is known by the name of a library's call alone, not by what it computes."""
        return not (self.flops or self.kind.startswith(_COUNTED))

    @property
    def at_once(self) -> float:
        """Kernels of its launch that run beside each other."""
        return self.engine.at_once if self.engine is not None else 1.0

    @property
    def touched_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes
