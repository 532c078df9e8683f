"""The phases of a training step: forward, backward and update, by jax's names of operations.

jax writes its transformations into op_names: `jvp(…)` for what is differentiated, `transpose(…)`
for what computes gradients. What has neither name is before the first gradient part of the forward
pass, after it part of the update.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from xlapipe.plans.once import once_per_object
from xlapipe.plans.opcodes import NO_KERNEL
from xlapipe.plans.plan import Plan

# Names of transformations, not the end of a user's name such as `my_transpose(x)`.
_TRANSPOSED, _DIFFERENTIATED = (re.compile(rf"(?<![\w.]){name}\(") for name in ("transpose", "jvp"))
_RECOMPUTED = "rematted_computation"


def is_backward(names: str) -> bool:
    """Whether names of scopes and transformations, as in an op_name, are of the backward pass."""
    return _TRANSPOSED.search(names) is not None


def is_differentiated(names: str) -> bool:
    """Whether names of scopes and transformations are of what is differentiated."""
    return _DIFFERENTIATED.search(names) is not None


def is_recomputed(names: str) -> bool:
    """Whether they are of the forward pass that `jax.checkpoint` runs in the backward pass."""
    return _RECOMPUTED in names


class Phase(StrEnum):
    """A part of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True)
class Phases:
    """The phase of each instruction; None for all in a program without gradients."""

    plan: Plan

    @cached_property
    def trains(self) -> bool:
        """Whether the program computes gradients."""
        return self.first_gradient is not None

    def of(self, name: str) -> Phase | None:
        """The phase of an instruction outside fusion bodies."""
        first = self.first_gradient
        if first is None:
            return None
        op_name = self._op_name(name)
        if is_backward(op_name):
            return Phase.BACKWARD
        if is_differentiated(op_name) or self._positions.get(name, 0) < first:
            return Phase.FORWARD
        return Phase.UPDATE

    def recomputes(self, name: str) -> bool:
        """Whether an instruction recomputes a value of the forward pass (`jax.checkpoint`)."""
        return is_recomputed(self._op_name(name))

    @cached_property
    def by_position(self) -> tuple[Phase | None, ...]:
        """The phase at each schedule position; empty without live ranges.

        An instruction that launches nothing has that of the one before it.
        """
        live = self.plan.live_ranges
        phases: list[Phase | None] = []
        first = Phase.FORWARD if self.trains else None
        for name in live.schedule if live is not None else ():
            instruction = self.plan.instructions.get(name)
            if instruction is None or instruction.opcode in NO_KERNEL:
                phases.append(phases[-1] if phases else first)
            else:
                phases.append(self.of(name))
        return tuple(phases)

    def _op_name(self, name: str) -> str:
        """The op_name of an instruction, or of the nearest one with a source line."""
        instructions = self.plan.instructions
        instruction = instructions.get(name)
        if instruction is None or instruction.op_name is None or instruction.opcode == "parameter":
            nearest = self.plan.nearest_traced(name)
            instruction = instructions.get(nearest) if nearest is not None else None
        return (instruction.op_name or "") if instruction is not None else ""

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        if self.plan.live_ranges is not None:
            return self.plan.live_ranges.positions
        return {name: position for position, name in enumerate(self.plan.instructions)}

    @cached_property
    def first_gradient(self) -> int | None:
        """The position of the first instruction of the backward pass; None without one."""
        for name, position in self._positions.items():
            instruction = self.plan.instructions.get(name)
            if instruction is not None and is_backward(instruction.op_name or ""):
                return position
        return None


phases_of = once_per_object(Phases)
