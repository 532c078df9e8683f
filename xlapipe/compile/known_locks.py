"""What is known of devices' autotune results: tables of this package, and locks of the user's."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from xlapipe.devices.targets.target import Target
from xlapipe.dump.autotune_lock import AutotuneLock, read_lock
from xlapipe.errors import XlapipeError
from xlapipe.files.writing import write_files
from xlapipe.time.predicted_locks.known_results import (
    TABLES,
    KnownResults,
    LockResults,
    results_of_lock,
)


def locks_folder() -> Path:
    """Where `xlapipe device locks` keeps the user's locks."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "xlapipe" / "locks"


def add_lock(path: Path) -> Path:
    """Copies a lock to the user's folder, and returns where it is."""
    lock = read_lock(path)
    _ = results_of_lock(lock.results, program=lock.workload)
    content = lock.to_bytes()
    copy = locks_folder() / f"{hashlib.sha256(content).hexdigest()[:16]}.json"
    write_files({copy: content})
    return copy


def added_locks() -> Iterator[tuple[Path, AutotuneLock]]:
    """The user's locks, in the order of their names."""
    for path, _ in _files():
        yield path, _lock_at(path)[0]


def _files() -> tuple[tuple[Path, int], ...]:
    """The files in the user's folder, with the time of the last change in nanoseconds."""
    folder = locks_folder()
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise XlapipeError(f"{folder}: {error.strerror}; fix: let this user read it") from None
    return tuple((path, path.lstat().st_mtime_ns) for path in paths)


def _lock_at(path: Path) -> tuple[AutotuneLock, LockResults]:
    try:
        lock = read_lock(path)
        return lock, results_of_lock(lock.results, program=lock.workload)
    except XlapipeError as error:
        message = str(error).partition("; fix: ")[0]
        where = "" if str(path) in message else f"{path}: "
        raise XlapipeError(f"{where}{message}; fix: remove it from this folder") from None


def known_results(target: str, policy: str) -> tuple[KnownResults, Target] | None:
    """What is known of a target, if anything, and the device that it is known of.

    XLA names a device by its config, so that a plan is made with the config of that device. Results
    of the installed jaxlib come before those of others.
    """
    return _known_results(target, policy, _files())


@cache
def _known_results(
    target: str, policy: str, added: tuple[tuple[Path, int], ...]
) -> tuple[KnownResults, Target] | None:
    """As `known_results`, with the user's locks by path and time of the last change."""
    tables = [KnownResults.read(path) for path in sorted(TABLES.glob("*.jsonl"))]
    of_locks = (
        KnownResults(*keys, about_lock(lock), results)
        for lock, (keys, results) in (_lock_at(path) for path, _ in added)
        if lock.target == target
    )
    usable = [
        known
        for it in (*tables, *of_locks)
        if it.about["gemm_policy"] == policy
        and (known := it.for_jaxlib(version("jaxlib"))) is not None
    ]
    for_target = [it for it in usable if it.about["target"] == target]
    # The order of the sources decides nothing else.
    for_target.sort(key=lambda it: it.jaxlib != version("jaxlib"))
    if not for_target:
        return None
    known = for_target[0]
    for other in for_target[1:]:
        if other.device == known.device:
            known = known.with_results(other.results)
    about = AutotuneLock(**known.about, results="")
    for other in usable:
        if other.about["target"] != target and (
            other.about["compute_capability"] == about.compute_capability
        ):
            known = known.with_other_device(other)
    return known, replace(about.as_target(), source="catalogue")


def about_lock(lock: AutotuneLock) -> dict[str, object]:
    """What a lock is valid for: its fields without the results."""
    data = {item.name: getattr(lock, item.name) for item in fields(AutotuneLock)}
    del data["results"], data["topology"], data["workspaces"]
    return dict(json.loads(json.dumps({**data, "workload": ""})))
