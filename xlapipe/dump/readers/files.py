"""Find the files of a folder that belong to one module.

The names are in `xlapipe.devices.platforms.dump_files`: those that XLA writes, such as
`module_0001.jit_f.sm_9.0a_gpu_after_optimizations-live-range.txt`, and those in a Dump, such as
`live-range.txt`. Any of them may end in `.gz` or `.xz`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xlapipe.devices.platforms.dump_files import DUMP_STEM, OPTIMIZED_SUFFIXES, SOURCE_LINES, Part
from xlapipe.dump.readers.source_text import GIVE_DUMP
from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal, files_in, plain_name

# In a Dump, the names of buffer files are suffixes without a stem and its hyphen.
_OPTIMIZED = {
    part: re.compile(
        rf"(?P<stem>.*?)-?{re.escape(suffix[1:])}"
        if suffix.startswith("-")
        else rf"(?P<stem>.*{DUMP_STEM}){re.escape(suffix)}"
    )
    for part, suffix in OPTIMIZED_SUFFIXES.items()
}
# Other jaxlibs put more between the name and `.txt`.
_THUNKS = re.compile(r"(?P<stem>.*?)[.-]?thunk_sequence(?P<after>_after_thunk_passes)?[^/]*\.txt")
_TARGET_CONFIG = re.compile(r"(?P<stem>.*?)\.?(gpu_)?target_config\.(txtpb|pbtxt)")
_BEFORE = re.compile(r".*before_optimizations\.(txt|hlo\.pb)")
# Modules that an error message lists.
_LISTED_MODULES = 20
_MODULE_ID = re.compile(r"module_\d+")


@dataclass
class DumpFiles:
    """The files of one module; None for a part that is not in the folder.

    Attributes:
      stem: the beginning that their names share.
    """

    stem: str
    proto: Path | None = None
    hlo: Path | None = None
    assignment: Path | None = None
    values: Path | None = None
    live_range: Path | None = None
    thunks: Path | None = None
    source_lines: Path | None = None
    target_config: Path | None = None


def files_at(path: Path) -> DumpFiles:
    """The files of the module at `path`, a directory or one of the files."""
    return in_directory(path) if path.is_dir() else beside(path)


def in_directory(directory: Path) -> DumpFiles:
    """The files of the one optimised module in a directory."""
    names = _names(directory)
    modules = [
        files
        for files in _modules(names).values()
        if files.proto is not None or files.assignment is not None
    ]
    if len(modules) == 1:
        _add_files_of_all(modules[0], names)
        return modules[0]
    if not modules and (dumps := _dumps_below(directory)):
        raise DumpError(
            f"{directory}: expected one dump, found a folder of {len(dumps)}; "
            f"fix: name one of:{_listed(dumps)}"
        )
    if not modules:
        raise DumpError(
            f"{directory}: expected an optimised module (*after_optimizations.hlo.pb or "
            "*buffer-assignment.txt), found neither; fix: give the directory that XLA dumped to, "
            "and switch the persistent compilation cache off, since a cached compile dumps nothing"
        )
    raise DumpError(
        f"{directory}: expected one optimised module, found {len(modules)} (`xlapipe show` lists "
        "the largest first); fix: name one of:"
        f"{_listed([files.proto or files.assignment for files in modules])}"
    )


def modules_in(directory: Path) -> tuple[Path, ...]:
    """The files that name each optimised module of a directory; empty for any other path."""
    if not directory.is_dir():
        return ()
    paths = (files.proto or files.assignment for files in _modules(_names(directory)).values())
    return tuple(path for path in paths if path is not None)


def _dumps_below(directory: Path) -> list[Path]:
    """Dumps of xlapipe in a folder of dumps, in that of a workload, or in a project."""
    for pattern in ("*", "*/*", "hlo_dumps/*/*"):
        if manifests := sorted(directory.glob(f"{pattern}/manifest.json")):
            return [manifest.parent for manifest in manifests]
    return []


def _listed(paths: Sequence[Path | None]) -> str:
    """One path per line; the number of those after the first ones."""
    lines = [str(path) for path in paths[:_LISTED_MODULES]]
    if len(paths) > _LISTED_MODULES:
        lines.append(f"and {len(paths) - _LISTED_MODULES} more")
    return "".join(f"\n  {line}" for line in lines)


def beside(path: Path) -> DumpFiles:
    """The files of the module of a proto or a buffer assignment; `path` alone for another name."""
    name = plain_name(path.name)
    part, stem = _part_of(name) or (None, "")
    if name.endswith(".pb"):
        files = _module_beside(path, stem) if part is not None else DumpFiles(name)
        files.proto = path
        return files
    if part is not Part.ASSIGNMENT:
        return DumpFiles(name, assignment=path)
    files = _module_beside(path, stem)
    files.assignment, files.proto = path, None
    return files


def _part_of(name: str) -> tuple[Part, str] | None:
    """The part in a file of this name, and the stem of its module; None for other names."""
    for part, pattern in _OPTIMIZED.items():
        match = pattern.fullmatch(name)
        if match is not None:
            return part, match["stem"] or DUMP_STEM
    return None


def _module_beside(path: Path, stem: str) -> DumpFiles:
    others = None
    if (match := _MODULE_ID.match(stem)) is not None:  # of which there may be thousands
        others = re.compile(rf"module_(?!{match[0].removeprefix('module_')}\b)")
    names = _names(path.parent, leave_out=others)
    files = _modules(names).get(stem) or DumpFiles(stem)
    _add_files_of_all(files, names)
    return files


def _names(directory: Path, *, leave_out: re.Pattern[str] | None = None) -> dict[str, Path]:
    """Files by name without `.gz` or `.xz`; an uncompressed file is preferred."""
    names: dict[str, Path] = {}
    refusal = Refusal(DumpError, GIVE_DUMP)
    for path in files_in(directory, _is_of_a_dump, refusal, leave_out=leave_out):
        names.setdefault(plain_name(path.name), path)
    return names


def _is_of_a_dump(name: str) -> bool:
    name = plain_name(name)
    patterns = (_THUNKS, _TARGET_CONFIG, _BEFORE)
    return _part_of(name) is not None or any(pattern.fullmatch(name) for pattern in patterns)


def _modules(names: Mapping[str, Path]) -> dict[str, DumpFiles]:
    """The files of every module except thunks and source lines, by stem."""
    modules: dict[str, DumpFiles] = {}
    for name, path in names.items():
        part_and_stem = _part_of(name)
        if part_and_stem is not None:
            part, stem = part_and_stem
            setattr(modules.setdefault(stem, DumpFiles(stem)), part.value, path)
    return modules


def _add_files_of_all(files: DumpFiles, names: Mapping[str, Path]) -> None:
    """Adds what the stem alone does not find."""
    files.thunks = _thunks_of(files.stem, names)
    files.target_config = next(
        (
            path
            for name, path in names.items()
            if (match := _TARGET_CONFIG.fullmatch(name)) and files.stem.startswith(match["stem"])
        ),
        None,
    )
    if files.stem == DUMP_STEM:
        files.source_lines = names.get(SOURCE_LINES)


def _thunks_of(stem: str, names: Mapping[str, Path]) -> Path | None:
    """The thunk sequence of a module; the one after the thunk passes if there are both."""
    best: tuple[int, bool, Path] | None = None
    for name, path in names.items():
        match = _THUNKS.fullmatch(name)
        if match is None or not stem.startswith(match["stem"]):
            continue
        if not match["stem"] and stem != DUMP_STEM and _MODULE_ID.match(stem):
            continue
        rank = (len(match["stem"]), match["after"] is not None)
        if best is None or rank > best[:2]:
            best = (*rank, path)
    return best[2] if best else None
