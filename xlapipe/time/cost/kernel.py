"""One kernel of a step, with all that a plan states about its launches."""

from collections.abc import Mapping
from dataclasses import dataclass

from xlapipe.plans import SourceLine, Thunk
from xlapipe.plans.kernel_code import KernelCode, StatedCost
from xlapipe.plans.short_repr import short_repr
from xlapipe.time.cost.schedule import Site
from xlapipe.time.cost.touched import Touched


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """One kernel; every figure is of all its launches in a step.

    Attributes:
      name: of the HLO instruction.
      kind: opcode, kind of fusion, or target of a custom call.
      launches: in a branch of a conditional, the number if that branch is taken; in a loop of
        unknown trip count, those of one trip.
      read_bytes, written_bytes: as touched.
      cached_bytes: the part of `read_bytes` that the L2 cache may serve.
      stated: whether bytes and operations are the author's statement.
      code: of a Pallas kernel, counted; None if it is unknown or stated.
      unknown_bytes: the most that it may touch beyond them.
      flops: by type; None if unknown.
      memory_seconds, compute_seconds, link_seconds: the three bounds; None without speeds.
      asynchronous: whether other kernels run at the same time.
    """

    name: str
    kind: str
    op_name: str | None
    source: SourceLine | None
    launches: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    cached_bytes: int = 0
    unknown_bytes: int = 0
    flops: Mapping[str, int] | None = None
    memory_seconds: float | None = None
    compute_seconds: float | None = None
    link_seconds: float | None = None
    asynchronous: bool = False
    stated: bool = False
    code: KernelCode | None = None

    @property
    def touched_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def total_flops(self) -> int | None:
        """Operations of all types; None if unknown."""
        return None if self.flops is None else sum(self.flops.values())

    @property
    def floor_seconds(self) -> float | None:
        """The largest of the three bounds; None without speeds."""
        if self.memory_seconds is None:
            return None
        return max(self.memory_seconds, self.compute_seconds or 0.0, self.link_seconds or 0.0)

    @property
    def bound(self) -> str | None:
        """The bottleneck: `memory`, `compute` or `link`; None without speeds."""
        floor = self.floor_seconds
        if floor is None:
            return None
        if floor == self.memory_seconds:
            return "memory"
        return "compute" if floor == self.compute_seconds else "link"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a step, as each of its launches is.

    Attributes:
      cost: of one launch, without bounds and cached bytes.
      touched: memory that it reads and writes.
      thunk: that launches it; None if unknown.
      graph: number of the command buffer that has it; None outside of one.
      graph_size: kernels of that command buffer.
      wire_bytes: that a device sends to other GPUs.
      stated: of a Pallas kernel, what its author states, or what was counted in its code.
    """

    __repr__ = short_repr

    site: Site
    cost: KernelCost
    touched: Touched
    thunk: Thunk | None = None
    graph: int | None = None
    graph_size: int = 0
    wire_bytes: int = 0
    stated: StatedCost | None = None

    @property
    def name(self) -> str:
        """Name of its HLO instruction."""
        return self.site.name
