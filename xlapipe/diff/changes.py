"""What is different between two plans, as frozen data; `sentences` says it in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from xlapipe.plan import SourceLine, Totals


class Place(StrEnum):
    """What memory is for, as XLA's totals divide it."""

    ARGUMENT = "argument"
    OUTPUT = "output"
    TEMP = "temp"
    CONSTANT = "constant"
    THREAD_LOCAL = "thread-local"


class Room(StrEnum):
    """Why an arena is larger than what is alive at the moment of the comparison."""

    ELSEWHERE = "fuller at another moment"
    PACKING = "lost by the packing"
    UNKNOWN = "no live ranges"


class What(StrEnum):
    """What an instruction is to people."""

    GEMM = "gemm"
    COLLECTIVE = "collective"
    COPY = "copy"
    FUSION = "fusion"
    OTHER = "instruction"


class Action(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Subject:
    """An instruction as its author knows it.

    Attributes:
      label: `dot`, or what the op_name ends in, or the opcode.
      scope: the op_name's modules, e.g. `layers_0/mlp/down_proj`.
    """

    label: str
    scope: str
    source: SourceLine | None


@dataclass(frozen=True, slots=True)
class Aspect:
    """One thing about a pair of instructions that is not the same; texts for people."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class InstructionChange:
    """An instruction that came, went, or is done otherwise.

    Attributes:
      a, b: its names in the two plans.
      a_bytes, b_bytes: of the values that it writes; None where it is not there.
      shape: of its result (in B, where it is there).
      aspects: of a changed one; never empty.
    """

    what: What
    action: Action
    subject: Subject
    shape: str
    a: str | None
    b: str | None
    a_bytes: int | None
    b_bytes: int | None
    aspects: tuple[Aspect, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueHeld:
    """A value at the moment at which the temporary memory of the two plans is compared.

    Attributes:
      name: XLA's, in its own plan.
      held_bytes: what it takes of the arena at that moment.
      place: where it lies: `temp`, or the label of the leaf in whose memory it lies.
      alive: at the moment.
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
      label: of the leaf, for arguments and outputs; the shape, for constants.
      a_alias, b_alias: label of the argument in whose memory an output lies.
      a_held, b_held: for a value in temporary memory.
      change: what was done otherwise about the instruction that writes the value.
      subject: that instruction.
      room: for a line of an arena's room to spare.
      moment: for `Room.ELSEWHERE`, where the larger arena is fullest; `fullest` is where the
        smaller one is, and `fullest_value` the largest value there.
      color: of the arena; XLA's memory space.
    """

    place: Place
    a_bytes: int
    b_bytes: int
    label: str = ""
    a_alias: str | None = None
    b_alias: str | None = None
    a_held: ValueHeld | None = None
    b_held: ValueHeld | None = None
    change: InstructionChange | None = None
    subject: Subject | None = None
    room: Room | None = None
    moment: Subject | None = None
    fullest: Subject | None = None
    fullest_value: str = ""
    color: int = 0

    @property
    def delta_bytes(self) -> int:
        return self.b_bytes - self.a_bytes


@dataclass(frozen=True, slots=True)
class AliasChange:
    """An argument that is written over by another output than before, or by none.

    Attributes:
      a, b: label of the output; None without one.
      a_donor, b_donor: donated, and left without alias.
    """

    argument: str
    a: str | None
    b: str | None
    a_donor: bool = False
    b_donor: bool = False


@dataclass(frozen=True, slots=True)
class LeafChange:
    """An argument or an output that the other program has not, or has in another form."""

    kind: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Values that lie elsewhere, at no cost of their own; `a` equal to `b` for other offsets."""

    a: str
    b: str
    count: int
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class ThunkChange:
    """Thunks of a kind, of which there are more or fewer."""

    kind: str
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class LaunchChange:
    """Thunks of a kind that are launched otherwise: grid, threads or shared memory."""

    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class OrderChange:
    """Instructions of both plans that run in another order."""

    count: int
    of: int


@dataclass(frozen=True, slots=True)
class OutputChange:
    """An output that another instruction computes."""

    label: str
    a: Subject
    b: Subject


@dataclass(frozen=True, slots=True)
class HiddenChange:
    """HLO that differs in what a plan does not hold: literals, slices, dimension numbers."""

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
    | HiddenChange
)


@dataclass(frozen=True)
class Difference:
    """All that is different between the plans A and B.

    Attributes:
      context: what the two were made with, where that differs: `jaxlib` to ("0.10.2", "0.11.2").
      programs: how the programs themselves differ; not empty means that two programs, not two
        compiles of one, were compared.
      account: lines whose deltas add up to the difference of `total_allocation_bytes`.
      changes: what is different besides, the most bytes written first.
      first_stage: the compiler stage at which the two part; None where they do not, or the
        dumps do not tell.
    """

    a_name: str
    b_name: str
    a_totals: Totals
    b_totals: Totals
    context: Mapping[str, tuple[str, str]]
    programs: tuple[LeafChange, ...]
    account: tuple[BytesChange, ...]
    changes: tuple[Change, ...]
    first_stage: str | None = None

    @property
    def delta_bytes(self) -> int:
        """Total of B less total of A; what the lines of `account` add up to."""
        return self.b_totals.total_allocation_bytes - self.a_totals.total_allocation_bytes

    @property
    def same(self) -> bool:
        """Whether the plans are the same, whatever they were made with."""
        return not (self.programs or self.account or self.changes)
