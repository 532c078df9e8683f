"""From two paths to a Difference: dumps of xlapipe, or any dump of XLA."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from xlapipe.diff.changes import InstructionChange
from xlapipe.diff.compare import compare
from xlapipe.diff.difference import Difference
from xlapipe.diff.stages import first_stage, hidden_change
from xlapipe.dumps.dump import Dump
from xlapipe.dumps.opened import Opened, open_path


def compare_paths(a: Path, b: Path) -> Difference:
    """The difference between the plans at two paths.

    Raises:
      DumpError: as `open_path`.
    """
    return compare_opened(open_path(a), open_path(b))


def compare_opened(a: Opened, b: Opened, *, names: tuple[str, str] | None = None) -> Difference:
    """The difference between two plans, the stage at which they part, and what they were made with.

    HLO that differs in nothing that a plan holds is a difference too. It is looked for between
    modules of one jaxlib: another prints the same module in other words.
    """
    difference = compare(
        a.program,
        b.program,
        names=names or (str(a.path), str(b.path)),
        context=_context(a.dump, b.dump),
    )
    if difference.same:
        hidden = None if "jaxlib" in difference.context else hidden_change(a, b)
        return difference if hidden is None else replace(difference, changes=(hidden,))
    other_hlo = any(isinstance(change, InstructionChange) for change in difference.changes)
    return replace(difference, first_stage=first_stage(a, b, other_hlo=other_hlo))


def _context(a: Dump | None, b: Dump | None) -> Mapping[str, tuple[str, str]]:
    """What the two were made with, where it differs."""
    if a is None or b is None:
        return {}
    ours, theirs = _made_with(a), _made_with(b)
    return {
        name: (ours.get(name, "none"), theirs.get(name, "none"))
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name)
    }


def _made_with(dump: Dump) -> dict[str, str]:
    manifest = dump.manifest
    return {
        "workload": manifest.workload,
        "target": f"{manifest.target} ({manifest.target_description})",
        "gemm policy": manifest.gemm_policy,
        "autotuning": manifest.autotuning,
        **dict(sorted(manifest.versions.items())),
        **{f"option {name}": value for name, value in sorted(manifest.options.items())},
    }
