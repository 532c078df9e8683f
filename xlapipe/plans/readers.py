"""Which instructions read a value: an argument, a result, or one element of a tuple."""

from collections.abc import Collection, Mapping

from xlapipe.plans.buffers import split_value_name
from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.plans.hlo import Computation, Instruction
from xlapipe.plans.once import once_per_object
from xlapipe.plans.plan import Plan


@once_per_object
def makers(plan: Plan) -> Mapping[str, tuple[Computation, Instruction]]:
    """The instructions outside of fusions by name, in XLA's order, each with its computation."""
    scheduled = plan.module.scheduled() if plan.module is not None else ()
    return {instruction.name: (computation, instruction) for computation, instruction in scheduled}


def readers_of(plan: Plan, name: str, also: Collection[str] = frozenset()) -> tuple[str, ...]:
    """Names of the instructions that read a value, also under other names, in XLA's order.

    Args:
      name: XLA's name of the value, e.g. `fusion.1{2}`.
      also: opcodes of instructions that are skipped like those that forward their operand.
    """
    instruction, index = split_value_name(name)
    maker = makers(plan).get(instruction)
    if plan.module is None or maker is None:
        return ()
    readers = dataflow_of(plan.module).readers(Value(*maker, index), frozenset(also))
    names = {reader.instruction.name for reader in readers}
    return tuple(sorted(names & positions(plan).keys(), key=positions(plan).__getitem__))


@once_per_object
def positions(plan: Plan) -> Mapping[str, int]:
    """Positions of the instructions outside of fusions in XLA's order, by name."""
    return {name: position for position, name in enumerate(makers(plan))}
