"""What is known of devices' autotune results: tables of this package, and locks of the user's."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from xlapipe.dumps.autotune_lock import AutotuneLock, read_lock
from xlapipe.errors import XlapipeError
from xlapipe.files.writing import write_files
from xlapipe.predicted_locks.known_results import (
    TABLES,
    KnownResults,
    LockResults,
    results_of_lock,
)
from xlapipe.targets.target import Target

_REMOVE = "fix: remove it from this folder"
_SKIPPED: dict[Path, str] = {}


def locks_folder() -> Path:
    """Where `xlapipe lock add` keeps the user's locks."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "xlapipe" / "locks"


def add_lock(path: Path) -> Path:
    """Copies a lock to the user's folder, and returns where it is.

    Raises:
      TargetError: it is not a lock, or holds no results that XLA names by fingerprint.
    """
    lock = read_lock(path)
    _ = results_of_lock(lock.results, program=lock.workload)
    content = lock.to_bytes()
    copy = locks_folder() / f"{hashlib.sha256(content).hexdigest()[:16]}.json"
    write_files({copy: content})
    return copy


def added_locks() -> Iterator[tuple[Path, AutotuneLock]]:
    """The user's locks, in the order of their names; a file that is no lock is skipped.

    `take_skipped` returns what was skipped.
    """
    for path, _ in _files():
        lock = _lock_at(path)
        if lock is not None:
            yield path, lock[0]


def take_skipped() -> tuple[str, ...]:
    """A sentence on each file in the user's folder that was skipped; forgets them."""
    sentences = tuple(f"skipped: {_SKIPPED[path]}" for path in sorted(_SKIPPED))
    _SKIPPED.clear()
    return sentences


def _files() -> Iterator[tuple[Path, int]]:
    """The files in the user's folder, with the time of the last change in nanoseconds."""
    for path in sorted(locks_folder().glob("*.json")):
        try:
            yield path, path.stat().st_mtime_ns
        except OSError as error:
            _SKIPPED[path] = f"{path}: {error.strerror}; {_REMOVE}"


def _lock_at(path: Path) -> tuple[AutotuneLock, LockResults] | None:
    """A lock and its results; None for a file that is no lock."""
    try:
        lock = read_lock(path)
        return lock, results_of_lock(lock.results, program=lock.workload)
    except XlapipeError as error:
        message = str(error).partition("; fix: ")[0]
        _SKIPPED[path] = f"{message if str(path) in message else f'{path}: {message}'}; {_REMOVE}"
        return None


def known_results(target: str, policy: str) -> tuple[KnownResults, Target] | None:
    """What is known of a target with the installed jaxlib, and the device that it is known of.

    XLA names a device by its config, so that a plan is made with the config of that device.

    Returns:
      None if nothing is known. A file of the user's that is no lock is skipped; see `take_skipped`.
    """
    return _known_results(target, policy, tuple(_files()))


@cache
def _known_results(
    target: str, policy: str, added: tuple[tuple[Path, int], ...]
) -> tuple[KnownResults, Target] | None:
    """As `known_results`, with the user's locks by path and time of the last change."""
    about, known = None, None
    table = TABLES / f"{target}.jsonl"
    if table.exists():
        known = KnownResults.read(table)
        about = AutotuneLock(**known.about, results="")
        if about.versions["jaxlib"] != version("jaxlib") or about.gemm_policy != policy:
            about, known = None, None
    for lock, (keys, results) in filter(None, (_lock_at(path) for path, _ in added)):
        if (lock.target, lock.gemm_policy, lock.versions.get("jaxlib")) != (
            target,
            policy,
            version("jaxlib"),
        ):
            continue
        if about is None or known is None:
            about, known = lock, KnownResults(*keys, about_lock(lock), ())
        if keys == (known.device, known.codegen):
            known = known.with_results(results)
    if about is None or known is None:
        return None
    for other in sorted(TABLES.glob("*.jsonl")):
        others = KnownResults.read(other)
        capability = others.about["compute_capability"]
        same = (others.codegen, capability) == (known.codegen, about.compute_capability)
        if other != table and same:
            known = known.with_others(others)
    return known, replace(about.as_target(), source="catalogue")


def about_lock(lock: AutotuneLock) -> dict[str, object]:
    """What a lock is valid for: its fields without the results."""
    data = {item.name: getattr(lock, item.name) for item in fields(AutotuneLock)}
    del data["results"], data["topology"], data["workspaces"]
    return dict(json.loads(json.dumps({**data, "workload": ""})))
