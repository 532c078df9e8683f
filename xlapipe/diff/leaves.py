"""Arguments and outputs with their pytree paths, and the pairing of those of two programs."""

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from xlapipe.diff.identity import FREE
from xlapipe.plans import AllocationKind, BufferAllocation, LogicalBuffer, Plan
from xlapipe.plans.program import Program
from xlapipe.plans.shapes import Shape, shape_of


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
            label = (instruction.op_name if instruction is not None else "") or ""
            label = label.replace("\\'", "'") or f"parameter {number}"
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
    plan = program.plan
    if plan.module is None or plan.module.entry is None:
        return ()
    entry = plan.module.computations[plan.module.entry]
    root = entry.by_name[entry.root]
    is_tuple = root.opcode == "tuple"
    shapes = (
        [
            entry.by_name[name].shape if name in entry.by_name else shape_of("")
            for name in root.operands
        ]
        if is_tuple
        else [root.shape]
    )
    labels = {leaf.index: leaf.path for leaf in program.outputs}
    allocations = _output_allocations(program, shapes)
    return tuple(
        ComparedLeaf(
            label=labels.get(index, f"output {index}"),
            shape=dims_of(shape),
            number=(index,),
            donated=None,
            allocation=allocations.get(index),
        )
        for index, shape in enumerate(shapes)
    )


def _output_allocations(program: Program, shapes: Sequence[Shape]) -> dict[int, BufferAllocation]:
    """The allocation of each output, without outputs for which the HLO does not determine it.

    A plan does not record which result of an instruction is which output: results of one type and
    size are taken in order, each once, so that the answer does not depend on allocation numbers.
    """
    plan = program.plan
    allocations: dict[int, BufferAllocation] = {}
    for alias in plan.aliases:
        parameter = plan.parameter_allocation(alias.parameter_number)
        if alias.output_index is not None and parameter is not None:
            allocations[(alias.output_index or (0,))[0]] = parameter
    results = sorted(
        (
            (value, allocation)
            for allocation in plan.allocations
            if is_live_out(allocation) and not allocation.is_a(AllocationKind.PARAMETER)
            for value in allocation.values
        ),
        key=lambda pair: pair[0].index,
    )
    untaken: dict[Hashable, deque[BufferAllocation]] = defaultdict(deque)
    for value, allocation in results:
        untaken[value.instruction, _extent(value.shape)].append(allocation)
    taken: set[int] = set()
    for index, maker in makers(program).items():
        if index in allocations or index >= len(shapes):
            continue
        candidates = untaken[maker, _extent(shapes[index])]
        while candidates and candidates[0].index in taken:
            candidates.popleft()
        if candidates:
            allocations[index] = candidates.popleft()
            taken.add(allocations[index].index)
    return allocations


def _extent(shape: Shape) -> tuple[str, int]:
    """Type and number of elements, which a bitcast between a value and the output keeps."""
    return shape.element, shape.elements


def makers(program: Program) -> dict[int, str]:
    """The instruction that computes each output; bitcasts and the like are skipped."""
    module = program.plan.module
    if module is None or module.entry is None:
        return {}
    entry = module.computations[module.entry]
    root = entry.by_name[entry.root]
    by_output = {}
    for index, output in enumerate(root.operands if root.opcode == "tuple" else (root.name,)):
        name, seen = output, set[str]()
        while name in entry.by_name and name not in seen:
            seen.add(name)
            instruction = entry.by_name[name]
            if instruction.opcode not in FREE or not instruction.operands:
                break
            name = instruction.operands[0]
        by_output[index] = name
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
    """The identity of each parameter instruction; `numbers` gives paired leaves one number."""
    return {
        leaf.instruction: numbers.get(index, ("unpaired", leaf.label))
        for index, leaf in enumerate(leaves)
        if leaf.instruction
    }


def is_live_out(allocation: BufferAllocation) -> bool:
    """Whether the allocation contains an output."""
    return allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
