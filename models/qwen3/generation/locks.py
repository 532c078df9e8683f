"""Autotune locks for the programs of a build: one for each, found by the workload's name."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from xlapipe.dumps.autotune_lock import LOCK, read_lock
from xlapipe.errors import XlapipeError
from xlapipe.registry import WorkloadReference


def locks_for(
    references: Mapping[str, WorkloadReference], paths: Sequence[Path]
) -> dict[str, Path]:
    """The lock of each program, by the program's name; none where no path is given.

    Args:
      paths: locks, or folders that hold some at any depth. Locks of other workloads are passed by.

    Raises:
      XlapipeError: a file is no lock, a folder holds none, or a program has no lock, or two.
    """
    if not paths:
        return {}
    found: dict[str, list[Path]] = {}
    for path in paths:
        files = sorted(path.rglob(LOCK)) if path.is_dir() else [path]
        if not files:
            raise XlapipeError(f"--autotune-lock {path}: the folder holds no {LOCK}")
        for file in files:
            found.setdefault(read_lock(file).workload, []).append(file)
    return {program: _only(program, reference, found) for program, reference in references.items()}


def _only(program: str, reference: WorkloadReference, found: Mapping[str, Sequence[Path]]) -> Path:
    workload = _name_of(reference)
    locks = found.get(workload, ())
    if len(locks) == 1:
        return locks[0]
    if locks:
        told = ", ".join(map(str, locks))
        raise XlapipeError(f"--autotune-lock: {len(locks)} locks for {workload}: {told}; name one")
    held = ", ".join(sorted(found))
    raise XlapipeError(
        f"--autotune-lock: no lock for {workload}, the workload of {program}; those given are for "
        f"{held}; make it on the device: "
        f'`xlapipe dump "{reference}" --target attached --tune`'
    )


def _name_of(reference: WorkloadReference) -> str:
    # It imports jax, as only builds with locks have to.
    from xlapipe.lowering.load_workload import load_workload

    return load_workload(reference).name
