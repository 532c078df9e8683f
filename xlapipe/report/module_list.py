"""The modules of a folder that XLA dumped to: the largest first, or one by name."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.files import modules_in
from xlapipe.errors import DumpError
from xlapipe.report.units import rounded
from xlapipe.report.wrapped_text import wrapped

# A training run dumps hundreds, most of them tiny; only the largest files are read.
_MAX_READ = 100
_MAX_LISTED = 30


def module_named(directory: Path, name: str) -> Path:
    """The module of a directory whose file's name contains `name`; the largest of several."""
    paths = modules_in(directory)
    matching = [path for path in paths if name in path.name]
    if not matching:
        names = sorted({_short_name(path) for path in paths})
        raise DumpError(
            f"{directory}: expected a module whose name contains {name!r}, found "
            f"{len(paths)} others; fix: name one of: {', '.join(names):.400}"
        )
    return next(iter(_largest_first(matching)))


def _largest_first(paths: Sequence[Path]) -> dict[Path, int | None]:
    """The modules with their device memory, the most first; None if one cannot be read."""
    largest = sorted(paths, key=lambda path: -path.stat().st_size)[:_MAX_READ]
    sizes = {path: _total_bytes(path) for path in largest}
    return dict(sorted(sizes.items(), key=lambda item: (-(item[1] or 0), item[0].name)))


def _total_bytes(path: Path) -> int | None:
    try:
        return read_path(path).totals.total_allocation_bytes
    except DumpError:
        return None


def module_lines(directory: Path, paths: Sequence[Path], *, width: int) -> Iterator[str]:
    """A line per module, and the command that shows the largest."""
    sizes = _largest_first(paths)
    yield f"{directory}: {len(paths)} modules, largest first"
    for path, total_bytes in islice(sizes.items(), _MAX_LISTED):
        size = "unreadable" if total_bytes is None else rounded(total_bytes)
        yield from wrapped(path.name, width, indent=16, first=f"  {size:>10}  ")
    if len(paths) > _MAX_LISTED:
        yield f"  and {len(paths) - _MAX_LISTED} more"
    largest = _short_name(next(iter(sizes)))
    yield f"Next: xlapipe show {shlex.quote(str(directory))} --module {shlex.quote(largest)}"


def _short_name(path: Path) -> str:
    """`jit_step` of `module_0007.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb`."""
    return path.name.partition(".")[2].partition(".")[0] or path.name
