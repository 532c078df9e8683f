"""Arguments and outputs with their pytree paths, and the pairing of those of two programs."""

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from xlapipe.plans import BufferAllocation, LogicalBuffer, Plan, Program, Shape
from xlapipe.plans.dataflow import Path, Value, dataflow_of


@dataclass(frozen=True, slots=True)
class ComparedLeaf:
    """An argument or an output of the compiled module.

    Attributes:
      label: pytree path, e.g. `cache[0]['k']`; `parameter 3` or `output 1` if unknown.
      shape: as XLA prints it, without layout.
      number: parameter number and shape index, or output index.
      donated: None if unknown.
      allocation: that it is in; None if the HLO does not determine it.
      instruction: name of the parameter instruction; empty for an output.
    """

    label: str
    shape: str
    number: tuple[int, ...]
    donated: bool | None
    allocation: BufferAllocation | None
    instruction: str = ""


def argument_leaves(program: Program) -> tuple[ComparedLeaf, ...]:
    """One leaf per parameter allocation, in order of parameter number."""
    plan = program.plan
    arguments = {leaf.parameter_number: leaf for leaf in program.arguments}
    leaves = []
    for allocation in plan.allocations:
        number = allocation.parameter_number
        if number is None:
            continue
        value = next((value for value in allocation.values if _is_parameter(plan, value)), None)
        instruction = plan.instructions.get(value.instruction) if value is not None else None
        leaf = arguments.get(number)
        if leaf is not None:
            label = leaf.path
        else:
            op_name = instruction.op_name if instruction is not None else None
            label = op_name or f"parameter {number}"
        if allocation.parameter_shape_index:
            label += "".join(f"{{{index}}}" for index in allocation.parameter_shape_index)
        leaves.append(
            ComparedLeaf(
                label=label,
                shape=dims_of(value.shape) if value is not None else "",
                number=(number, *allocation.parameter_shape_index),
                donated=leaf.donated if leaf is not None else None,
                allocation=allocation,
                instruction=instruction.name if instruction is not None else "",
            )
        )
    return tuple(sorted(leaves, key=lambda leaf: leaf.number))


def _is_parameter(plan: Plan, value: LogicalBuffer) -> bool:
    instruction = plan.instructions.get(value.instruction)
    return instruction is not None and instruction.opcode == "parameter"


def output_leaves(program: Program) -> tuple[ComparedLeaf, ...]:
    """One leaf per output; empty if the dump contains no HLO."""
    plan, shapes = program.plan, _output_shapes(program.plan)
    labels = {leaf.index: leaf.path for leaf in program.outputs}
    return tuple(
        ComparedLeaf(
            label=labels.get(index, f"output {index}"),
            shape=dims_of(shape),
            number=(index,),
            donated=None,
            allocation=plan.output_allocation(index, of=len(shapes)),
        )
        for index, shape in enumerate(shapes)
    )


def _output_shapes(plan: Plan) -> tuple[Shape, ...]:
    shape = plan.result_shape
    if shape is None:
        return ()
    return shape.parts if shape.is_tuple else (shape,)


def makers(plan: Plan) -> dict[int, tuple[str, Path]]:
    """The instruction that computes each output, and the element of its result that the output is.

    Bitcasts and the like are skipped.
    """
    entry = plan.module.entry_computation if plan.module is not None else None
    if plan.module is None or entry is None:
        return {}
    root, dataflow = entry.by_name[entry.root], dataflow_of(plan.module)
    by_output = {}
    for index in range(len(_output_shapes(plan))):
        output = Value(entry, root, (index,) if root.shape.is_tuple else ())
        maker = dataflow.definition(output)
        by_output[index] = maker.instruction.name, maker.path
    return by_output


def dims_of(shape: Shape) -> str:
    """The shape without its layout; a tuple as it is."""
    return shape.text if shape.is_tuple else shape.without_layout


def pair_leaves(a: Sequence[ComparedLeaf], b: Sequence[ComparedLeaf]) -> dict[int, int]:
    """Index in `a` to index in `b`: by label, else by number and shape, else by shape in order."""
    pairs: dict[int, int] = {}
    keys = (
        lambda leaf: leaf.label,
        lambda leaf: (leaf.number, leaf.shape),
        lambda leaf: leaf.shape or None,
    )
    for key in keys:
        unpaired: dict[Hashable, deque[int]] = defaultdict(deque)
        paired = set(pairs.values())
        for index, leaf in enumerate(b):
            if index not in paired and key(leaf) is not None:
                unpaired[key(leaf)].append(index)
        for index, leaf in enumerate(a):
            if index not in pairs and unpaired.get(key(leaf)):
                pairs[index] = unpaired[key(leaf)].popleft()
    return pairs


def anchors(leaves: Sequence[ComparedLeaf], numbers: Mapping[int, int]) -> dict[str, Hashable]:
    """The identity of each parameter instruction: the number of a pair, or its label."""
    return {
        leaf.instruction: numbers.get(index, leaf.label)
        for index, leaf in enumerate(leaves)
        if leaf.instruction
    }
