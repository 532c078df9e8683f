"""Compares two programs."""

from collections.abc import Mapping
from dataclasses import replace

from xlapipe.diff.account import account
from xlapipe.diff.changes import Change, HostMemoryChange, InstructionChange
from xlapipe.diff.chip_memory import chip_memory_changes, without_chip_memory
from xlapipe.diff.difference import Difference
from xlapipe.diff.instruction_changes import instruction_changes
from xlapipe.diff.leaf_changes import alias_changes, leaf_changes, output_changes
from xlapipe.diff.matching import match
from xlapipe.diff.schedule_changes import order_change, placement_changes, thunk_changes
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.program import Program


def compare(
    a: Program,
    b: Program,
    *,
    names: tuple[str, str] = ("A", "B"),
    context: Mapping[str, tuple[str, str]] | None = None,
) -> Difference:
    """Everything that differs between the plans of two programs.

    The lines of `account` always add up to the difference of the totals.

    Args:
      names: names of the two, for display.
      context: settings and versions that differ; see `Difference`.
    """
    matching = match(_on_device(a), _on_device(b))
    instructions = tuple(instruction_changes(matching))
    listed = without_chip_memory(instructions, a.plan, b.plan)
    ordered = sorted(listed, key=lambda change: -_written_bytes(change))
    changes: list[Change] = [*chip_memory_changes(a.plan, b.plan), *ordered]
    changes += alias_changes(matching)
    changes += output_changes(matching)
    changes += thunk_changes(matching)
    changes += order_change(matching)
    changes += placement_changes(matching)
    changes += _host_memory_change(a, b)
    return Difference(
        a_name=names[0],
        b_name=names[1],
        a_totals=a.plan.totals,
        b_totals=b.plan.totals,
        context=context or {},
        programs=tuple(leaf_changes(matching)),
        account=account(matching, instructions),
        changes=tuple(changes),
        compile_times=(
            (a.compile_times, b.compile_times) if a.compile_times and b.compile_times else None
        ),
    )


def _on_device(program: Program) -> Program:
    """The program with the allocations of device memory alone."""
    plan = program.plan
    if len(plan.device_allocations) == len(plan.allocations):
        return program
    return replace(program, plan=replace(plan, allocations=plan.device_allocations))


def _host_memory_change(a: Program, b: Program) -> list[HostMemoryChange]:
    host = [program.plan.spaces[MemorySpace.HOST].total_bytes for program in (a, b)]
    return [HostMemoryChange(*host)] if host[0] != host[1] else []


def _written_bytes(change: InstructionChange) -> int:
    return max(change.a_bytes or 0, change.b_bytes or 0)
