"""Which files of a dump belong together.

XLA names them `module_0001.jit_f.sm_9.0a_gpu_after_optimizations` and then `.hlo.pb`, `.txt`,
`-buffer-assignment.txt`, `-buffer-assignment-values.txt` and `-live-range.txt`; thunks are in
`module_0001.jit_f.thunk_sequence….txt`. A dump directory of xlapipe has `after_optimizations.*`,
`buffer-assignment.txt`, `live-range.txt` and so on. Any of them may end in `.gz`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xlapipe.errors import DumpError

_BUFFERS = re.compile(
    r"(?P<stem>.*?)-?(?P<part>buffer-assignment-values|buffer-assignment|live-range)\.txt"
)
_MODULE = re.compile(r"(?P<stem>.*after_optimizations)\.(?P<part>hlo\.pb|txt)")
_THUNKS = re.compile(r"(?P<stem>.*?)thunk_sequence(?P<after>_after_thunk_passes)?[^/]*\.txt")
# The stem of xlapipe's own names.
_OWN = "after_optimizations"
# Modules that a message lists.
_LISTED = 20
_MODULE_ID = re.compile(r"module_\d+")


@dataclass
class DumpFiles:
    """The files of one module; None where there is none.

    Attributes:
      stem: what their names have in common.
    """

    stem: str
    proto: Path | None = None
    hlo: Path | None = None
    assignment: Path | None = None
    values: Path | None = None
    live_range: Path | None = None
    thunks: Path | None = None


def in_directory(directory: Path) -> DumpFiles:
    """The files of the one optimised module in a directory.

    Raises:
      DumpError: if it holds none, or several.
    """
    names = _names(directory)
    modules = [
        files
        for files in _modules(names).values()
        if files.proto is not None or files.assignment is not None
    ]
    if len(modules) == 1:
        modules[0].thunks = _thunks_of(modules[0].stem, names)
        return modules[0]
    if not modules:
        raise DumpError(
            f"{directory}: expected an optimised module, that is *after_optimizations.hlo.pb or "
            "*buffer-assignment.txt, found neither; XLA dumps nothing where a compile comes out "
            "of the persistent cache: switch that off, or give the right directory"
        )
    listed = "".join(f"\n  {files.proto or files.assignment}" for files in modules[:_LISTED])
    if len(modules) > _LISTED:
        listed += f"\n  and {len(modules) - _LISTED} more"
    raise DumpError(
        f"{directory}: expected one optimised module, found {len(modules)}; name one of:{listed}"
    )


def beside(path: Path) -> DumpFiles:
    """The files of the module to which `path` belongs; `path` alone where its name tells nothing.

    `proto` is set only if `path` is the proto, or the texts that it belongs to have no buffer
    assignment.

    Raises:
      DumpError: if the file is part of a dump whose buffer assignment is missing.
    """
    name = _plain(path.name)
    if name.endswith(".pb"):
        wanted = _MODULE.fullmatch(name)
        files = _module_beside(path, wanted["stem"]) if wanted else DumpFiles(name)
        files.proto = path
        return files
    match = _BUFFERS.fullmatch(name) or _MODULE.fullmatch(name)
    if match is None:
        return DumpFiles(name, assignment=path)
    files = _module_beside(path, match["stem"] or _OWN)
    if match["part"] == "buffer-assignment":
        files.assignment = path
    if files.assignment is not None:
        files.proto = None
    elif files.proto is None:
        raise DumpError(
            f"{path}: expected {match['stem']}-buffer-assignment.txt or .hlo.pb beside this "
            "file, found neither; copy the whole dump directory"
        )
    return files


def _module_beside(path: Path, stem: str) -> DumpFiles:
    names = _names(path.parent)
    files = _modules(names).get(stem) or DumpFiles(stem)
    files.thunks = _thunks_of(stem, names)
    return files


def _names(directory: Path) -> dict[str, Path]:
    """Files by name without `.gz`; a file that is not packed comes first."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.is_file())
    except OSError as error:
        raise DumpError(f"{directory}: expected a readable directory, found: {error}") from None
    names: dict[str, Path] = {}
    for path in paths:
        names.setdefault(_plain(path.name), path)
    return names


def _plain(name: str) -> str:
    return name.removesuffix(".gz")


def _modules(names: Mapping[str, Path]) -> dict[str, DumpFiles]:
    """The files of every module but its thunks, by stem."""
    modules: dict[str, DumpFiles] = {}
    for name, path in names.items():
        match = _BUFFERS.fullmatch(name) or _MODULE.fullmatch(name)
        if match is None:
            continue
        stem = match["stem"] or _OWN
        files = modules.setdefault(stem, DumpFiles(stem))
        match match["part"]:
            case "hlo.pb":
                files.proto = path
            case "txt":
                files.hlo = path
            case "buffer-assignment":
                files.assignment = path
            case "buffer-assignment-values":
                files.values = path
            case "live-range":
                files.live_range = path
    return modules


def _thunks_of(stem: str, names: Mapping[str, Path]) -> Path | None:
    """The thunk sequence of a module, after the thunk passes where there are both."""
    found: tuple[int, bool, Path] | None = None
    for name, path in names.items():
        match = _THUNKS.fullmatch(name)
        if match is None:
            continue
        of = match["stem"]
        if of != stem + "-" and not stem.startswith(of):
            continue
        if not of and stem != _OWN and _MODULE_ID.match(stem):
            continue
        rank = (len(of), match["after"] is not None, path)
        if found is None or rank[:2] > found[:2]:
            found = rank
    return found[2] if found else None
