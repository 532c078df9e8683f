"""Arguments and outputs by the names of the program's author, and which of two programs' agree."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xlapipe.diff.identity import FREE
from xlapipe.plan import AllocationKind, BufferAllocation, LogicalBuffer, Plan
from xlapipe.plan.program import Program


@dataclass(frozen=True, slots=True)
class Leaf:
    """An argument or an output of the compiled module.

    Attributes:
      label: pytree path, e.g. `cache[0]['k']`; `parameter 3` or `output 1` where none is known.
      shape: as XLA prints it, without layout.
      number: of the parameter, or index of the output.
      donated: None where the dump does not tell.
      allocation: where it lies; None where the HLO cannot tell.
      instruction: of a parameter.
    """

    label: str
    shape: str
    number: tuple[int, ...]
    donated: bool | None
    allocation: BufferAllocation | None
    instruction: str = ""


def argument_leaves(program: Program) -> tuple[Leaf, ...]:
    """One leaf per parameter allocation, in order of parameter number."""
    plan = program.plan
    known = {leaf.parameter_number: leaf for leaf in program.arguments}
    found = []
    for allocation in plan.allocations:
        number = allocation.parameter_number
        if number is None:
            continue
        value = next((v for v in allocation.values if _is_parameter(plan, v.instruction)), None)
        instruction = plan.instructions.get(value.instruction) if value is not None else None
        leaf = known.get(number)
        if leaf is not None:
            label = leaf.path
        else:
            label = (instruction.op_name if instruction is not None else "") or ""
            label = label.replace("\\'", "'") or f"parameter {number}"
        if allocation.parameter_shape_index:
            label += "".join(f"{{{index}}}" for index in allocation.parameter_shape_index)
        found.append(
            Leaf(
                label=label,
                shape=dims_of(value.shape) if value is not None else "",
                number=(number, *allocation.parameter_shape_index),
                donated=leaf.donated if leaf is not None else None,
                allocation=allocation,
                instruction=instruction.name if instruction is not None else "",
            )
        )
    return tuple(sorted(found, key=lambda leaf: leaf.number))


def _is_parameter(plan: Plan, name: str) -> bool:
    found = plan.instructions.get(name)
    return found is not None and found.opcode == "parameter"


def output_leaves(program: Program) -> tuple[Leaf, ...]:
    """One leaf per output; empty where the dump holds no HLO."""
    plan = program.plan
    if plan.module is None or plan.module.entry is None:
        return ()
    entry = plan.module.computations[plan.module.entry]
    root = entry.by_name[entry.root]
    is_tuple = root.opcode == "tuple"
    shapes = (
        [entry.by_name[name].shape if name in entry.by_name else "" for name in root.operands]
        if is_tuple
        else [root.shape]
    )
    labels = {leaf.index: leaf.path for leaf in program.outputs}
    homes = _output_allocations(program, shapes)
    return tuple(
        Leaf(
            label=labels.get(index, f"output {index}"),
            shape=dims_of(shape),
            number=(index,),
            donated=None,
            allocation=homes.get(index),
        )
        for index, shape in enumerate(shapes)
    )


def _output_allocations(program: Program, shapes: Sequence[str]) -> dict[int, BufferAllocation]:
    """Where each output lies; an output is left out where the HLO cannot tell.

    Of an instruction with several results a plan does not tell which is which output: those of
    one type and size are taken in order, each once, so that the answer depends on no number.
    """
    plan = program.plan
    found: dict[int, BufferAllocation] = {}
    for alias in plan.aliases:
        parameter = plan.parameter_allocation(alias.parameter_number)
        if alias.output_index is not None and parameter is not None:
            found[(alias.output_index or (0,))[0]] = parameter
    results: dict[str, list[tuple[LogicalBuffer, BufferAllocation]]] = {}
    for allocation in plan.allocations:
        if is_live_out(allocation) and not allocation.is_a(AllocationKind.PARAMETER):
            for value in allocation.values:
                results.setdefault(value.instruction, []).append((value, allocation))
    taken: set[int] = set()
    for index, maker in makers(program).items():
        if index in found or index >= len(shapes):
            continue
        for value, allocation in sorted(results.get(maker, ()), key=lambda each: _part(each[0])):
            if allocation.index not in taken and _extent(value.shape) == _extent(shapes[index]):
                found[index] = allocation
                taken.add(allocation.index)
                break
    return found


def _part(value: LogicalBuffer) -> tuple[int, ...]:
    """
    >>> _part(LogicalBuffer("fusion.1{10}", 0, 4, "f32[]"))
    (10,)
    """
    index = value.name.partition("{")[2].rstrip("}")
    return tuple(int(number) for number in index.split(",") if number.isdecimal())


def _extent(shape: str) -> tuple[str, int]:
    """Type and number of elements: a bitcast may stand between a value and the output."""
    dtype, _, dims = dims_of(shape).partition("[")
    return dtype, prod(int(dim) for dim in dims.rstrip("]").split(",") if dim.isdecimal())


def makers(program: Program) -> dict[int, str]:
    """The instruction that computes each output, past bitcasts and the like."""
    module = program.plan.module
    if module is None or module.entry is None:
        return {}
    entry = module.computations[module.entry]
    root = entry.by_name[entry.root]
    found = {}
    for index, output in enumerate(root.operands if root.opcode == "tuple" else (root.name,)):
        name, seen = output, set[str]()
        while name in entry.by_name and name not in seen:
            seen.add(name)
            instruction = entry.by_name[name]
            if instruction.opcode not in FREE or not instruction.operands:
                break
            name = instruction.operands[0]
        found[index] = name
    return found


def dims_of(shape: str) -> str:
    """
    >>> dims_of("bf16[128,1024]{1,0}")
    'bf16[128,1024]'
    """
    return shape.partition("{")[0] if not shape.startswith("(") else shape


def pair_leaves(a: Sequence[Leaf], b: Sequence[Leaf]) -> dict[int, int]:
    """Index in `a` to index in `b`: by label, else by number and shape, else by shape in order."""
    pairs: dict[int, int] = {}
    keys = (
        lambda leaf: leaf.label,
        lambda leaf: (leaf.number, leaf.shape),
        lambda leaf: leaf.shape or None,
    )
    for key in keys:
        waiting: dict[Hashable, list[int]] = {}
        taken = set(pairs.values())
        for at, leaf in enumerate(b):
            if at not in taken and key(leaf) is not None:
                waiting.setdefault(key(leaf), []).append(at)
        for at, leaf in enumerate(a):
            if at not in pairs and waiting.get(key(leaf)):
                pairs[at] = waiting[key(leaf)].pop(0)
    return pairs


def anchors(leaves: Sequence[Leaf], numbers: Mapping[int, int]) -> dict[str, Hashable]:
    """What each parameter instruction stands for; `numbers` gives paired leaves one number."""
    return {
        leaf.instruction: numbers.get(at, ("alone", leaf.label))
        for at, leaf in enumerate(leaves)
        if leaf.instruction
    }


def is_live_out(allocation: BufferAllocation) -> bool:
    return allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
