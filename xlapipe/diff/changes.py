"""Every kind of change between two plans, as frozen data; `wording` puts each into words."""

from dataclasses import dataclass
from enum import StrEnum

from xlapipe.plans import SourceLine


class Place(StrEnum):
    """What memory is used for; the same division as in `Totals`."""

    ARGUMENT = "argument"
    OUTPUT = "output"
    TEMP = "temp"
    CONSTANT = "constant"
    THREAD_LOCAL = "thread-local"


class SlackReason(StrEnum):
    """Why an arena is larger than the values alive at the position where arenas are compared."""

    ELSEWHERE = "fuller at another moment"
    PACKING = "lost by the packing"
    UNKNOWN = "no live ranges"


class InstructionCategory(StrEnum):
    """What kind of work an instruction does."""

    GEMM = "gemm"
    COLLECTIVE = "collective"
    COPY = "copy"
    FUSION = "fusion"
    OTHER = "instruction"


class Action(StrEnum):
    """What happened to an instruction from A to B."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class OperationName:
    """An instruction named by the user's code, not by XLA's instruction name.

    Attributes:
      label: `dot`, or the last part of the op_name, or the opcode.
      scope: the modules in the op_name, e.g. `layers_0/mlp/down_proj`.
      source: the line of user code that it comes from, if known.
    """

    label: str
    scope: str
    source: SourceLine | None


@dataclass(frozen=True, slots=True)
class Aspect:
    """One property in which two paired instructions differ; `a` and `b` are its values as text."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class InstructionChange:
    """An instruction that was added, removed or changed.

    Attributes:
      what: its category.
      subject: its name in the user's code.
      shape: shape of its result; B's shape unless it was removed.
      a, b: its instruction names in the two plans; None in the plan without it.
      a_bytes, b_bytes: bytes of the values that it writes; None in the plan without it.
      aspects: what changed; empty unless `action` is CHANGED.
    """

    what: InstructionCategory
    action: Action
    subject: OperationName
    shape: str
    a: str | None
    b: str | None
    a_bytes: int | None
    b_bytes: int | None
    aspects: tuple[Aspect, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """A value at the schedule position where the temporary memory of the two plans is compared.

    Attributes:
      name: XLA's name in its own plan.
      held_bytes: bytes of the arena that it occupies at that position.
      place: `temp`, or the label of the leaf whose allocation contains it.
      alive: whether it is alive at that position.
    """

    name: str
    shape: str
    size_bytes: int
    held_bytes: int
    place: str
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesChange:
    """One line of the account of the difference in total_allocation_bytes.

    Attributes:
      label: label of the leaf, for arguments and outputs; the shape, for constants.
      a_alias, b_alias: label of the argument whose allocation an output is in, if any.
      a_held, b_held: the value, for a line about one value in temporary memory.
      change: the change of the instruction that writes the value.
      subject: the name of that instruction.
      room: for a line about the unused bytes of an arena, the reason for them.
      moment: for `SlackReason.ELSEWHERE`, the instruction at the peak of the larger arena;
        `fullest` is that of the smaller arena, and `fullest_value` the largest value there.
      color: color of the arena; XLA's memory space.
    """

    place: Place
    a_bytes: int
    b_bytes: int
    label: str = ""
    a_alias: str | None = None
    b_alias: str | None = None
    a_held: ComparedValue | None = None
    b_held: ComparedValue | None = None
    change: InstructionChange | None = None
    subject: OperationName | None = None
    room: SlackReason | None = None
    moment: OperationName | None = None
    fullest: OperationName | None = None
    fullest_value: str = ""
    color: int = 0

    @property
    def delta_bytes(self) -> int:
        return self.b_bytes - self.a_bytes


@dataclass(frozen=True, slots=True)
class AliasChange:
    """An argument that is aliased to different outputs in A and B, or in only one of them.

    Attributes:
      a, b: label of the output; None without an alias.
      a_donor, b_donor: whether it is donated but not aliased.
    """

    argument: str
    a: str | None
    b: str | None
    a_donor: bool = False
    b_donor: bool = False


@dataclass(frozen=True, slots=True)
class LeafChange:
    """An argument or an output that is in only one program, or differs in shape or donation.

    Attributes:
      kind: `argument` or `output`.
      a, b: label, shape and donation; None in the program without it.
      donation_only: the shapes are equal, and one of the two is donated.
    """

    kind: str
    a: str | None
    b: str | None
    donation_only: bool = False


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Values that are in a different allocation, or at a different offset of the same one.

    Attributes:
      a, b: where they are; equal if only offsets differ.
      largest_bytes: size of the largest of them.
    """

    a: str
    b: str
    count: int
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class ThunkChange:
    """The numbers of thunks of one kind in A and B, which differ."""

    kind: str
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class LaunchChange:
    """The number of thunks of one kind whose grid, threads or shared memory differ."""

    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class OrderChange:
    """How many of the instructions in both plans run in a different order."""

    count: int
    of: int


@dataclass(frozen=True, slots=True)
class OutputChange:
    """An output that is computed by a different instruction."""

    label: str
    a: OperationName
    b: OperationName


@dataclass(frozen=True, slots=True)
class HostMemoryChange:
    """Another number of bytes in pinned host memory; the account is of device memory alone."""

    a_bytes: int
    b_bytes: int


@dataclass(frozen=True, slots=True)
class ChipMemoryChange:
    """Another number of bytes in a memory of a TPU's chip; the account is of HBM alone.

    Attributes:
      space: `vmem` or `smem`.
    """

    space: str
    a_bytes: int
    b_bytes: int


@dataclass(frozen=True, slots=True)
class MovesChange:
    """Other moves between the memories of a TPU, in one direction.

    Attributes:
      source_space, target_space: e.g. `hbm` and `vmem`.
      a_count, b_count: the number of moves.
    """

    source_space: str
    target_space: str
    a_count: int
    b_count: int
    a_bytes: int
    b_bytes: int


@dataclass(frozen=True, slots=True)
class HiddenChange:
    """HLO that differs only in what a plan does not record: literals, slices, dimension numbers.

    Attributes:
      a, b: the first line of HLO that differs.
    """

    a: str
    b: str


Change = (
    InstructionChange
    | AliasChange
    | PlacementChange
    | ThunkChange
    | LaunchChange
    | OrderChange
    | OutputChange
    | HostMemoryChange
    | ChipMemoryChange
    | MovesChange
    | HiddenChange
)
