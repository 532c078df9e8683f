"""Why the donation of a leaf has no effect although an output has its type, and what to change."""

from typing import NamedTuple

from xlapipe.plans.buffers import InputOutputAlias
from xlapipe.plans.dataflow import Dataflow, Value, dataflow_of
from xlapipe.plans.opcodes import COPIES
from xlapipe.plans.origins import origins_through_copies
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program, spec_axes, spec_text


class Cause(NamedTuple):
    """In words.

    Attributes:
      output: the output that most likely should alias the leaf, if any.
    """

    reason: str
    advice: str
    output: OutputLeaf | None = None


def cause_of_setting(leaf: ArgumentLeaf) -> Cause:
    """For a leaf whose donation a setting of jax drops."""
    setting = leaf.donation_dropped_by
    return Cause(
        f"jax drops donate_argnums while {setting} is on",
        f"switch it off (jax.config.update({setting!r}, False), or the variable "
        f"{str(setting).upper()} of the environment); jax_debug_infs does not drop donations",
    )


def cause_of_disuse(program: Program, leaf: ArgumentLeaf) -> Cause:
    """For a leaf that the program does not use."""
    has_output = any(
        (output.shape, output.dtype) == (leaf.shape, leaf.dtype) for output in program.outputs
    )
    keep = ", jit the step with keep_unused=True" if has_output else ""
    return Cause(
        "the program does not use it, so it is not a parameter of the module",
        f"return a value computed from it{keep}, or do not pass it",
    )


def cause_of_memory(leaf: ArgumentLeaf, output: OutputLeaf) -> Cause | None:
    """For an output in another memory than the argument's."""
    if leaf.memory_kind == output.memory_kind:
        return None
    return Cause(
        f"{output.path} is in {output.memory_kind or 'device'} memory, and the argument in "
        f"{leaf.memory_kind or 'device'} memory",
        "return it in the memory of the argument (jax.device_put), or do not donate the argument",
        output,
    )


def cause_of_sharding(leaf: ArgumentLeaf, output: OutputLeaf) -> Cause | None:
    """For an output that is split over the devices in another way than the argument."""
    if (output.shape, output.dtype) != (leaf.shape, leaf.dtype):
        return None
    advice = (
        "give argument and output the same sharding (in_shardings and out_shardings of jax.jit, or "
        "in_specs and out_specs of the workload)"
    )
    if output.size_bytes != leaf.size_bytes:
        return Cause(
            f"the sharding of {output.path} differs: {output.size_bytes:,} B on each device, "
            f"not {leaf.size_bytes:,} B",
            advice,
            output,
        )
    if None in (leaf.spec, output.spec) or spec_axes(leaf.spec) == spec_axes(output.spec):
        return None
    became, was = (spec_text(leaf.spec, "PartitionSpec") for leaf in (output, leaf))
    return Cause(f"the sharding of {output.path} differs: {became}, not {was}", advice, output)


def cause_of_loop(program: Program, leaf: ArgumentLeaf, alias: InputOutputAlias) -> Cause | None:
    """For a leaf of which a loop reads a slice in each trip, and that another output of it needs.

    `jax.lax.scan` reads its xs and stacks its ys in two elements of the loop's tuple, so they never
    have the same memory.
    """
    module, entry = program.plan.module, program.plan.entry
    if module is None or entry is None:
        return None
    dataflow = dataflow_of(module)
    output = Value(entry, entry.by_name[entry.root], alias.output_index or ())
    made = dataflow.definition(output, COPIES)
    loop = made.instruction
    if loop.opcode != "while" or len(made.path) != 1:
        return None
    for element in range(len(loop.shape.parts)):
        if element != made.path[0] and _is_only_read(dataflow, made, element, leaf):
            path = program.output_path(alias.output_index)
            line = program.plan.nearest_source(loop.name)
            at = f" at {line}" if line is not None else ""
            return Cause(
                f"the loop{at} reads it in slices (xs) while it stacks {path} (ys), so both are "
                "needed at once",
                "put the buffer in the carry of the scan, and update it there: scan over the "
                "indices i, read carry[i], and return carry.at[i].set(…)",
            )
    return None


def _is_only_read(dataflow: Dataflow, loop: Value, element: int, leaf: ArgumentLeaf) -> bool:
    """Whether an element of a loop's tuple is the leaf in every trip."""
    started = dataflow.operand(loop._replace(path=(element,)), 0)
    if started is None:
        return False
    first = dataflow.definition(started, COPIES)
    body = dataflow.module.computations.get(loop.instruction.called_computations[0])
    if body is None or first.instruction.parameter_number != leaf.parameter_number:
        return False
    last = dataflow.definition(Value(body, body.by_name[body.root], (element,)))
    return first.computation.name == dataflow.module.entry and (
        last.instruction.opcode == "parameter" and last.path == (element,)
    )


def cause_of_order(program: Program, leaf: ArgumentLeaf, alias: InputOutputAlias) -> Cause | None:
    """For an output that is another argument than jax pairs with it, or updates that."""
    entry = program.plan.entry
    if entry is None:
        return None
    output = Value(entry, entry.by_name[entry.root], alias.output_index or ())
    number = origins_through_copies(program.plan).parameter_number(output)
    other = program.argument_of_parameter.get(number)
    if other is None or other is leaf:
        return None
    path = program.output_path(alias.output_index)
    return Cause(
        f"{path}, which is written over it, is {other.path} or an update of it",
        "return the values in the order of the arguments: jax pairs donated leaves with outputs by "
        "shape and dtype, in order"
        if other.donated
        else f"donate {other.path} in its place",
    )
