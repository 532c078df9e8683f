"""Autotune locks for the programs of a build: one per program, found by its workload's name."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import xlapipe
from xlapipe import WorkloadReference, XlapipeError

_LOCK = "autotune_lock.json"


def locks_for(
    references: Mapping[str, WorkloadReference], paths: Sequence[Path]
) -> dict[str, Path]:
    """The lock of each program, by the program's name; empty if no path is given.

    Args:
      references: the workload of each program, by the program's name.

    Raises:
      XlapipeError: a file is not a lock, a folder contains none, or a program does not have exactly
        one lock.
    """
    if not paths:
        return {}
    locks: dict[str, list[Path]] = {}
    for path in paths:
        files = sorted(path.rglob(_LOCK)) if path.is_dir() else [path]
        if not files:
            raise XlapipeError(f"--autotune-lock {path}: the folder contains no {_LOCK}")
        for file in files:
            locks.setdefault(xlapipe.read_lock(file).workload, []).append(file)
    return {program: _only(program, reference, locks) for program, reference in references.items()}


def _only(program: str, reference: WorkloadReference, locks: Mapping[str, Sequence[Path]]) -> Path:
    workload = _name_of(reference)
    candidates = locks.get(workload, ())
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise XlapipeError(
            f"--autotune-lock: expected one lock for {workload}, found {len(candidates)}: "
            f"{', '.join(map(str, candidates))}; fix: name one of them"
        )
    raise XlapipeError(
        f"--autotune-lock: no lock for {workload}, the workload of {program}; found locks for "
        f"{', '.join(sorted(locks))}; fix: make it on the device: "
        f'`xlapipe dump "{reference}" --target attached --tuning tune`'
    )


def _name_of(reference: WorkloadReference) -> str:
    # Imported here because it imports jax, which only builds with locks need in this process.
    from models.qwen3 import workloads

    function = getattr(workloads, reference.target.partition(":")[2])
    name: str = function(**(reference.arguments or {})).name
    return name
