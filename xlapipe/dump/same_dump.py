"""Whether a folder holds the dump that a compile made: its plan, and all that its files state.

A golden stays as it is where only digits that a CPU computed differ, or numbers of names.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.platforms.dump_files import MODULE, SOURCE_LINES, Part
from xlapipe.dump.dump import (
    HLO,
    PLAN,
    TARGET_CONFIG,
    file_names,
    read_checked_file,
    read_file,
    read_manifest,
    write_source_lines,
)
from xlapipe.dump.manifest import MANIFEST, Manifest
from xlapipe.dump.normal_form.constant_values import split_constants
from xlapipe.dump.normal_form.plan import NormalForm, compare, read_normal_form
from xlapipe.dump.readers.source_lines import SourceLines
from xlapipe.errors import DumpError

# Which goldens may lack: one text of a module that is there in two other forms, and what is shared.
_MAY_BE_ABSENT = {"after_optimizations.txt", TARGET_CONFIG}
_OP_NAME = re.compile(rb'op_name="((?:[^"\\]|\\.)*)"')


def notes_if_same(
    folder: Path, manifest: Manifest, files: Mapping[str, bytes], normal: NormalForm
) -> tuple[str, ...] | None:
    """What differs from the dump in `folder` without being a change; None if it is another dump."""
    try:
        golden = read_manifest(folder, check_files=False)
        if golden.call is None:  # from before it was recorded
            manifest = replace(manifest, call=None)
        elif manifest.call is not None and not golden.call.gradients:  # the same
            manifest = replace(manifest, call=replace(manifest.call, gradients=()))
        names, present = {*files, MANIFEST}, file_names(folder)
        absent = names - present
        if _stated(golden) != _stated(manifest) or not present <= names or absent - _MAY_BE_ABSENT:
            return None
        kept = {
            name: read_checked_file(folder, golden, name) if digest else b""
            for name, digest in golden.files.items()
            if name not in absent or name == TARGET_CONFIG
        }
        # The normal form and the names of operations represent the others.
        xla = platform_named(manifest.platform).dump_files
        covered = {file.name for file in xla if file.part is not Part.TARGET_CONFIG}
        covered |= {PLAN, HLO, SOURCE_LINES}
        if any(kept[name] != files[name] for name in kept.keys() - covered):
            return None
        texts = [name for name in _texts(manifest) if name in kept]
        if any(_op_names(kept[name]) != _op_names(files[name]) for name in texts):
            return None
        comparison = compare(read_normal_form(folder), normal)
    except DumpError:
        return None
    return comparison.notes if comparison.stage is None else None


def write_lines(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes where the instructions are now, if they have the names of those in `folder`."""
    manifest = read_manifest(folder, check_files=False)
    if SOURCE_LINES not in manifest.files:
        return
    for name in (name for name in _texts(manifest) if name in file_names(folder)):
        if _without_constants(read_file(folder, name)) != _without_constants(files[name]):
            return
    lines = SourceLines.from_bytes(files[SOURCE_LINES], where=str(folder))
    lines = replace(lines, module_sha256=manifest.files[MODULE])
    write_source_lines(folder, {SOURCE_LINES: lines.to_bytes()})


def _stated(manifest: Manifest) -> dict[str, object]:
    return {**manifest.to_json(), "files": sorted(manifest.files)}


def _texts(manifest: Manifest) -> list[str]:
    platform = platform_named(manifest.platform)
    names = (platform.dump_file(part).name for part in (Part.BEFORE, Part.HLO))
    return [name for name in names if name is not None]


def _op_names(text: bytes) -> Counter[bytes]:
    """The scopes of the program's instructions, which the normal form leaves out."""
    return Counter(_OP_NAME.findall(text))


def _without_constants(text: bytes) -> str:
    """A module's text without values of constants, and without XLA's digest of them in its head."""
    return split_constants(text.decode(errors="replace").partition("\n")[2])[0]
