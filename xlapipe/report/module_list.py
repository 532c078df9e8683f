"""The modules of a folder that XLA dumped to: the largest first, or one by name."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.files import modules_in
from xlapipe.errors import DumpError
from xlapipe.report.units import rounded
from xlapipe.report.wrapped_text import wrapped

# A training run dumps hundreds, most of them tiny; only the largest files are read.
_MAX_READ = 100
_MAX_LISTED = 30


@dataclass(frozen=True)
class ModuleRow:
    """One module; `total_bytes` is None if it cannot be read."""

    path: Path
    total_bytes: int | None


def module_named(directory: Path, name: str) -> Path:
    """The module of a directory whose file's name contains `name`; the largest of several.

    Raises:
      DumpError: no module has such a name.
    """
    paths = modules_in(directory)
    matching = [path for path in paths if name in path.name]
    if not matching:
        names = sorted({_short_name(path) for path in paths})
        raise DumpError(
            f"{directory}: expected a module whose name contains {name!r}, found "
            f"{len(paths)} others; fix: name one of: {', '.join(names):.400}"
        )
    return module_rows(matching)[0].path


def module_rows(paths: Sequence[Path]) -> list[ModuleRow]:
    """The modules, those with the most device memory first."""
    largest = sorted(paths, key=lambda path: -path.stat().st_size)[:_MAX_READ]
    rows = [ModuleRow(path, _total_bytes(path)) for path in largest]
    return sorted(rows, key=lambda row: (-(row.total_bytes or 0), row.path.name))


def _total_bytes(path: Path) -> int | None:
    try:
        return read_path(path).totals.total_allocation_bytes
    except DumpError:
        return None


def module_lines(directory: Path, paths: Sequence[Path], *, width: int) -> Iterator[str]:
    """A line per module, and the command that shows the largest."""
    rows = module_rows(paths)
    yield f"{directory}: {len(paths)} modules, largest first"
    for row in rows[:_MAX_LISTED]:
        size = "unreadable" if row.total_bytes is None else rounded(row.total_bytes)
        yield from wrapped(row.path.name, width, indent=16, first=f"  {size:>10}  ")
    if len(paths) > _MAX_LISTED:
        yield f"  and {len(paths) - _MAX_LISTED} more"
    yield f"Next: xlapipe show {shlex.quote(str(directory))} --module {_short_name(rows[0].path)}"


def _short_name(path: Path) -> str:
    """`jit_step` of `module_0007.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb`."""
    return path.name.partition(".")[2].partition(".")[0] or path.name
