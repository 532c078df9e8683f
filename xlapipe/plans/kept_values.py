"""The values of a plan that the forward pass makes and the backward pass reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xlapipe.devices.platforms import platform_named
from xlapipe.plans.buffers import LogicalBuffer
from xlapipe.plans.memory_spaces import MemorySpace, space_of
from xlapipe.plans.occupancy import CountedValue, HeldValue, Occupancy, Role
from xlapipe.plans.once import once_per_object
from xlapipe.plans.opcodes import COPIES, RENAMES
from xlapipe.plans.phases import Phase, phases_of
from xlapipe.plans.plan import Plan

# Values are followed through these to the instructions that make or read them.
HANDED_ON = RENAMES | COPIES | {"copy-done"}
# Positions between an operation and the gradient that it was moved to.
_BESIDE = 3
# What a loop passes from one iteration to the next has its names in and after the loop.
_CARRIED = ("parameter", "while")


@dataclass(frozen=True, slots=True)
class KeptValue(HeldValue):
    """A value that is alive at some position, as a rule from the forward pass to a later phase.

    Attributes:
      start, end: schedule positions, both included.
    """

    space: MemorySpace
    start: int
    end: int


@once_per_object
def kept_values(plan: Plan) -> tuple[KeptValue, ...]:
    """The values that are kept for the backward pass, in device memory and in the host's.

    A scan keeps a stack of its iterations' values. Parameters are left out. Empty without live
    ranges, and for a program without gradients.
    """
    if plan.live_ranges is None or not phases_of(plan).trains:
        return ()
    rule = _Rule(plan)
    return tuple(
        held
        for space in (MemorySpace.HBM, MemorySpace.HOST)
        for held in rule.placed_in(space)
        if rule.keeps(held)
    )


@once_per_object
def saved_for_backward(plan: Plan) -> frozenset[str]:
    """Names of values in device memory that are kept, also under the names that loops give them.

    A scan keeps a stack, which is in the same memory before, in and after its iterations.
    """
    rule = _Rule(plan)
    pending = [held for held in kept_values(plan) if held.space is MemorySpace.HBM]
    in_place: dict[tuple[int, int, int], list[KeptValue]] = {held.place: [] for held in pending}
    for held in rule.placed_in(MemorySpace.HBM) if pending else ():
        if held.place in in_place:
            in_place[held.place].append(held)
    saved: set[str] = set()
    while pending:
        held = pending.pop()
        if held.value.name in saved:
            continue
        saved.add(held.value.name)
        for other in in_place[held.place]:
            meanwhile = other.start < held.end and held.start < other.end
            if meanwhile or (other.end == held.start and rule.hands_on(other.value, held.value)):
                pending.append(other)
    return frozenset(saved)


def saved_at(occupancy: Occupancy, position: int | None) -> tuple[CountedValue, ...]:
    """The values alive at a position that are kept for the backward pass, most bytes first.

    Outputs and values in the memory of arguments are left out: they are kept anyway.
    """
    saved = saved_for_backward(occupancy.plan)
    return tuple(
        held
        for held in occupancy.contents(position)
        if held.role is Role.TEMP and held.value.name in saved
    )


class _Rule:
    """Which values are made in the forward pass and used after it."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._phases = plan, phases_of(plan)
        self._occupancy = Occupancy(plan)
        self._schedule = plan.live_ranges.schedule if plan.live_ranges is not None else ()
        self._positions = plan.live_ranges.positions if plan.live_ranges is not None else {}
        self._products = {gemm.instruction for gemm in plan.gemms}

    def placed_in(self, space: MemorySpace) -> Iterator[KeptValue]:
        """The values that are alive at some position, without tuples of pointers."""
        for allocation in self._plan.allocations_in(space):
            for value in allocation.values:
                live = self._occupancy.alive.get(value.name)
                if live is not None and not value.shape.is_tuple:
                    yield KeptValue(allocation, value, space, live.start, live.end)

    def hands_on(self, value: LogicalBuffer, later: LogicalBuffer) -> bool:
        """Whether a value in the same memory is a later one, or a part of it."""
        if self._opcode(later) in _CARRIED:
            return True
        maker = self._plan.instructions.get(later.instruction)
        names = f"{later.instruction} {maker.op_name if maker is not None else ''}"
        updates = "dynamic_update_slice" in names.replace("-", "_")
        return updates and self._opcode(value) in _CARRIED

    def _opcode(self, value: LogicalBuffer) -> str:
        maker = self._plan.instructions.get(value.instruction)
        return maker.opcode if maker is not None else ""

    def keeps(self, held: KeptValue) -> bool:
        """Whether a value is made in the forward pass and used after it."""
        # What a loop carries is kept if what it hands on or gets is, not by its own phase.
        if self._opcode(held.value) == "parameter":
            return False
        # What is copied decides: a TPU moves what it keeps from its own memory to HBM. A copy to
        # the host that begins in the backward pass frees nothing until then.
        instruction = held.value.instruction
        maker = instruction if held.space is MemorySpace.HOST else self._copied(instruction)
        if self._phases.of(maker) is not Phase.FORWARD:
            return False
        if held.end >= len(self._schedule):
            return True
        last = self._schedule[held.end]
        return self._phases.of(last) is not Phase.FORWARD or self._is_beside_a_gradient(held)

    def _copied(self, name: str) -> str:
        """The instruction whose result a copy holds; of another instruction, and of a copy of an
        argument or from the host's memory, itself.
        """
        platform = platform_named(self._plan.platform)
        origin = instruction = self._plan.instructions.get(name)
        while origin is not None and origin.opcode in HANDED_ON and origin.operands:
            origin = self._plan.instructions.get(origin.operands[0])
            space = space_of(origin.shape.memory_space, platform) if origin is not None else None
            if space is MemorySpace.HOST:
                return name
        is_copy = instruction is not None and instruction.opcode in COPIES
        return origin.name if is_copy and origin and origin.opcode != "parameter" else name

    def _is_beside_a_gradient(self, held: KeptValue) -> bool:
        """Whether a gradient at once needs the result of the operation at which a lifetime ends.

        XLA moves such operations out of the forward pass, next to the gradient.
        """
        last = self._schedule[held.end]
        if last in self._products:  # what a product of the forward pass reads ends with it
            return False
        users = [user for user in self._plan.users_of(last) if user in self._positions]
        first = min(users, key=self._positions.__getitem__, default=None)
        if first is None or self._phases.of(first) is not Phase.BACKWARD:
            return False
        beside = max(_BESIDE, len(self._schedule) // 100)
        return held.end - held.start > beside >= self._positions[first] - self._positions[last]


def of_size(
    kept: Sequence[KeptValue], elements: int, size_bytes: int, *, several_devices: bool
) -> tuple[KeptValue, ...]:
    """Those that can hold a value of so many elements and bytes, or a device's part of it."""

    def fits(held: KeptValue) -> bool:
        own_bytes, count = held.value.shape.size_bytes, held.value.shape.elements
        if not several_devices or not own_bytes:
            return count == elements and own_bytes == size_bytes
        parts, rest = divmod(size_bytes, own_bytes)
        # Inside of shard_map a value has the shape of one device's part.
        return rest == 0 and count * parts % elements == 0

    return tuple(filter(fits, kept))
