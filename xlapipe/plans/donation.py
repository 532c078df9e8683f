"""The outcome of each donation: one row per donated pytree leaf.

JAX pairs a donated leaf with an output of the same shape, dtype and sharding. It passes a leaf
without such an output to XLA as a buffer donor if an output has the same number of elements, and
prints nothing. XLA keeps an alias even if it has to copy the whole buffer as well. The plan shows
all of this.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from xlapipe.plans.buffers import AllocationKind
from xlapipe.plans.changed_outputs import ChangedOutputs, LikelyOutputs
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
from xlapipe.plans.once import once_per_object
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program
from xlapipe.plans.shapes import Shape


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
      path: path of the argument leaf, e.g. `cache[0]['k']`.
      size_bytes: on one device.
      output: path of the output that is written over it; None without an alias.
      reason: why the donation failed or is incomplete; empty if aliased.
      advice: what to try if there is a reason.
      copies: copies of half of the leaf or more, in spite of the alias, largest first.
      moves: moves of half of the leaf or more, into a TPU's own memory and back to the same bytes.
      source: line of the first copy, or of the output that most likely should alias the leaf.
    """

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

    @property
    def holds(self) -> bool:
        """Whether the leaf is updated in place without a copy."""
        return self.outcome is DonationOutcome.ALIASED


SMALL_COPIES = 1000
"""Copies that total at most one part in this many of the donated bytes are small."""


def small_copies(rows: Sequence[Donation]) -> tuple[Donation, ...]:
    """The leaves of the smallest copies that total at most a thousandth of all leaves' bytes."""
    left = sum(row.size_bytes for row in rows) // SMALL_COPIES
    small = []
    copied = [row for row in rows if row.outcome is DonationOutcome.COPIED]
    for row in sorted(copied, key=_copied_bytes):
        left -= _copied_bytes(row)
        if left < 0:
            break
        small.append(row)
    return tuple(small)


def _copied_bytes(row: Donation) -> int:
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
        self._changed = ChangedOutputs(program)
        self._donors = {number for number, _ in self._plan.buffer_donors or ()}
        temps = {
            a.index for a in self._plan.allocations if a.is_a(AllocationKind.PREALLOCATED_TEMP)
        }
        parameter_in = {a.index: a.parameter_number for a in self._plan.allocations}
        self._copies: dict[int | None, list[Copy]] = defaultdict(list)
        for copy in find_copies(self._plan):
            if copy.read_color != copy.written_color:
                continue  # to or from host memory, as the step requests
            numbers = {source.parameter_number for source in copy.sources} - {None}
            if not numbers and temps.intersection(copy.read_from):
                numbers = {parameter_in.get(copy.allocation)} - {None}
            for number in numbers:
                self._copies[number].append(copy)
        self._moves: dict[int, list[Move]] = defaultdict(list)
        for move in find_moves(self._plan):
            for index in {move.copy.allocation, *move.copy.read_from}:
                self._moves[index].append(move)

    def of(self, leaf: ArgumentLeaf) -> Donation:
        """The outcome of one donated leaf."""

        def row(outcome: DonationOutcome, **fields: object) -> Donation:
            return Donation(
                leaf.path,
                leaf.shape,
                leaf.dtype,
                leaf.size_bytes,
                outcome,
                **fields,  # type: ignore[arg-type]
            )

        if leaf.donation_dropped_by is not None:
            return row(DonationOutcome.DROPPED, **cause_of_setting(leaf)._asdict())
        if leaf.parameter_number is None:
            return row(DonationOutcome.DROPPED, **cause_of_disuse(self._program, leaf)._asdict())
        alias = self._plan.alias_of_parameter.get(leaf.parameter_number)
        output = self._program.output_path(alias.output_index) if alias is not None else None
        shared = self._program.same_buffer.get(leaf.path)
        if shared is not None:
            return row(
                DonationOutcome.SAME_BUFFER,
                output=output,
                reason=f"{shared} is the same array: a call that donates a buffer and also reads "
                "it through another argument fails at run time",
                advice="pass a copy (`jnp.copy`), or pass the array only once",
            )
        if alias is None or output is None:
            reason, advice, partner = self._why_not(leaf)
            donor = leaf.parameter_number in self._donors
            return row(
                DonationOutcome.DONOR_ONLY if donor else DonationOutcome.UNUSED,
                reason=reason,
                advice=advice,
                source=_source(self._program, leaf, partner),
            )
        written = self._program.output_at.get(output)
        in_other_memory = cause_of_memory(leaf, written) if written is not None else None
        if in_other_memory is not None:
            return row(DonationOutcome.UNUSED, **in_other_memory._asdict())
        copied = self._copies_of(leaf)
        if copied:
            cause = (
                (written is not None and cause_of_sharding(leaf, written))
                or cause_of_loop(self._program, leaf, alias)
                or cause_of_order(self._program, leaf, alias)
                or Cause("", self._changed.advice(leaf, output))
            )
            reason = _copy_text(leaf, copied[0])
            return row(
                DonationOutcome.COPIED,
                output=output,
                reason=f"{reason}: {cause.reason}" if cause.reason else reason,
                advice=cause.advice or copy_advice(self._plan, leaf, copied),
                copies=copied,
                source=copied[0].source,
            )
        return row(DonationOutcome.ALIASED, output=output, moves=self._moves_of(leaf))

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
            if 2 * _copied_bytes_of(copy, leaf) >= leaf.size_bytes
        )

    def _moves_of(self, leaf: ArgumentLeaf) -> tuple[Move, ...]:
        """Moves of half of the leaf or more out of its allocation or into it."""
        allocation = self._plan.parameter_allocation(leaf.parameter_number)
        moves = self._moves.get(allocation.index, ()) if allocation is not None else ()
        return tuple(takewhile(lambda move: 2 * move.copy.copied_bytes >= leaf.size_bytes, moves))

    def _why_not(self, leaf: ArgumentLeaf) -> tuple[str, str, OutputLeaf | None]:
        """(reason, advice, output) for a leaf without an alias.

        The output is the one that most likely should alias the leaf, if any.
        """
        if self._outputs.of_type.count(leaf):
            return self._why_not_aliased(leaf)
        other = self._outputs.of_shape.like(leaf)
        if other is not None:
            return (
                f"no output has its shape and dtype: {other.path} is {other.dtype}, "
                f"{other.size_bytes:,} B",
                f"return it as {leaf.dtype}, or donate a leaf of {other.dtype}",
                other,
            )
        other = self._outputs.of_size.like(leaf)
        if other is not None:
            return (
                f"no output has its shape and dtype; {other.path}, "
                f"{other.dtype}{list(other.shape)}, only has its size",
                "return the updated value with the shape and dtype of the argument",
                other,
            )
        return (
            f"no output has its shape and dtype, nor its size of {leaf.size_bytes:,} B",
            "return the updated value, or do not donate the argument",
            None,
        )

    def _why_not_aliased(self, leaf: ArgumentLeaf) -> tuple[str, str, OutputLeaf | None]:
        """(reason, advice, output) for a leaf with outputs of its shape and dtype."""
        output = self._outputs.free_of_type.like(leaf)
        if output is None:
            first = self._outputs.of_type.like(leaf)
            assert first is not None
            count = self._outputs.of_type.count(leaf)
            owner = self._program.owner_of_output[first.path].path
            if count == 1:
                reason = f"{first.path} has its shape and dtype, but is aliased to {owner}"
            else:
                reason = (
                    f"all {count} outputs with its shape and dtype are aliased to other "
                    f"leaves, e.g. {first.path} to {owner}"
                )
            return (
                reason,
                self._changed.advice(leaf, None)
                or "return one more value of its shape and dtype, or do not donate this leaf",
                first,
            )
        cause = cause_of_memory(leaf, output) or cause_of_sharding(leaf, output)
        if cause is not None:
            return (*cause, output)
        layouts = _layouts(self._program, leaf, output)
        if layouts is not None and layouts[0] != layouts[1]:
            return (
                f"the layout of {output.path} differs: {{{layouts[1]}}}, not {{{layouts[0]}}}",
                "return the value with the order of dimensions of the argument",
                output,
            )
        return (
            f"XLA aliased no output to it, although {output.path} has its shape and dtype",
            "check for an output that is an argument or a constant, or that is returned twice",
            output,
        )


def _copied_bytes_of(copy: Copy, leaf: ArgumentLeaf) -> int:
    """Bytes that a copy moves out of the leaf's memory, or else into it."""
    return copy.bytes_of_parameter(leaf.parameter_number) or copy.copied_bytes


def _copy_text(leaf: ArgumentLeaf, copy: Copy) -> str:
    read_bytes = copy.bytes_of_parameter(leaf.parameter_number)
    moved = f"{read_bytes:,} B of it" if read_bytes else f"{copy.copied_bytes:,} B into its memory"
    return f"{copy.instruction} copies {moved}"


class _Outputs(NamedTuple):
    """The outputs of a program, by what a leaf is compared with."""

    of_type: LikelyOutputs
    free_of_type: LikelyOutputs
    of_shape: LikelyOutputs
    of_size: LikelyOutputs


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
        LikelyOutputs(outputs, lambda leaf: leaf.size_bytes),
    )


def partner_of(program: Program, leaf: ArgumentLeaf) -> tuple[OutputLeaf | None, SourceLine | None]:
    """The output that most likely should alias `leaf`, and the line that computes it."""
    partner = _outputs(program).of_type.like(leaf)
    return partner, _source(program, leaf, partner)


def _layouts(program: Program, leaf: ArgumentLeaf, output: OutputLeaf) -> tuple[str, str] | None:
    """Layouts of the parameter and of the output; None without HLO."""
    entry = program.plan.entry
    if entry is None:
        return None
    root = entry.by_name[entry.root]
    if root.opcode == "tuple" and output.index < len(root.operands):
        root = entry.by_name[root.operands[output.index]]
    parameter = program.plan.parameter(leaf.parameter_number)
    return (_layout(parameter.shape), _layout(root.shape)) if parameter is not None else None


def _layout(shape: Shape) -> str:
    """`1,0` for `bf16[8,128]{1,0}`."""
    arrays = shape.arrays
    return ",".join(map(str, arrays[0].order or ())) if arrays else ""


def source_of_output(program: Program, output: OutputLeaf) -> SourceLine | None:
    """Line of the largest value in the memory of an output."""
    allocation = program.plan.output_allocation(output.index, of=len(program.outputs))
    return program.plan.source_in(allocation) if allocation is not None else None


def _source(program: Program, leaf: ArgumentLeaf, partner: OutputLeaf | None) -> SourceLine | None:
    """Line of the output `partner`; without one, of the largest value in the leaf's memory."""
    plan = program.plan
    if partner is not None and (line := source_of_output(program, partner)) is not None:
        return line
    allocation = plan.parameter_allocation(leaf.parameter_number)
    return plan.source_in(allocation) if allocation is not None else None
