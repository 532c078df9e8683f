"""What a project states of xlapipe in its `pyproject.toml`, below `[tool.xlapipe]`.

    [tool.xlapipe]
    target = "h100_sxm"  # and topology, network, memory, tuning: as the options of these names
    untuned = true  # as tuning = "none", where neither is given by the command

    [tool.xlapipe.workloads]
    my-step = "steps.decode:workload"

A key is read from the nearest file, in a folder or above it, that has it. The files above that one
are not read. A key that is not one of `KEYS` is an error.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from xlapipe.errors import WorkloadError
from xlapipe.files.contents import Refusal, read_plain

TABLE = ("tool", "xlapipe")
KEYS = ("memory", "network", "target", "topology", "tuning", "untuned", "workloads")
_PROJECT_FILE = "pyproject.toml"
_LARGEST_PROJECT_BYTES = 16 * 1024 * 1024
_REFUSAL = Refusal(WorkloadError, "give a readable pyproject.toml")
# What an option of the command states, which holds instead of any file.
_of_command: dict[str, Any] = {}


@contextmanager
def stated_by_command(key: str, value: Any) -> Iterator[None]:
    """While it runs, `stated` gives this value; None changes nothing."""
    if value is not None:
        _of_command[key] = value
    try:
        yield
    finally:
        _of_command.pop(key, None)


def stated(start: Path, key: str) -> tuple[Path, Any] | None:
    """The nearest project file that has `key` below `[tool.xlapipe]`, and its value.

    What the command states comes first, with the name of its option.

    Raises:
      WorkloadError: a file cannot be read, is not TOML, or `tool.xlapipe` is not a table.
    """
    if key in _of_command:
        return Path(f"--{key}"), _of_command[key]
    for folder in (start, *start.parents):
        file = folder / _PROJECT_FILE
        table = _table(file)
        if key in table:
            return file, table[key]
    return None


def stated_text(start: Path, key: str) -> tuple[str, str] | None:
    """The text that `stated` gives for a key, after where it is stated, for messages.

    Raises:
      WorkloadError: as `stated`, or the value is not text.
    """
    file, value = stated(start, key) or (start, None)
    where = f"{file}: {'.'.join(TABLE)}.{key}"
    if value is not None and not (isinstance(value, str) and value):
        raise WorkloadError(f'{where}: expected text, found {value!r}; fix: write {key} = "…"')
    return None if value is None else (where, value)


def is_untuned(start: Path) -> bool:
    """Whether the project states that plans without a lock are made with XLA's defaults.

    Raises:
      WorkloadError: as `stated`, or the value is not a boolean.
    """
    file, value = stated(start, "untuned") or (start, False)
    if not isinstance(value, bool):
        raise WorkloadError(
            f"{file}: {'.'.join(TABLE)}.untuned: expected true or false, found {value!r}"
        )
    return value


def _table(file: Path) -> Mapping[str, Any]:
    """The table `[tool.xlapipe]` of a project file; empty if it or the file does not exist."""
    try:
        if not os.path.lexists(file):
            return {}
        content = read_plain(file, limit_bytes=_LARGEST_PROJECT_BYTES, refusal=_REFUSAL)
        # A project that does not use xlapipe is not parsed: its mistakes are not ours to report.
        value = tomllib.loads(content.decode()) if b"xlapipe" in content else {}
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{file}: not valid TOML: {error}") from None
    for depth, key in enumerate(TABLE, start=1):
        value = value.get(key, {})
        if not isinstance(value, dict):
            raise WorkloadError(
                f"{file}: {'.'.join(TABLE[:depth])}: expected a table, found {value!r}"
            )
    for key in value:
        if key not in KEYS:
            raise WorkloadError(
                f"{file}: {'.'.join(TABLE)}: expected {', '.join(KEYS)}, found {key!r}"
                f"{nearest(key, KEYS)}"
            )
    return value


def nearest(wrong: str, known: Iterable[str]) -> str:
    """The fix for a name that is not known."""
    near = get_close_matches(wrong, list(known), n=1, cutoff=0.5)
    return f"; fix: write {near[0]}" if near else "; fix: remove it"
