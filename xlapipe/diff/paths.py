"""Compares what is at two paths: dumps of xlapipe, or any dump of XLA."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from xlapipe.diff.changes import InstructionChange
from xlapipe.diff.compare import compare
from xlapipe.diff.difference import Difference
from xlapipe.diff.stages import first_stage, hidden_change
from xlapipe.diff.time_changes import time_changes
from xlapipe.dump.dump import Dump
from xlapipe.dump.opened import Opened
from xlapipe.inductor.open_path import open_path


def compare_paths(a: Path, b: Path) -> Difference:
    """The difference between the plans at two paths.

    Raises:
      DumpError: see `open_path`.
    """
    return compare_opened(open_path(a), open_path(b))


def compare_opened(a: Opened, b: Opened, *, names: tuple[str, str] | None = None) -> Difference:
    """The difference between two plans, with the first stage and the settings that differ.

    If the plans are equal, their HLO is compared too, unless it is of different jaxlibs: these
    print the same module differently.

    Args:
      names: names of the two, for display; default: their paths.
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
    return replace(
        difference,
        first_stage=first_stage(a, b, other_hlo=other_hlo),
        time=time_changes(a.step_cost, b.step_cost, (a.prediction, b.prediction)),
    )


def _context(a: Dump | None, b: Dump | None) -> Mapping[str, tuple[str, str]]:
    """The settings and versions that differ; empty for files that xlapipe did not write."""
    if a is None or b is None:
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
