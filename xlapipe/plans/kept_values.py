"""The values of a plan that the forward pass makes and the backward pass reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.plans.buffers import BufferAllocation, LogicalBuffer
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.once import once_per_object
from xlapipe.plans.phases import Phase, phases_of
from xlapipe.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A value that is alive from an instruction of the forward pass to one of a later phase.

    Attributes:
      start, end: schedule positions, both included.
    """

    allocation: BufferAllocation
    value: LogicalBuffer
    space: MemorySpace
    start: int
    end: int


@once_per_object
def kept_values(plan: Plan) -> tuple[KeptValue, ...]:
    """The values that are kept for the backward pass, in device memory and in the host's.

    A scan keeps a stack of its iterations' values. Parameters are left out. Empty without live
    ranges, and for a program without gradients.
    """
    phases = phases_of(plan).by_position
    if plan.live_ranges is None or not phases_of(plan).trains:
        return ()
    ranges = {live.name: live for live in plan.live_ranges.ranges}
    kept = []
    for space in (MemorySpace.HBM, MemorySpace.HOST):
        for allocation in plan.allocations_in(space):
            for value in allocation.values:
                live = ranges.get(value.name)
                maker = plan.instructions.get(value.instruction)
                if live is None or value.shape.is_tuple:
                    continue
                if maker is not None and maker.opcode == "parameter":
                    continue
                last = phases[live.end] if live.end < len(phases) else None
                if phases[live.start] is Phase.FORWARD and last is not Phase.FORWARD:
                    kept.append(KeptValue(allocation, value, space, live.start, live.end))
    return tuple(kept)


def of_size(
    kept: Sequence[KeptValue], elements: int, size_bytes: int, *, several_devices: bool
) -> tuple[KeptValue, ...]:
    """Those that can hold a value of so many elements and bytes, or a device's part of it."""

    def fits(held: KeptValue) -> bool:
        own_bytes, own = held.value.shape.size_bytes, held.value.shape.elements
        if not several_devices or not own_bytes:
            return own == elements and own_bytes == size_bytes
        parts, rest = divmod(size_bytes, own_bytes)
        # Inside of shard_map a value has the shape of one device's part.
        return rest == 0 and own * parts % elements == 0

    return tuple(filter(fits, kept))
