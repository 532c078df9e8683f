"""What became of each donated leaf: a row of proof per pytree path.

JAX pairs a donated leaf with an output of its shape, dtype and sharding. What is left over it
hands to XLA as a mere buffer donor where the number of elements fits, and says nothing; and XLA
keeps an alias even where it has to copy the whole buffer beside it. The plan tells all of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from xlapipe.plan.buffers import AllocationKind
from xlapipe.plan.copies import Copy, find_copies
from xlapipe.plan.hlo import SourceLine
from xlapipe.plan.plan import Plan
from xlapipe.plan.program import ArgumentLeaf, OutputLeaf, Program


class DonationOutcome(StrEnum):
    """What became of a donation."""

    ALIASED = "aliased"
    COPIED = "aliased, but copied"
    SAME_BUFFER = "same buffer twice"
    DONOR_ONLY = "buffer donor only"
    UNUSED = "unused"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Donation:
    """One donated leaf and what became of it.

    Attributes:
      path: of the argument's leaf, e.g. `cache[0]['k']`.
      size_bytes: on one device.
      output: path of the output that is written over it; None without an alias.
      reason: why the donation came to nothing, or to less than it should; empty if aliased.
      advice: what to try, where there is a reason.
      copies: of half of the leaf or more, beside the alias, largest first.
      source: line of the first copy, or of the output that was meant.
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

    @property
    def holds(self) -> bool:
        """Whether the leaf is written over in place, and nothing else is wrong."""
        return self.outcome is DonationOutcome.ALIASED


def donations(program: Program) -> tuple[Donation, ...]:
    """A row for each leaf that the author donated, in the order of the arguments."""
    copies = find_copies(program.plan)
    return tuple(_donation(program, leaf, copies) for leaf in program.arguments if leaf.donated)


def _donation(program: Program, leaf: ArgumentLeaf, copies: Sequence[Copy]) -> Donation:
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
            reason="the program does not use it, so it is no parameter of the module",
            advice="return a value computed from it, or do not pass it",
        )
    output = _aliased_output(program, leaf)
    shared = program.same_buffer.get(leaf.path)
    if shared is not None:
        return row(
            DonationOutcome.SAME_BUFFER,
            output=output,
            reason=f"{shared} is the same array: a call that donates one buffer and reads it "
            "through another argument fails when it is run",
            advice="pass a copy (`jnp.copy`), or the array once",
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
            reason=_copied(program, leaf, copied[0]),
            advice="read nothing of the old value after the update, and return the new one once",
            copies=copied,
            source=copied[0].source,
        )
    return row(DonationOutcome.ALIASED, output=output)


def _aliased_output(program: Program, leaf: ArgumentLeaf) -> str | None:
    for alias in program.plan.aliases:
        if alias.parameter_number == leaf.parameter_number:
            return program.output_path(alias.output_index)
    return None


def _copied(program: Program, leaf: ArgumentLeaf, copy: Copy) -> str:
    """Which copy it is; and what else it may be of, where tuples do not tell."""
    others = [
        other.path
        for other in program.arguments
        if other is not leaf
        and (allocation := program.plan.parameter_allocation(other.parameter_number)) is not None
        and allocation.index in copy.read_from
        and 2 * copy.copied_bytes >= other.size_bytes
        and (other.shape, other.dtype) == (leaf.shape, leaf.dtype)
    ]
    of = f" or of {', '.join(others)}" if others else ""
    return f"{copy.instruction} copies {copy.copied_bytes:,} B of it{of}"


def _copies_of(plan: Plan, leaf: ArgumentLeaf, copies: Sequence[Copy]) -> Iterator[Copy]:
    """Copies of half of the leaf or more: out of its allocation, or from temporary memory into it.

    A step may well read a row of its cache; whoever moves half of it pays for it as for a copy.
    """
    allocation = plan.parameter_allocation(leaf.parameter_number)
    if allocation is None:
        return
    temps = {a.index for a in plan.allocations if a.is_a(AllocationKind.PREALLOCATED_TEMP)}
    for copy in copies:
        if 2 * copy.copied_bytes < leaf.size_bytes:
            continue
        out_of = copy.allocation != allocation.index and allocation.index in copy.read_from
        into = copy.allocation == allocation.index and temps.intersection(copy.read_from)
        if out_of or into:
            yield copy


def partner_of(program: Program, leaf: ArgumentLeaf) -> tuple[OutputLeaf | None, SourceLine | None]:
    """The output that would most likely lie over `leaf`, and the line that makes it."""
    fitting = [
        o for o in _by_likeness(program, leaf) if (o.shape, o.dtype) == (leaf.shape, leaf.dtype)
    ]
    partner = fitting[0] if fitting else None
    return partner, _source(program, leaf, partner)


def _by_likeness(program: Program, leaf: ArgumentLeaf) -> list[OutputLeaf]:
    return sorted(program.outputs, key=lambda output: -_likeness(output.path, leaf.path))


def _why_not(program: Program, leaf: ArgumentLeaf) -> tuple[str, str, OutputLeaf | None]:
    """Why no output lies over a donated leaf, what to try, and the output that was meant."""
    outputs = _by_likeness(program, leaf)
    same_shape = [output for output in outputs if output.shape == leaf.shape]
    fitting = [output for output in same_shape if output.dtype == leaf.dtype]
    if fitting:
        return _why_not_the_fitting(program, leaf, fitting)
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
            f"{other.dtype}{list(other.shape)}, has its size alone",
            "return the updated value with the shape and dtype that came in",
            other,
        )
    return (
        f"no output has its shape and dtype, nor its size of {leaf.size_bytes:,} B",
        "return the updated value, or do not donate the argument",
        None,
    )


def _why_not_the_fitting(
    program: Program, leaf: ArgumentLeaf, fitting: Sequence[OutputLeaf]
) -> tuple[str, str, OutputLeaf]:
    """The outputs have the leaf's shape and dtype; the most likely one comes first."""
    taken = {
        program.output_path(alias.output_index): argument.path
        for alias in program.plan.aliases
        for argument in program.arguments
        if argument.parameter_number == alias.parameter_number
    }
    free = [output for output in fitting if output.path not in taken]
    if not free:
        first = fitting[0]
        others = f", and so on for {len(fitting)} outputs" if len(fitting) > 1 else ""
        return (
            f"{first.path} has its shape and dtype, and went to {taken[first.path]}{others}",
            "return one more value of its shape and dtype, or donate one leaf fewer",
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
            "return the value in the order of dimensions that came in",
            output,
        )
    return (
        f"XLA aliased nothing to it; {output.path} would fit",
        "look for an output that is an argument or a constant, or is returned twice",
        output,
    )


def _layouts(program: Program, leaf: ArgumentLeaf, output: OutputLeaf) -> tuple[str, str] | None:
    """Layouts of the parameter and of the output; None where the HLO does not tell."""
    module = program.plan.module
    entry = module.computations.get(module.entry) if module and module.entry else None
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
    """`1,0` of `bf16[8,128]{1,0}`."""
    return shape.partition("{")[2].partition("}")[0].partition(":")[0]


def _source(program: Program, leaf: ArgumentLeaf, partner: OutputLeaf | None) -> SourceLine | None:
    """Line of the output that was meant, or else of what reads the leaf."""
    plan = program.plan
    if partner is not None:
        allocation = plan.output_allocation(partner.index, of=len(program.outputs))
        if allocation is not None and (found := plan.source_in(allocation)) is not None:
            return found
    allocation = plan.parameter_allocation(leaf.parameter_number)
    return plan.source_in(allocation) if allocation is not None else None


def _likeness(one: str, other: str) -> int:
    """Characters that two paths share at their ends: cache[0]['v'] is for out[1][0]['v']."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
