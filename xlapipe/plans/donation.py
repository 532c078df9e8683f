"""The outcome of each donation: one row per donated pytree leaf.

JAX pairs a donated leaf with an output of the same shape, dtype and sharding. It passes a leaf
without such an output to XLA as a buffer donor if an output has the same number of elements, and
prints nothing. XLA keeps an alias even if it has to copy the whole buffer as well. The plan shows
all of this.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any, NamedTuple

from xlapipe.plans.buffers import AllocationKind, InputOutputAlias
from xlapipe.plans.copies import Copy, Move, find_copies, find_moves
from xlapipe.plans.copy_advice import copy_advice
from xlapipe.plans.donation_causes import (
    Cause,
    cause_of_disuse,
    cause_of_loop,
    cause_of_memory,
    cause_of_order,
    cause_of_setting,
    cause_of_sharding,
)
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.leaf_writes import LeafWrites, is_updated_in_place, leaf_writes
from xlapipe.plans.once import once_per_object
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program, path_keys
from xlapipe.plans.returned import returned
from xlapipe.plans.short_repr import short_repr


class DonationOutcome(StrEnum):
    """The outcome of a donation."""

    ALIASED = "aliased"
    COPIED = "aliased, but copied"
    SAME_BUFFER = "same buffer twice"
    DONOR_ONLY = "buffer donor only"
    UNUSED = "unused"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Donation:
    """One donated leaf and the outcome of its donation.

    Attributes:
      output: path of the output that is written over it; None without an alias.
      reason: why the donation failed or is incomplete, or how much of the leaf is written.
      copies: copies of half of the leaf or more, in spite of the alias, largest first.
      moves: moves of half of the leaf or more, into a TPU's own memory and back to the same bytes.
      writes: what a step writes into the leaf's memory; None without an alias or a complete module.
      source: line of the first copy, or of the output that most likely should alias the leaf.
    """

    __repr__ = short_repr

    path: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    outcome: DonationOutcome
    output: str | None = None
    reason: str = ""
    advice: str = ""
    copies: tuple[Copy, ...] = ()
    source: SourceLine | None = None
    moves: tuple[Move, ...] = ()
    writes: LeafWrites | None = None

    @property
    def holds(self) -> bool:
        """Whether the leaf is updated in place without a copy."""
        return self.outcome is DonationOutcome.ALIASED

    @property
    def is_rewritten(self) -> bool:
        """Whether a step writes the leaf again, in place, in order to update slices of it."""
        return self.holds and self.writes is not None and self.writes.is_rewritten

    @property
    def is_wasteful(self) -> bool:
        """Whether the donation has no effect, or the leaf is copied or rewritten."""
        return not self.holds or self.is_rewritten


SMALL_COPIES = 1000
"""Copies that total at most one part in this many of the donated bytes are small."""
# What to do against a leaf that is written again.
_WRITE_SLICES = (
    "write the slice alone, in the leaf's own dtype and order of dimensions: "
    "x.at[i].set(new.astype(x.dtype)), without operations on all of x before or after it"
)


def small_copies(rows: Sequence[Donation]) -> tuple[Donation, ...]:
    """The leaves of which least is copied or rewritten, at most a thousandth of all bytes."""
    left = sum(row.size_bytes for row in rows) // SMALL_COPIES
    small = []
    wasted = [row for row in rows if row.is_rewritten or row.outcome is DonationOutcome.COPIED]
    for row in sorted(wasted, key=_wasted_bytes):
        left -= _wasted_bytes(row)
        if left < 0:
            break
        small.append(row)
    return tuple(small)


def _wasted_bytes(row: Donation) -> int:
    if row.is_rewritten and row.writes is not None:
        return row.writes.written_bytes
    return sum(copy.copied_bytes for copy in row.copies)


@once_per_object
def donations(program: Program) -> tuple[Donation, ...]:
    """One row per leaf that the author donated, in the order of the arguments."""
    outcomes = _Outcomes(program)
    return tuple(
        outcomes.of(leaf)
        for leaf in program.arguments
        if leaf.donated or leaf.donation_dropped_by is not None
    )


class _Outcomes:
    """What the outcomes of all leaves share: outputs and moved values, ready to look up."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._plan = program.plan
        self._outputs = _outputs(program)
        self._donors = {number for number, _ in self._plan.buffer_donors or ()}
        temps = {
            a.index for a in self._plan.allocations if a.is_a(AllocationKind.PREALLOCATED_TEMP)
        }
        parameter_in = {a.index: a.parameter_number for a in self._plan.allocations}
        self._copies: dict[int | None, list[Copy]] = defaultdict(list)
        self._copies_into: dict[int | None, list[Copy]] = defaultdict(list)
        for copy in find_copies(self._plan):
            if copy.read_color != copy.written_color:
                continue  # to or from host memory, as the step requests
            numbers = {source.parameter_number for source in copy.sources} - {None}
            if not numbers and temps.intersection(copy.read_from):
                numbers = {parameter_in.get(copy.allocation)} - {None}
            for number in numbers:
                self._copies[number].append(copy)
            if numbers:
                self._copies_into[parameter_in.get(copy.allocation)].append(copy)
        self._moves: dict[int, list[Move]] = defaultdict(list)
        for move in find_moves(self._plan):
            for index in {move.copy.allocation, *move.copy.read_from}:
                self._moves[index].append(move)

    def of(self, leaf: ArgumentLeaf) -> Donation:
        program = self._program
        if leaf.donation_dropped_by is not None:
            return _row(leaf, DonationOutcome.DROPPED, cause_of_setting(leaf))
        if leaf.parameter_number is None:
            return _row(leaf, DonationOutcome.DROPPED, cause_of_disuse(program, leaf))
        alias = self._plan.alias_of_parameter.get(leaf.parameter_number)
        path = program.output_path(alias.output_index) if alias is not None else None
        if leaf.same_as is not None:
            cause = Cause(
                f"{leaf.same_as} is the same array: a call that donates a buffer and also reads "
                "it through another argument fails at run time",
                "pass a copy (`jnp.copy`), or pass the array only once",
            )
            return _row(leaf, DonationOutcome.SAME_BUFFER, cause, output=path)
        if alias is None or path is None:
            donor = leaf.parameter_number in self._donors
            outcome = DonationOutcome.DONOR_ONLY if donor else DonationOutcome.UNUSED
            cause = self._why_not(leaf)
            source = source_of(program, cause.output) or source_of(program, leaf)
            return _row(leaf, outcome, cause, source=source)
        written = program.output_at.get(path)
        in_other_memory = cause_of_memory(leaf, written) if written is not None else None
        if in_other_memory is not None:
            return _row(leaf, DonationOutcome.UNUSED, in_other_memory)
        copied = self._copies_of(leaf) or self._copies_of_another(leaf, alias)
        moves = self._moves_of(leaf)
        # XLA for TPUs decides itself what to move to the chip's own memory and back.
        writes = None if moves else leaf_writes(self._plan, alias)
        if not copied:
            cause, source = Cause("", ""), None
            if writes is not None and writes.is_whole:
                advice = _WRITE_SLICES if writes.is_rewritten else ""
                cause, source = Cause(f"{writes.text} in each step", advice), writes.source
            return _row(
                leaf,
                DonationOutcome.ALIASED,
                cause,
                output=path,
                moves=moves,
                writes=writes,
                source=source,
            )
        same = next((row for row in returned(program) if row.same_as == written), None)
        cause = (
            (written is not None and cause_of_sharding(leaf, written))
            or (same and Cause(same.text, f"return it once: not as {same.output.path} too"))
            or cause_of_loop(program, leaf, alias)
            or cause_of_order(program, leaf, alias)
            or Cause("", "")
        )
        first = copied[0]
        read_bytes = first.bytes_of_parameter(leaf.parameter_number)
        moved = (
            f"{read_bytes:,} B of it" if read_bytes else f"{first.copied_bytes:,} B into its memory"
        )
        reasons = filter(None, (f"{first.instruction} copies {moved}", cause.reason))
        advice = cause.advice or copy_advice(self._plan, leaf, copied)
        return _row(
            leaf,
            DonationOutcome.COPIED,
            Cause(": ".join(reasons), advice),
            output=path,
            copies=copied,
            source=copied[0].source,
            writes=writes,
        )

    def _copies_of(self, leaf: ArgumentLeaf) -> tuple[Copy, ...]:
        """Copies of half of the leaf or more: out of its memory, or from temp memory into it.

        A step may read single rows of its cache; moving half of it costs about as much as a copy.
        """
        return tuple(
            copy
            for copy in sorted(
                self._copies.get(leaf.parameter_number, ()),
                key=lambda copy: -copy.bytes_of_parameter(leaf.parameter_number),
            )
            if 2 * (copy.bytes_of_parameter(leaf.parameter_number) or copy.copied_bytes)
            >= leaf.size_bytes
        )

    def _copies_of_another(self, leaf: ArgumentLeaf, alias: InputOutputAlias) -> tuple[Copy, ...]:
        """Copies of another argument into the leaf's memory, where the step then updates it."""
        copies = tuple(
            copy
            for copy in self._copies_into.get(leaf.parameter_number, ())
            if 2 * copy.copied_bytes >= leaf.size_bytes
        )
        return copies if copies and is_updated_in_place(self._plan, alias) else ()

    def _moves_of(self, leaf: ArgumentLeaf) -> tuple[Move, ...]:
        """Moves of half of the leaf or more out of its allocation or into it."""
        allocation = self._plan.parameter_allocation(leaf.parameter_number)
        moves = self._moves.get(allocation.index, ()) if allocation is not None else ()
        return tuple(takewhile(lambda move: 2 * move.copy.copied_bytes >= leaf.size_bytes, moves))

    def _why_not(self, leaf: ArgumentLeaf) -> Cause:
        if self._outputs.of_type.count(leaf):
            return self._why_not_aliased(leaf)
        other = self._outputs.of_shape.like(leaf)
        if other is not None:
            return Cause(
                f"no output has its shape and dtype: {other.path} is {other.dtype}, "
                f"{other.size_bytes:,} B",
                f"return it as {leaf.dtype}, or donate a leaf of {other.dtype}",
                other,
            )
        return Cause(
            "no output has its shape and dtype",
            "return the updated value, or do not donate the argument",
        )

    def _why_not_aliased(self, leaf: ArgumentLeaf) -> Cause:
        """Why a leaf has no alias although outputs have its shape and dtype."""
        output = self._outputs.free_of_type.like(leaf)
        if output is None:
            return self._all_aliased(leaf)
        return (
            cause_of_memory(leaf, output)
            or cause_of_sharding(leaf, output)
            or Cause(
                f"XLA aliased no output to it, although {output.path} has its shape and dtype",
                "check for an output that is an argument or a constant, or that is returned twice",
                output,
            )
        )

    def _all_aliased(self, leaf: ArgumentLeaf) -> Cause:
        first = self._outputs.of_type.like(leaf)
        assert first is not None
        count = self._outputs.of_type.count(leaf)
        owner = self._program.owner_of_output[first.path].path
        reason = (
            f"{first.path} has its shape and dtype, but is aliased to {owner}"
            if count == 1
            else f"all {count} outputs with its shape and dtype are aliased to other "
            f"leaves, e.g. {first.path} to {owner}"
        )
        advice = "return one more value of its shape and dtype, or do not donate this leaf"
        return Cause(reason, advice, first)


def _row(leaf: ArgumentLeaf, outcome: DonationOutcome, cause: Cause, **fields: Any) -> Donation:
    return Donation(
        leaf.path,
        leaf.shape,
        leaf.dtype,
        leaf.size_bytes,
        outcome,
        reason=cause.reason,
        advice=cause.advice,
        **fields,
    )


class LikelyOutputs:
    """Outputs of a kind, e.g. with a shape, by the keys at the end of their paths.

    The output that most likely is the updated value of an argument has the likest path. Likeness
    is the number of equal keys at the end: `cache[0]['v']` is like `out[1][0]['v']`.

    Args:
      outputs: in the order of the program.
      kind: what distinguishes the outputs that are compared.
    """

    def __init__(self, outputs: Iterable[OutputLeaf], kind: Callable[[Any], Hashable]) -> None:
        self._kind = kind
        self._ending: dict[Hashable, list[OutputLeaf]] = defaultdict(list)
        for output in outputs:
            keys = path_keys(output.path)
            for start in range(len(keys) + 1):
                self._ending[kind(output), keys[start:]].append(output)

    def like(self, leaf: Any) -> OutputLeaf | None:
        """The likest output of the kind of `leaf`, the first of several; None without one."""
        keys = path_keys(leaf.path)
        ends = ((self._kind(leaf), keys[start:]) for start in range(len(keys) + 1))
        return next((self._ending[end][0] for end in ends if end in self._ending), None)

    def count(self, leaf: Any) -> int:
        """The number of outputs of the kind of `leaf`."""
        return len(self._ending.get((self._kind(leaf), ()), ()))


class _Outputs(NamedTuple):
    """The outputs of a program, by what a leaf is compared with."""

    of_type: LikelyOutputs
    free_of_type: LikelyOutputs
    of_shape: LikelyOutputs


@once_per_object
def _outputs(program: Program) -> _Outputs:
    def type_of(leaf: ArgumentLeaf | OutputLeaf) -> tuple[tuple[int, ...], str]:
        return leaf.shape, leaf.dtype

    outputs = program.outputs
    free = [output for output in outputs if output.path not in program.owner_of_output]
    return _Outputs(
        LikelyOutputs(outputs, type_of),
        LikelyOutputs(free, type_of),
        LikelyOutputs(outputs, lambda leaf: leaf.shape),
    )


def partner_of(program: Program, leaf: ArgumentLeaf) -> OutputLeaf | None:
    """The output that most likely should alias `leaf`."""
    return _outputs(program).of_type.like(leaf)


def source_of(program: Program, leaf: ArgumentLeaf | OutputLeaf | None) -> SourceLine | None:
    """Line of the largest value in the memory of a leaf, if any."""
    allocation = program.allocation_of(leaf) if leaf is not None else None
    return program.plan.source_in(allocation) if allocation is not None else None
