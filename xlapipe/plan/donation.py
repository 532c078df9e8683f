"""The outcome of each donation: one row per donated pytree leaf.

JAX pairs a donated leaf with an output of the same shape, dtype and sharding. It passes a leaf
without such an output to XLA as a buffer donor if an output has the same number of elements, and
prints nothing. XLA keeps an alias even if it has to copy the whole buffer as well. The plan shows
all of this.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from xlapipe.plan.buffers import AllocationKind
from xlapipe.plan.changed_outputs import changed_output_advice
from xlapipe.plan.copies import Copy, Move, find_copies, find_moves
from xlapipe.plan.copy_advice import copy_advice
from xlapipe.plan.hlo import SourceLine
from xlapipe.plan.plan import Plan
from xlapipe.plan.program import ArgumentLeaf, OutputLeaf, Program


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
      moves: of half of the leaf or more, into a TPU's own memory and back to the same bytes.
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


def donations(program: Program) -> tuple[Donation, ...]:
    """One row per leaf that the author donated, in the order of the arguments."""
    copies, moves = find_copies(program.plan), find_moves(program.plan)
    return tuple(
        _donation(program, leaf, copies, moves) for leaf in program.arguments if leaf.donated
    )


def _donation(
    program: Program, leaf: ArgumentLeaf, copies: Sequence[Copy], moves: Sequence[Move]
) -> Donation:
    def row(outcome: DonationOutcome, **fields: object) -> Donation:
        return Donation(
            leaf.path,
            leaf.shape,
            leaf.dtype,
            leaf.size_bytes,
            outcome,
            **fields,  # type: ignore[arg-type]
        )

    if leaf.parameter_number is None:
        return row(
            DonationOutcome.DROPPED,
            reason="the program does not use it, so it is not a parameter of the module",
            advice="return a value computed from it, or do not pass it",
        )
    output = _aliased_output(program, leaf)
    shared = program.same_buffer.get(leaf.path)
    if shared is not None:
        return row(
            DonationOutcome.SAME_BUFFER,
            output=output,
            reason=f"{shared} is the same array: a call that donates a buffer and also reads it "
            "through another argument fails at run time",
            advice="pass a copy (`jnp.copy`), or pass the array only once",
        )
    if output is None:
        reason, advice, partner = _why_not(program, leaf)
        donors = {number for number, _ in program.plan.buffer_donors or ()}
        donor = leaf.parameter_number in donors
        return row(
            DonationOutcome.DONOR_ONLY if donor else DonationOutcome.UNUSED,
            reason=reason,
            advice=advice,
            source=_source(program, leaf, partner),
        )
    copied = tuple(_copies_of(program.plan, leaf, copies))
    if copied:
        return row(
            DonationOutcome.COPIED,
            output=output,
            reason=_copy_text(program, leaf, copied[0]),
            advice=changed_output_advice(program, leaf, output)
            or copy_advice(program.plan, leaf, copied),
            copies=copied,
            source=copied[0].source,
        )
    return row(
        DonationOutcome.ALIASED, output=output, moves=tuple(_moves_of(program.plan, leaf, moves))
    )


def _aliased_output(program: Program, leaf: ArgumentLeaf) -> str | None:
    for alias in program.plan.aliases:
        if alias.parameter_number == leaf.parameter_number:
            return program.output_path(alias.output_index)
    return None


def _copy_text(program: Program, leaf: ArgumentLeaf, copy: Copy) -> str:
    """Describe the copy, with the other leaves it may be of, if tuples leave that open."""
    others = [
        other.path
        for other in program.arguments
        if other is not leaf
        and (allocation := program.plan.parameter_allocation(other.parameter_number)) is not None
        and allocation.index in copy.read_from
        and 2 * copy.copied_bytes >= other.size_bytes
        and (other.shape, other.dtype) == (leaf.shape, leaf.dtype)
    ]
    alternatives = f" or of {', '.join(others)}" if others else ""
    return f"{copy.instruction} copies {copy.copied_bytes:,} B of it{alternatives}"


def _copies_of(plan: Plan, leaf: ArgumentLeaf, copies: Sequence[Copy]) -> Iterator[Copy]:
    """Copies of half of the leaf or more: out of its allocation, or from temp memory into it.

    A step may read single rows of its cache; moving half of it costs about as much as a copy.
    """
    allocation = plan.parameter_allocation(leaf.parameter_number)
    if allocation is None:
        return
    temps = {a.index for a in plan.allocations if a.is_a(AllocationKind.PREALLOCATED_TEMP)}
    for copy in copies:
        if 2 * copy.copied_bytes < leaf.size_bytes:
            continue
        copies_out = copy.allocation != allocation.index and allocation.index in copy.read_from
        copies_in = copy.allocation == allocation.index and temps.intersection(copy.read_from)
        if copies_out or copies_in:
            yield copy


def _moves_of(plan: Plan, leaf: ArgumentLeaf, moves: Sequence[Move]) -> Iterator[Move]:
    """Moves of half of the leaf or more out of its allocation or into it."""
    allocation = plan.parameter_allocation(leaf.parameter_number)
    if allocation is not None:
        for move in moves:
            touches = allocation.index in (move.copy.allocation, *move.copy.read_from)
            if touches and 2 * move.copy.copied_bytes >= leaf.size_bytes:
                yield move


def partner_of(program: Program, leaf: ArgumentLeaf) -> tuple[OutputLeaf | None, SourceLine | None]:
    """The output that most likely should alias `leaf`, and the line that computes it."""
    candidates = [
        output
        for output in _by_likeness(program, leaf)
        if (output.shape, output.dtype) == (leaf.shape, leaf.dtype)
    ]
    partner = candidates[0] if candidates else None
    return partner, _source(program, leaf, partner)


def _by_likeness(program: Program, leaf: ArgumentLeaf) -> list[OutputLeaf]:
    return sorted(program.outputs, key=lambda output: -_likeness(output.path, leaf.path))


def _why_not(program: Program, leaf: ArgumentLeaf) -> tuple[str, str, OutputLeaf | None]:
    """(reason, advice, output) for a leaf without an alias.

    The output is the one that most likely should alias the leaf, if any.
    """
    outputs = _by_likeness(program, leaf)
    same_shape = [output for output in outputs if output.shape == leaf.shape]
    same_type = [output for output in same_shape if output.dtype == leaf.dtype]
    if same_type:
        return _why_not_aliased_to(program, leaf, same_type)
    if same_shape:
        other = same_shape[0]
        return (
            f"no output has its shape and dtype: {other.path} is {other.dtype}, "
            f"{other.size_bytes:,} B",
            f"return it as {leaf.dtype}, or donate a leaf of {other.dtype}",
            other,
        )
    same_size = [output for output in outputs if output.size_bytes == leaf.size_bytes]
    if same_size:
        other = same_size[0]
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


def _why_not_aliased_to(
    program: Program, leaf: ArgumentLeaf, candidates: Sequence[OutputLeaf]
) -> tuple[str, str, OutputLeaf]:
    """(reason, advice, output); `candidates` have the leaf's shape and dtype, likeliest first."""
    taken = {
        program.output_path(alias.output_index): argument.path
        for alias in program.plan.aliases
        for argument in program.arguments
        if argument.parameter_number == alias.parameter_number
    }
    free = [output for output in candidates if output.path not in taken]
    if not free:
        first = candidates[0]
        if len(candidates) == 1:
            reason = f"{first.path} has its shape and dtype, but is aliased to {taken[first.path]}"
        else:
            reason = (
                f"all {len(candidates)} outputs with its shape and dtype are aliased to other "
                f"leaves, e.g. {first.path} to {taken[first.path]}"
            )
        return (
            reason,
            changed_output_advice(program, leaf, None)
            or "return one more value of its shape and dtype, or do not donate this leaf",
            first,
        )
    output = free[0]
    if output.size_bytes != leaf.size_bytes:
        return (
            f"the sharding of {output.path} differs: {output.size_bytes:,} B on each device, "
            f"not {leaf.size_bytes:,} B",
            "give argument and output the same sharding (in_specs, out_specs)",
            output,
        )
    layouts = _layouts(program, leaf, output)
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


def _layouts(program: Program, leaf: ArgumentLeaf, output: OutputLeaf) -> tuple[str, str] | None:
    """Layouts of the parameter and of the output; None without HLO."""
    module = program.plan.module
    entry = module.entry_computation if module is not None else None
    if entry is None:
        return None
    root = entry.by_name[entry.root]
    if root.opcode == "tuple" and output.index < len(root.operands):
        root = entry.by_name[root.operands[output.index]]
    for instruction in entry.instructions:
        if instruction.opcode == "parameter" and (
            instruction.parameter_number == leaf.parameter_number
        ):
            return _layout(instruction.shape), _layout(root.shape)
    return None


def _layout(shape: str) -> str:
    """`1,0` for `bf16[8,128]{1,0}`."""
    return shape.partition("{")[2].partition("}")[0].partition(":")[0]


def _source(program: Program, leaf: ArgumentLeaf, partner: OutputLeaf | None) -> SourceLine | None:
    """Line of the output `partner`; without one, of the largest value in the leaf's memory."""
    plan = program.plan
    if partner is not None:
        allocation = plan.output_allocation(partner.index, of=len(program.outputs))
        if allocation is not None and (line := plan.source_in(allocation)) is not None:
            return line
    allocation = plan.parameter_allocation(leaf.parameter_number)
    return plan.source_in(allocation) if allocation is not None else None


def _likeness(one: str, other: str) -> int:
    """Length of the common suffix of two paths: cache[0]['v'] matches out[1][0]['v']."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
