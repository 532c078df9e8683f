"""Work of one kernel launch, as far as its time depends on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log2

from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.plans.short_repr import short_repr
from xlapipe.time.predict.convolutions import EngineWork
from xlapipe.time.predict.gpu import HOPPER, SMALL_SECONDS, Gpu
from xlapipe.time.predict.program_work import ProgramWork
from xlapipe.time.predict.triton_tiles import ProductTile

TRIED_SCATTER = "scatter by attempts"
"""Part of a kind: each update is a compare-and-swap loop, which retries under contention."""
# For `beside_memory`: seconds of latency per operation and per read of a thread's dependent chain,
# and per dependent access to memory, cached or not.
_CHAIN_SECONDS, _READ_SECONDS, _SERIAL_SECONDS = 3e-9, 10e-9, 20e-9
# Prefixes of kinds whose time follows from what they compute, and of calls that XLA makes.
_COUNTED = ("loop", "input", "triton", "custom", "copy", "host", "pallas", "__", *COLLECTIVES)


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of a scatter.

    Attributes:
      seconds: seconds that the L2 cache takes if updates are spread evenly over destinations.
      several_of_a_place: whether there are more updates than destinations.
      tried: whether a thread retries (compare-and-swap) if another update came between.
      rows_of_a_constant: rows assumed to share one index, a constant that a select chooses.
      most_seconds: upper limit of the kernel's time, whatever similar timed kernels took.
    """

    seconds: float
    several_of_a_place: bool
    tried: bool
    rows_of_a_constant: float
    most_seconds: float = inf


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One launch of a kernel.

    Attributes:
      kind: group of comparable kernels; a calibration has timed kernels of each kind.
      point: coordinates of the kernel among those of its kind, base-2 logarithms mostly.
      read_bytes, written_bytes: bytes that the kernel touches.
      operations: arithmetic on elements, in simple float32 operations.
      least_seconds: that it takes, whatever similar timed kernels took.
      flops: of products and convolutions by type; empty if there are none.
      threads: number of threads; 0 if unknown.
      what: description of the work for users.
      link_bytes: bytes that a device sends to other GPUs.
      serial_accesses: dependent accesses of each thread. In a column reduction, for each element
        that it adds up, one per result and a quarter per operand.
      lines, sector_bytes: of the caches, as in `ThreadWork`.
      updates: of a scatter; None of other kernels.
      chain_operations, chain_reads: dependent chain of the thread with most of them: operations,
        and reads for terms of a sum.
      tile: of a product by Triton; None if unknown.
      program: of a Pallas kernel whose code was counted; None of others.
      blocks: thread blocks of another product or a convolution, each of which computes one tile; 0
        if unknown.
      block_flops: operations of each block, including a tile's padding.
      engine: of a convolution; None if unknown.
      as_tuned: whether a product or convolution is untuned; its work then assumes a tile or an
        engine that a tuner would choose.
      or_else: work of such a product by cuBLAS, which a tuner chooses if it is faster.
      partly_unknown: whether part of a Pallas kernel's work is not stated, or depends on data.
      gpu: that runs it.
    """

    __repr__ = short_repr

    kind: str
    point: tuple[float, ...]
    read_bytes: int
    written_bytes: int
    operations: float
    flops: Mapping[str, int]
    threads: int
    what: str
    link_bytes: int = 0
    least_seconds: float = 0.0
    serial_accesses: float = 0.0
    sector_bytes: int = 0
    updates: Updates | None = None
    chain_operations: float = 0.0
    chain_reads: float = 0.0
    lines: float = 0.0
    tile: ProductTile | None = None
    program: ProgramWork | None = None
    blocks: float = 0.0
    block_flops: float = 0.0
    engine: EngineWork | None = None
    partly_unknown: bool = False
    as_tuned: bool = False
    or_else: "KernelWork | None" = None
    gpu: Gpu = HOPPER

    @property
    def beside_memory(self) -> float:
        """Coordinate of XLA-emitted kernels: whether memory or all else is the bottleneck.

        The base-2 logarithm of the ratio of the two, roughly; 0 of small kernels.
        """
        link_seconds = _CHAIN_SECONDS if self.kind.startswith("loop") else _CHAIN_SECONDS / 6
        gpu = self.gpu
        beside = max(
            self.operations / gpu.operation_rate,
            self.threads / gpu.thread_rate,
            self.lines / gpu.line_rate,
            self.sector_bytes / gpu.sector_rate,
            self.updates.seconds if self.updates is not None else 0.0,
            self.chain_operations * link_seconds + self.chain_reads * _READ_SECONDS,
            self.serial_accesses * _SERIAL_SECONDS,
        )
        memory = self.touched_bytes / gpu.bytes_rate
        return log2((beside + SMALL_SECONDS) / (memory + SMALL_SECONDS))

    @property
    def is_library_call(self) -> bool:
        """Whether only the name of a library call is known, not what it computes."""
        return not (self.flops or self.kind.startswith(_COUNTED))

    @property
    def at_once(self) -> float:
        """Concurrent kernels of its launch."""
        return self.engine.at_once if self.engine is not None else 1.0

    @property
    def touched_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes
