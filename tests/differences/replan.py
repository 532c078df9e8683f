"""Derive plans from plans: the same program with other names, and really different programs."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from xlapipe.plans import (
    BufferAllocation,
    Computation,
    HloModule,
    Instruction,
    Plan,
)


def renamed(plan: Plan, chance: random.Random) -> Plan:
    """The same plan with every instruction and computation renamed, and allocations reordered."""
    assert plan.module is not None
    names = {
        name
        for computation in plan.module.computations.values()
        for name in (
            computation.name,
            *(instruction.name for instruction in computation.instructions),
        )
    }
    names |= {value.instruction for allocation in plan.allocations for value in allocation.values}
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
                new[computation.name]: Computation(
                    new[computation.name],
                    tuple(_renamed(instruction, new) for instruction in computation.instructions),
                    new[computation.root],
                )
                for computation in computations
            },
            entry=new.get(plan.module.entry or ""),
        ),
        allocations=tuple(
            replace(
                allocation,
                index=index,
                values=tuple(
                    sorted(
                        (
                            replace(value, name=value_name(value.name))
                            for value in allocation.values
                        ),
                        key=lambda value: (value.offset_bytes, value.size_bytes, value.name),
                    )
                ),
            )
            for index, allocation in enumerate(allocations)
        ),
        live_ranges=live
        and replace(
            live,
            schedule=tuple(new[name] for name in live.schedule),
            ranges=tuple(
                replace(live_range, name=value_name(live_range.name)) for live_range in live.ranges
            ),
        ),
        thunks=plan.thunks
        and tuple(
            replace(thunk, detail=" ".join(["kernel_7", *thunk.detail.split(" ")[1:]]))
            if "grid:" in thunk.detail
            else thunk
            for thunk in plan.thunks
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
    entry = plan.module.entry_computation
    assert entry is not None
    return entry


def with_instructions(plan: Plan, name: str, instructions: Iterable[Instruction]) -> Plan:
    """`plan` with other instructions in one computation."""
    module = plan.module
    assert module is not None
    changed = replace(module.computations[name], instructions=tuple(instructions))
    return replace(
        plan, module=HloModule(module.name, {**module.computations, name: changed}, module.entry)
    )


def with_allocation(
    plan: Plan, index: int, change: Callable[[BufferAllocation], BufferAllocation]
) -> Plan:
    """`plan` with one allocation changed."""
    return replace(
        plan,
        total_bytes_used=None,
        allocations=tuple(
            change(allocation) if allocation.index == index else allocation
            for allocation in plan.allocations
        ),
    )
