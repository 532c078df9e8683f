"""Values that one kernel makes long before they are used, since XLA joined several kernels.

XLA's pass `copy_fusion` joins copies and fills, also without a common input, and
`multi_output_fusion` what reads the same inputs. All results are alive from the first one's use on.
"""

from dataclasses import dataclass

from xlapipe.plans.hlo import Instruction
from xlapipe.plans.kept_values import saved_for_backward
from xlapipe.plans.occupancy import Occupancy
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
      size_bytes: size of all of them.
      joined_by: XLA's pass.
    """

    instruction: str
    position: int
    values: int
    size_bytes: int
    joined_by: str


def _only_moves(plan: Plan, fusion: Instruction) -> bool:
    bodies = plan.module.called(fusion.called_computations) if plan.module is not None else ()
    return all(own.opcode in _MOVES for body in bodies for own in body.instructions)


def made_together(plan: Plan) -> tuple[MadeTogether, ...]:
    """The kernels, most bytes first.

    Those with one result, or with less than a tenth of the bytes in use at the peak, are left out,
    and so is what a kernel computes for the backward pass. Empty without live ranges.
    """
    occupancy = Occupancy(plan)
    peak = occupancy.peak_position
    if peak is None or plan.module is None:
        return ()
    saved = saved_for_backward(plan)
    waiting: dict[str, list[int]] = {}
    for held in occupancy.contents(peak):
        instruction = plan.instructions.get(held.value.instruction)
        live = occupancy.alive.get(held.value.name)
        if instruction is None or live is None or live.start >= peak or live.end <= peak:
            continue
        if instruction.opcode != "fusion" or not held.counted_bytes:
            continue
        if held.value.name not in saved or _only_moves(plan, instruction):
            waiting.setdefault(instruction.name, []).append(held.counted_bytes)
    least_bytes = _LEAST_SHARE * (occupancy.peak_bytes or 0)
    order = plan.live_ranges.positions if plan.live_ranges is not None else {}
    rows = (
        MadeTogether(
            instruction=name,
            position=order[name],
            values=len(sizes),
            size_bytes=sum(sizes),
            joined_by=COPY_FUSION
            if _only_moves(plan, plan.instructions[name])
            else MULTI_OUTPUT_FUSION,
        )
        for name, sizes in waiting.items()
        if len(sizes) > 1 and sum(sizes) >= least_bytes and name in order
    )
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))
