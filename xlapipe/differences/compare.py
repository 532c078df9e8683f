"""Compares two programs, and what is at two paths: dumps of xlapipe, or any dump of XLA."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from xlapipe.differences.account import account
from xlapipe.differences.changes import Change, InstructionChange, SpaceChange
from xlapipe.differences.difference import Difference
from xlapipe.differences.instruction_changes import instruction_changes
from xlapipe.differences.leaf_changes import alias_changes, leaf_changes, output_changes
from xlapipe.differences.matching import Matching, match
from xlapipe.differences.schedule_changes import order_change, placement_changes, thunk_changes
from xlapipe.differences.stages import first_stage, hidden_change
from xlapipe.differences.time_changes import time_changes
from xlapipe.dump.dump import Dump
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.plans import MemorySpace, Plan, Program
from xlapipe.time.study import Study, study_of


def compare(a: Program, b: Program) -> Difference:
    """Everything that differs between the plans of two programs.

    The lines of `account` always add up to the difference of the totals.
    """
    return _compare(match(_on_device(a), _on_device(b)), a, b, ("A", "B"), {})


def _compare(
    matching: Matching,
    a: Program,
    b: Program,
    names: tuple[str, str],
    context: Mapping[str, tuple[str, str]],
) -> Difference:
    instructions = tuple(instruction_changes(matching))
    ordered = sorted(instructions, key=lambda item: -max(item.a_bytes or 0, item.b_bytes or 0))
    changes: list[Change] = [*_space_changes(a.plan, b.plan), *ordered]
    changes += alias_changes(matching)
    changes += output_changes(matching)
    changes += thunk_changes(matching)
    changes += order_change(matching)
    changes += placement_changes(matching)
    return Difference(
        a_name=names[0],
        b_name=names[1],
        a_totals=a.plan.totals,
        b_totals=b.plan.totals,
        context=context,
        programs=tuple(leaf_changes(matching)),
        account=account(matching, instructions),
        changes=tuple(changes),
    )


def _space_changes(a: Plan, b: Plan) -> Iterator[SpaceChange]:
    """Totals of the memories other than the device's, where they differ."""
    for space in (MemorySpace.VMEM, MemorySpace.SMEM, MemorySpace.HOST):
        totals = (plan.spaces.get(space) for plan in (a, b))
        sizes = [it.total_allocation_bytes if it is not None else 0 for it in totals]
        if sizes[0] != sizes[1]:
            yield SpaceChange(str(space), *sizes)


def _on_device(program: Program) -> Program:
    """The program with the allocations of device memory alone."""
    plan = program.plan
    if len(plan.device_allocations) == len(plan.allocations):
        return program
    return replace(program, plan=replace(plan, allocations=plan.device_allocations))


def compare_opened(
    a: XlaFiles,
    b: XlaFiles,
    *,
    names: tuple[str, str] | None = None,
    studies: tuple[Study, Study] | None = None,
) -> Difference:
    """The difference between two plans, with the first stage and the settings that differ.

    If the plans are equal, their HLO is compared too, unless it is of different jaxlibs: these
    print the same module differently. `studies` save computing the times again.
    """
    matching = match(_on_device(a), _on_device(b))
    names = names or (str(a.path), str(b.path))
    difference = _compare(matching, a, b, names, _context(a, b))
    if difference.same:
        hidden = None if "jaxlib" in difference.context else hidden_change(a, b)
        return difference if hidden is None else replace(difference, changes=(hidden,))
    studies = studies or (study_of(a), study_of(b))
    other_hlo = any(isinstance(change, InstructionChange) for change in difference.changes)
    return replace(
        difference,
        first_stage=first_stage(a, b, other_hlo=other_hlo),
        time=time_changes(
            studies[0].cost,
            studies[1].cost,
            (studies[0].prediction, studies[1].prediction),
            matching.instructions,
        ),
    )


def _context(a: XlaFiles, b: XlaFiles) -> Mapping[str, tuple[str, str]]:
    """The settings and versions that differ; empty for files that xlapipe did not write."""
    if not (isinstance(a, Dump) and isinstance(b, Dump)):
        return {}
    settings_a, settings_b = _settings(a), _settings(b)
    return {
        name: (settings_a.get(name, "none"), settings_b.get(name, "none"))
        for name in dict.fromkeys((*settings_a, *settings_b))
        if settings_a.get(name) != settings_b.get(name)
    }


def _settings(dump: Dump) -> dict[str, str]:
    manifest = dump.manifest
    return {
        "workload": manifest.workload,
        "target": f"{manifest.target} ({manifest.target_description})",
        "gemm policy": manifest.gemm_policy,
        "autotuning": manifest.autotuning,
        **dict(sorted(manifest.versions.items())),
        **{f"option {name}": value for name, value in sorted(manifest.options.items())},
    }
