"""Values that one kernel makes long before they are used, since XLA joined several kernels.

XLA's pass `copy_fusion` joins copies and fills, also without a common input, and
`multi_output_fusion` what reads the same inputs. All results are alive from the first one's use on.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.plans.dataflow import Dataflow, Value, dataflow_of
from xlapipe.plans.hlo import Instruction
from xlapipe.plans.kept_values import saved_for_backward
from xlapipe.plans.occupancy import CountedValue, Occupancy
from xlapipe.plans.opcodes import COPIES, RENAMES
from xlapipe.plans.plan import Plan

COPY_FUSION, MULTI_OUTPUT_FUSION = "copy_fusion", "multi_output_fusion"
# What copies and fills consist of.
_MOVES = COPIES | RENAMES | {"broadcast", "constant", "parameter", "tuple", "transpose", "reshape"}
# Less of what is in use at the peak is not worth a change.
_LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class MadeTogether:
    """Results of one kernel that are alive at the peak, and not used until after it.

    Attributes:
      instruction: the fusion that makes them.
      position: its place in the schedule.
      values: their number.
      size_bytes: what the peak would be lower without the pass, by this schedule.
      joined_by: XLA's pass.
    """

    instruction: str
    position: int
    values: int
    size_bytes: int
    joined_by: str


def _only_moves(plan: Plan, fusion: Instruction) -> bool:
    bodies = plan.module.called(fusion.called_computations) if plan.module is not None else ()
    return all(inner.opcode in _MOVES for body in bodies for inner in body.instructions)


def made_together(plan: Plan) -> tuple[MadeTogether, ...]:
    """The kernels whose results would be made when they are read, the most bytes saved first.

    Those that would lower the peak by less than a tenth are left out, and so is what a kernel
    computes for the backward pass. Empty without live ranges.
    """
    occupancy = Occupancy(plan)
    peak = occupancy.peak_position
    if peak is None or plan.module is None or plan.live_ranges is None:
        return ()
    order, saved = plan.live_ranges.positions, saved_for_backward(plan)
    flow, used_bytes = dataflow_of(plan.module), occupancy.occupied_bytes
    made = {
        instruction.name: Value(computation, instruction)
        for computation, instruction in plan.module.scheduled()
    }
    waiting: dict[str, list[tuple[CountedValue, int]]] = {}
    for held in occupancy.contents(peak):
        kernel = made.get(held.value.instruction)
        live = occupancy.alive.get(held.value.name)
        if kernel is None or live is None or kernel.instruction.opcode != "fusion":
            continue
        readers = flow.readers(kernel._replace(path=held.value.index))
        first = min((order.get(it.instruction.name, -1) for it in readers), default=-1)
        is_kept = held.value.name in saved and not _only_moves(plan, kernel.instruction)
        if live.start < peak < first and kernel.instruction.shape.is_tuple and not is_kept:
            waiting.setdefault(kernel.instruction.name, []).append((held, first))
    rows = []
    for name, values in waiting.items():
        later, last = list(used_bytes), max(first for _, first in values)
        for held, first in values:
            for position in range(occupancy.alive[held.value.name].start, first):
                later[position] -= held.counted_bytes
        for origin in _read(flow, made[name]):
            live = occupancy.alive.get(origin.name)
            for position in range(live.end + 1 if live is not None else last, last):
                later[position] += origin.shape.size_bytes or 0
        size_bytes = max(used_bytes) - max(later)
        if size_bytes >= _LEAST_SHARE * max(used_bytes):
            moves = _only_moves(plan, made[name].instruction)
            joined_by = COPY_FUSION if moves else MULTI_OUTPUT_FUSION
            rows.append(MadeTogether(name, order[name], len(values), size_bytes, joined_by))
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


def _read(flow: Dataflow, kernel: Value) -> Iterator[Value]:
    """What other kernels compute of what a kernel reads."""
    for origin in map(flow.definition, flow.operands(kernel)):
        if origin.instruction.opcode not in ("parameter", "constant"):
            yield origin
