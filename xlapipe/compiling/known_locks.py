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
from xlapipe.files.writing import write_files
from xlapipe.predicted_locks.known_results import TABLES, KnownResults, results_of_lock
from xlapipe.targets.target import Target


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
    name = f"{lock.workload}-{lock.target}-{hashlib.sha256(content).hexdigest()[:12]}.json"
    copy = locks_folder() / name
    write_files({copy: content})
    return copy


def added_locks() -> Iterator[tuple[Path, AutotuneLock]]:
    """The user's locks, in the order of their names."""
    for path in sorted(locks_folder().glob("*.json")):
        yield path, read_lock(path)


def known_results(target: str, policy: str) -> tuple[KnownResults, Target] | None:
    """What is known of a target with the installed jaxlib, and the device that it is known of.

    XLA names a device by its config, so that a plan is made with the config of that device.

    Returns:
      None if nothing is known.

    Raises:
      TargetError: a lock that the user added cannot be read.
    """
    paths = sorted(locks_folder().glob("*.json"))
    return _known_results(target, policy, tuple((path, path.stat().st_mtime_ns) for path in paths))


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
    for path, _ in added:
        lock = read_lock(path)
        if (lock.target, lock.gemm_policy, lock.versions.get("jaxlib")) != (
            target,
            policy,
            version("jaxlib"),
        ):
            continue
        keys, results = results_of_lock(lock.results, program=lock.workload)
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
