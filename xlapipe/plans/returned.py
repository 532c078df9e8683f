"""Outputs that are an argument as it was passed, or another output once more.

XLA writes each of them to memory of its own, by a copy, unless it is donated.
"""

from dataclasses import dataclass

from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.plans.once import once_per_object
from xlapipe.plans.opcodes import COPIES
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program


@dataclass(frozen=True, slots=True)
class Returned:
    """An output that nothing computes.

    Attributes:
      copied_bytes: what is copied for it; 0 if it is written over the argument.
    """

    output: OutputLeaf
    same_as: ArgumentLeaf | OutputLeaf
    copied_bytes: int

    @property
    def text(self) -> str:
        """E.g. `out.kernel is m.kernel, returned unchanged, 16,384 B copied`."""
        how = "returned unchanged" if isinstance(self.same_as, ArgumentLeaf) else "returned twice"
        copied = f", {self.copied_bytes:,} B copied" if self.copied_bytes else ""
        return f"{self.output.path} is {self.same_as.path}, {how}{copied}"


@once_per_object
def returned(program: Program) -> tuple[Returned, ...]:
    """The outputs that are arguments or other outputs, most copied bytes first."""
    plan, entry = program.plan, program.plan.entry
    if plan.module is None or entry is None or not plan.module.complete:
        return ()
    root, dataflow = entry.by_name[entry.root], dataflow_of(plan.module)
    donated = {alias.output_index for alias in plan.aliases}
    first: dict[object, OutputLeaf] = {}
    rows = []
    # Those that are written over an argument are the first of their kind.
    outputs = sorted(program.outputs, key=lambda leaf: (leaf.index,) not in donated)
    for output in outputs:
        path = (output.index,) if root.shape.is_tuple else ()
        made = dataflow.definition(Value(entry, root, path), COPIES)
        same: ArgumentLeaf | OutputLeaf | None = program.argument_of_parameter.get(
            made.instruction.parameter_number if made.computation is entry else None
        )
        if same is None and made.instruction.opcode != "constant":
            same = first.setdefault(made.key, output)
        if same is not None and same is not output:
            copied = 0 if path in donated else output.size_bytes
            rows.append(Returned(output, same, copied))
    return tuple(sorted(rows, key=lambda row: -row.copied_bytes))
