"""Plans made from plans: the same program under other names, and programs that really differ."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from xlapipe.plan import (
    AllocationKind,
    BufferAllocation,
    Computation,
    HloModule,
    Instruction,
    LogicalBuffer,
    Plan,
)


def renamed(plan: Plan, chance: random.Random) -> Plan:
    """The same plan: every instruction and computation renamed, independent things reordered.

    Allocations are numbered anew in another order, and computations listed in another one.
    """
    assert plan.module is not None
    names = {
        name
        for computation in plan.module.computations.values()
        for name in (computation.name, *(each.name for each in computation.instructions))
    }
    names |= {value.instruction for each in plan.allocations for value in each.values}
    names |= set(plan.live_ranges.schedule) if plan.live_ranges is not None else set()
    numbers = chance.sample(range(10 * len(names)), len(names))
    new = {name: f"x{number}.y" for name, number in zip(sorted(names), numbers, strict=True)}

    def value_name(name: str) -> str:
        instruction, brace, index = name.partition("{")
        return f"{new[instruction]}{brace}{index}"

    computations = list(plan.module.computations.values())
    allocations = list(plan.allocations)
    chance.shuffle(allocations)
    live = plan.live_ranges
    return replace(
        plan,
        module=replace(
            plan.module,
            computations={
                new[each.name]: Computation(
                    new[each.name],
                    tuple(_renamed(instruction, new) for instruction in each.instructions),
                    new[each.root],
                )
                for each in computations
            },
            entry=new.get(plan.module.entry or ""),
        ),
        allocations=tuple(
            replace(
                each,
                index=index,
                values=tuple(
                    sorted(
                        (replace(value, name=value_name(value.name)) for value in each.values),
                        key=lambda value: (value.offset_bytes, value.size_bytes, value.name),
                    )
                ),
            )
            for index, each in enumerate(allocations)
        ),
        live_ranges=live
        and replace(
            live,
            schedule=tuple(new[name] for name in live.schedule),
            ranges=tuple(replace(each, name=value_name(each.name)) for each in live.ranges),
        ),
        thunks=plan.thunks
        and tuple(
            replace(each, detail=" ".join(["kernel_7", *each.detail.split(" ")[1:]]))
            if "grid:" in each.detail
            else each
            for each in plan.thunks
        ),
    )


def _renamed(instruction: Instruction, new: dict[str, str]) -> Instruction:
    return instruction._replace(
        name=new[instruction.name],
        operands=tuple(new[name] for name in instruction.operands),
        called_computations=tuple(new[name] for name in instruction.called_computations),
    )


def entry_of(plan: Plan) -> Computation:
    assert plan.module is not None
    assert plan.module.entry is not None
    return plan.module.computations[plan.module.entry]


def with_instructions(plan: Plan, name: str, instructions: Iterable[Instruction]) -> Plan:
    """`plan` with other instructions in one computation."""
    module = plan.module
    assert module is not None
    changed = replace(module.computations[name], instructions=tuple(instructions))
    return replace(
        plan, module=HloModule(module.name, {**module.computations, name: changed}, module.entry)
    )


def with_instruction(plan: Plan, name: str, change: Callable[[Instruction], Instruction]) -> Plan:
    """`plan` with one instruction of the entry changed."""
    entry = entry_of(plan)
    return with_instructions(
        plan,
        entry.name,
        (change(each) if each.name == name else each for each in entry.instructions),
    )


def with_inserted(plan: Plan, added: Instruction, *, before: str) -> Plan:
    """`plan` with an instruction of the entry between `before` and what it reads first."""
    entry = entry_of(plan)
    at = [each.name for each in entry.instructions].index(before)
    reader = entry.instructions[at]
    reader = reader._replace(operands=(added.name, *reader.operands[1:]))
    instructions = (*entry.instructions[:at], added, reader, *entry.instructions[at + 1 :])
    return with_instructions(plan, entry.name, instructions)


def with_allocation(
    plan: Plan, index: int, change: Callable[[BufferAllocation], BufferAllocation]
) -> Plan:
    """`plan` with one allocation changed."""
    return replace(
        plan,
        total_bytes_used=None,
        allocations=tuple(
            change(each) if each.index == index else each for each in plan.allocations
        ),
    )


def with_new_allocation(
    plan: Plan, size_bytes: int, kinds: tuple[AllocationKind, ...], *values: LogicalBuffer
) -> Plan:
    """`plan` with one more allocation."""
    new = BufferAllocation(len(plan.allocations), size_bytes, kinds, values=values)
    return replace(plan, total_bytes_used=None, allocations=(*plan.allocations, new))


def value(name: str, shape: str, size_bytes: int, offset_bytes: int = 0) -> LogicalBuffer:
    return LogicalBuffer(name, offset_bytes, size_bytes, shape)
