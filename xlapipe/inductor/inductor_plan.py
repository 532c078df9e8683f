"""An InductorPlan: what one graph's dump states about memory and execution.

It has the nouns of `xlapipe.plans.Plan`: BufferAllocation, LogicalBuffer, InputOutputAlias, Gemm,
SourceLine, schedule positions. It is a separate class because XLA reserves its allocations for
the whole run, at fixed offsets, while Inductor's wrapper takes each from torch's caching allocator
and gives it back: an allocation has a Lifetime, allocations do not add up to a total, and there
are no thunks and no HLO. A `Plan` with these gaps filled in would add facts that the dump lacks.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from xlapipe.inductor.layouts import Layout
from xlapipe.plans import (
    AllocationKind,
    BufferAllocation,
    Gemm,
    InputOutputAlias,
    LiveRange,
    SourceLine,
)
from xlapipe.plans.short_repr import short_repr


class GraphKind(StrEnum):
    """What AOTAutograd compiled a graph for."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INFERENCE = "inference"


class KernelKind(StrEnum):
    """Who computes a step of the wrapper."""

    TRITON = "triton"
    TEMPLATE = "template"
    USER_TRITON = "user_triton"
    CPP = "cpp"
    EXTERN = "extern"
    FALLBACK = "fallback"
    COLLECTIVE = "collective"
    WAIT = "wait"
    RESIZE = "resize"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class InductorKernel:
    """One launch or call, in the order of the wrapper.

    Attributes:
      name: name of the Triton kernel, or of the operator, e.g. `extern_kernels.mm`.
      node: the scheduler's node, e.g. `op3`, if the plan comes from IR.
      reads, writes: names of buffers and arguments.
      origins: operators from which it was made, e.g. `aten.mul`.
    """

    position: int
    kind: KernelKind
    name: str
    line: int
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    node: str | None = None
    source: SourceLine | None = None
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When an allocation is held, in schedule positions, both ends included.

    Attributes:
      start: position of the first kernel after it was allocated; 0 for an argument.
      end: last kernel before it was freed; the number of kernels if the call returns while
        it is held.
      freed_line: line of the statement that drops the last reference; None if none does.
    """

    start: int
    end: int
    held_at_peak: bool
    held_at_end: bool
    line: int
    freed_line: int | None


@dataclass(frozen=True, slots=True)
class InductorArgument:
    """One tensor argument of the call.

    Attributes:
      number: its place among all arguments, numbers included.
      given_away: whether the call frees it at its `del`.
      allocation: index of its allocation; None if its size is not known.
    """

    number: int
    name: str
    layout: Layout | None
    size_bytes: int | None
    given_away: bool
    mutated: bool
    allocation: int | None


@dataclass(frozen=True, slots=True)
class InductorOutput:
    """One tensor that the call returns.

    Attributes:
      argument: number of the argument that is returned as it was given, if it is one.
      saved: whether it is kept for the backward graph only.
    """

    index: int
    name: str
    layout: Layout | None
    size_bytes: int | None
    allocation: int | None
    argument: int | None = None
    saved: bool = False


@dataclass(frozen=True, slots=True)
class UnknownAllocation:
    """A call that allocates a number of bytes which the dump does not state.

    Attributes:
      result_bytes: bytes of its results, which are counted; None if also unknown.
    """

    position: int
    name: str
    line: int
    result_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class InductorCollective:
    """One collective, as `xlapipe.plans.collectives.Collective` where both know the same.

    Attributes:
      kind: in XLA's spelling, e.g. `all-gather`.
      group_size: devices of its group; None if unknown.
      start, end: positions of the call and of the `wait_tensor` that waits for it.
      used: whether a kernel that computes, or the caller, reads its result.
    """

    instruction: str
    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    operand_bytes: int | None
    output_bytes: int | None
    group_size: int | None
    start: int
    end: int | None
    overlapped_by: tuple[str, ...]
    used: bool
    source: SourceLine | None


class FindingKind(StrEnum):
    DUPLICATE_STORE = "duplicate_store"
    NEVER_READ = "never_read"
    UNINITIALISED = "uninitialised_read"
    STRIDED_READ = "strided_read"
    RECOMPUTED_REDUCTION = "recomputed_reduction"
    FLOAT64 = "float64_per_element"
    UNUSED_COLLECTIVE = "unused_collective"


@dataclass(frozen=True, slots=True)
class InductorFinding:
    """Work or memory that the program does not need.

    Attributes:
      size_bytes: size of what is stored, read or computed needlessly; None if not known.
    """

    kind: FindingKind
    node: str
    size_bytes: int | None
    detail: str
    line: int
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class ResizedStorage:
    """A storage that the graph resizes, as FSDP does to free gathered weights."""

    buffer: str
    node: str
    new_bytes: int | None
    line: int


@dataclass(frozen=True, slots=True)
class InductorTotals:
    """Bytes of one call; the names that `xlapipe.plans.Totals` has too mean the same.

    Attributes:
      own_peak_bytes: what the call holds at its worst beyond its arguments; arguments that the
        caller gives away count as freed at their `del`.
      peak_with_arguments_bytes: what the call and its arguments hold at their worst if the caller
        keeps none of these, so that each is freed at its `del`; None as `argument_bytes`.
      output_bytes: bytes of what the call computes and returns, each allocation once.
      saved_bytes: outputs kept for the backward graph only; None without that graph.
      end_bytes: what the call holds beyond its arguments when it returns; below 0 where it frees
        more than it leaves.
      live_out_bytes: as `output_bytes`, arguments that are returned or mutated included.
      aliased_bytes: arguments among them.
    """

    own_peak_bytes: int
    argument_bytes: int | None
    peak_with_arguments_bytes: int | None
    output_bytes: int
    unknown_allocations: int
    given_argument_bytes: int
    saved_bytes: int | None
    end_bytes: int
    live_out_bytes: int
    aliased_bytes: int
    constant_bytes: int


@dataclass(frozen=True)
class InductorPlan:
    """What a reader found in the dump of one graph. A part that the dump lacks is None.

    Attributes:
      graph: AOT id, e.g. `0_forward`, or the folder's name.
      exact: whether it comes from wrapper code; otherwise it is derived from IR by liveness and
        Inductor's rule for in-place reuse.
      allocations: numbered by index; a temporary one has no kind.
      peak_position: position of the kernel at which the call holds most; None for an empty graph.
    """

    __repr__ = short_repr

    where: str
    graph: str
    kind: GraphKind | None
    exact: bool
    totals: InductorTotals
    allocations: tuple[BufferAllocation, ...] = ()
    lifetimes: tuple[Lifetime, ...] = ()
    live_ranges: tuple[LiveRange, ...] = ()
    arguments: tuple[InductorArgument, ...] = ()
    outputs: tuple[InductorOutput, ...] = ()
    kernels: tuple[InductorKernel, ...] = ()
    aliases: tuple[InputOutputAlias, ...] = ()
    gemms: tuple[Gemm, ...] = ()
    collectives: tuple[InductorCollective, ...] = ()
    unknown: tuple[UnknownAllocation, ...] = ()
    findings: tuple[InductorFinding, ...] = ()
    resized_storages: tuple[ResizedStorage, ...] = ()
    peak_position: int | None = None
    peak_line: int | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def held_at_peak(self) -> tuple[BufferAllocation, ...]:
        """Allocations of the call's own that are held at its peak, most bytes first."""
        held = (
            allocation
            for allocation, lifetime in zip(self.allocations, self.lifetimes, strict=True)
            if lifetime.held_at_peak and not allocation.is_a(AllocationKind.PARAMETER)
        )
        return tuple(sorted(held, key=lambda allocation: -allocation.size_bytes))

    @property
    def peak_kernel(self) -> str | None:
        """Name of the kernel at which the call holds most; None for one after the last."""
        if self.peak_position is None or self.peak_position >= len(self.kernels):
            return None
        return self.kernels[self.peak_position].name

    @property
    def freed_at_peak_bytes(self) -> int:
        """Arguments that the call has freed at its peak, where it holds so much more."""
        held = sum(allocation.size_bytes for allocation in self.held_at_peak)
        return held - self.totals.own_peak_bytes

    @cached_property
    def kernel_counts(self) -> Mapping[str, int]:
        return dict(sorted(Counter(str(kernel.kind) for kernel in self.kernels).items()))

    @property
    def basis(self) -> str:
        """How exact it is, as every display of the plan states."""
        return "exact, from wrapper code" if self.exact else "derived from IR, not exact"
