"""A Dump: a directory with a manifest, the only data that passes from compiling to reading.

Large files are compressed with xz, since a program with many kernels repeats their code at
distances that gzip does not see. The manifest holds the SHA-256 of each file's content, so that a
damaged or edited dump is refused. Only `source_lines.json` may change where the plan does not.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.devices import targets
from xlapipe.devices.platforms import PLATFORMS, platform_named
from xlapipe.devices.platforms.dump_files import SOURCE_LINES
from xlapipe.dump.manifest import MANIFEST, Manifest, with_digests, with_lines
from xlapipe.dump.xla_files import XlaFiles
from xlapipe.errors import DumpError, PlanMismatchError, XlapipeError
from xlapipe.files.contents import (
    PACKED,
    Refusal,
    plain_name,
    read_json,
    read_packed,
    read_plain,
)
from xlapipe.files.visible_text import visible_line
from xlapipe.files.writing import is_partial, write_files, write_folder
from xlapipe.plans import MemorySpace, Plan

if TYPE_CHECKING:
    from xlapipe.expect import Expectation

# In front of its first section, plan.txt names what the plan was made with.
_FIRST_SECTION = "\n["
PLAN, HLO, EXECUTABLE = "plan.txt", "hlo.txt", "executable.pjrt"
TARGET_CONFIG = "target_config.txtpb"
# A folder for each digest, with the configuration that goldens of this repository share.
SHARED_CONFIGS = Path(targets.__file__).parent / "shared_configs"
# Texts that no figure is read from; their digests are checked only when they are shown.
_NOT_READ = {PLAN, HLO, SOURCE_LINES} | {
    file.name for platform in PLATFORMS for file in platform.dump_files if not file.read_into_plan
}
# Above these sizes XLA's files and the normal form of the module, whose diffs people read, are
# compressed; other files never are.
_COMPRESS_ABOVE_BYTES = {
    file.name: 64 * 1024 for platform in PLATFORMS for file in platform.dump_files
} | {HLO: 256 * 1024}
# Faster than gzip for kernels' code, and 20 times smaller. Preset 0 with the dictionary of 3,
# which takes 18 to 27 % longer, for files that are smaller by at most 5 %.
_XZ_SETTINGS = {"preset": 0, "dict_size": 4 << 20, "depth": 4, "nice_len": 273}
_LARGEST_MANIFEST_BYTES = 64 * 1024 * 1024
# Executables have the machine code of all kernels.
_LARGEST_FILE_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True, repr=False)
class Dump(XlaFiles):
    """A dump directory that was read and checked against its manifest."""

    facts: Manifest

    @property
    def manifest(self) -> Manifest:
        return self.facts

    @property
    def title(self) -> str:
        return f"{self.manifest.title} on {self.manifest.device}"

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.plan.notes, *self.manifest.notes)

    @property
    def autotuning(self) -> str:
        return self.manifest.autotuning

    @property
    def tuning_word(self) -> str:
        if self.manifest.tuned_or_none is None:
            return ""
        return self.autotuning.partition(" (")[0].partition(" on ")[0]

    @property
    def plan_sections(self) -> str | None:
        text = read_file(self.path, PLAN).decode(errors="replace")
        return text[text.find(_FIRST_SECTION) :]

    def text_of(self, name: str) -> str | None:
        names = (name, *(f"{name}{suffix}" for suffix in PACKED))
        kept = any(os.path.lexists(self.path / name) for name in names)
        if name not in self.manifest.files or not kept:
            return None  # not written yet, or a golden, which keeps one form of each module
        return read_checked_file(self.path, self.manifest, name).decode(errors="replace")

    @property
    def expectations(self) -> "tuple[Expectation, ...]":
        """The expectations recorded with the dump, except those of users' own classes."""
        from xlapipe.expect import expectation_from_json  # not needed to show a dump

        where = str(self.path / MANIFEST)
        return tuple(
            expectation_from_json(item, where=where)
            for item in self.manifest.expectations
            if item is not None
        )


def is_dump(path: Path) -> bool:
    """Whether `path` is a directory that xlapipe wrote."""
    return os.path.lexists(path / MANIFEST)


def open_dump(path: Path) -> Dump:
    """Reads a dump directory."""
    from xlapipe.dump.readers import read_path  # not needed to load an executable

    manifest = read_manifest(path)
    plan = manifest.in_plan(read_path(path))
    if SOURCE_LINES in manifest.files:
        from xlapipe.dump.readers.source_lines import read_source_lines

        lines = path / SOURCE_LINES
        manifest = with_lines(manifest, read_source_lines(lines), where=str(lines))
    check_memory_analysis(plan, manifest.memory_analysis, where=str(path))
    config = None
    if TARGET_CONFIG in manifest.files:
        config = read_checked_file(path, manifest, TARGET_CONFIG).decode(errors="replace")
    return Dump(
        plan,
        facts=manifest,
        target_config=config,
        path=path,
    )


def read_manifest(path: Path, *, check_files: bool = True) -> Manifest:
    """The manifest of a dump directory; the plan is not read."""
    where = path / MANIFEST
    if not os.path.lexists(where):
        raise DumpError(
            f"{where}: expected a file, found none; fix: name a directory that `xlapipe dump` or "
            "`xlapipe build` wrote, or make it again"
        )
    refusal = Refusal(DumpError, "make the dump again")
    data = read_json(
        where, limit_bytes=_LARGEST_MANIFEST_BYTES, refusal=refusal, follow_links=False
    )
    manifest = Manifest.from_json(data, where=str(where))
    if check_files:
        for name in manifest.files.keys() - _NOT_READ:
            read_checked_file(path, manifest, name)
    return manifest


def read_checked_file(path: Path, manifest: Manifest, name: str) -> bytes:
    """Content of a file of a dump directory, after comparing it with its digest in the manifest."""
    digest, folder = manifest.files[name], path
    if name == TARGET_CONFIG and digest.isalnum() and not os.path.lexists(path / name):
        shared = SHARED_CONFIGS / digest
        folder = shared if shared.is_dir() else path
    content = read_file(folder, name)
    if hashlib.sha256(content).hexdigest() != manifest.files[name]:
        raise DumpError(
            f"{path / name}: content differs from the SHA-256 in {MANIFEST}, so the file is "
            "damaged or was edited; fix: make the dump again"
        )
    return content


def check_memory_analysis(plan: Plan, analysis: Mapping[str, int], *, where: str) -> None:
    """Checks the plan's totals in device and host memory against memory_analysis().

    Arguments, outputs without aliased bytes, and temp, where it is a sum, are the total without
    constants and thread-locals.
    """
    if not analysis:
        return
    totals = plan.totals
    # XLA counts constants neither as arguments nor as temp, and thread-locals not at all.
    with_temp = platform_named(plan.platform).temp_is_a_sum
    uncounted = totals.constant_bytes + totals.thread_local_bytes
    uncounted += 0 if with_temp else totals.temp_bytes
    allocated = {
        "device": totals.total_allocation_bytes - uncounted,
        "host": plan.spaces[MemorySpace.HOST].total_allocation_bytes,
    }
    for memory, prefix in (("device", ""), ("host", "host_")):
        expected = (
            analysis.get(f"{prefix}argument_bytes", 0)
            + analysis.get(f"{prefix}output_bytes", 0)
            - analysis.get(f"{prefix}alias_bytes", 0)
        )
        if with_temp or memory == "host":
            expected += analysis.get(f"{prefix}temp_bytes", 0)
        if allocated[memory] != expected:
            raise PlanMismatchError(
                f"{where}: expected {memory} allocations without constants to total "
                f"{expected:,} B, as in memory_analysis(), found {allocated[memory]:,} B; "
                "fix: please report this dump"
            )


def read_file(folder: Path, name: str) -> bytes:
    """Content of a file of a dump, whether or not it is compressed."""
    if Path(name).name != name:
        raise DumpError(f"{folder / MANIFEST}: file name {name!r} is outside the dump's folder")
    refusal = Refusal(DumpError, "copy the whole folder, or make the dump again")
    for suffix in ("", *PACKED):
        file = folder / f"{name}{suffix}"
        if os.path.lexists(file):
            read = read_packed if suffix else read_plain
            return read(file, limit_bytes=_LARGEST_FILE_BYTES, refusal=refusal, follow_links=False)
    raise DumpError(
        f"{folder / name}: is in {MANIFEST}, but missing, compressed or not; "
        "fix: copy the whole folder, or make the dump again"
    )


def write_dump(
    path: Path,
    manifest: Manifest,
    files: Mapping[str, bytes],
    *,
    fix: str = "choose another folder with --out",
) -> None:
    """Writes a dump directory completely or not at all."""
    refuse_other_files(path)
    manifest = with_digests(manifest, files)
    contents = {**files, MANIFEST: manifest_bytes(manifest)}
    stored = (_as_stored(path, name, content) for name, content in contents.items())
    write_folder(path, dict(stored), fix=fix)


def refuse_other_files(path: Path) -> None:
    """Refuses to replace a link, a file, or a folder with anything that is not of a dump."""
    from xlapipe.dump.autotune_lock import LOCK  # not needed to load an executable
    from xlapipe.dump.run_record import RUN_RECORD
    from xlapipe.dump.time_record import TIME_RECORD

    if not os.path.lexists(path):
        return
    fix = "fix: move it away, or choose another folder with --out"
    if path.is_symlink() or not path.is_dir():
        kind = "a link" if path.is_symlink() else "a file"
        raise XlapipeError(f"{path}: expected the folder of a dump, found {kind}; {fix}")
    known = {file.name for platform in PLATFORMS for file in platform.dump_files}
    known |= {MANIFEST, PLAN, HLO, EXECUTABLE, TARGET_CONFIG, SOURCE_LINES}
    known |= {LOCK, RUN_RECORD, TIME_RECORD}
    with suppress(DumpError):  # a damaged one is replaced
        known |= read_manifest(path, check_files=False).files.keys() if is_dump(path) else set()
    for item in sorted(path.iterdir()):
        is_file = stat.S_ISREG(item.lstat().st_mode)
        if not (is_file and (plain_name(item.name) in known or is_partial(item.name))):
            raise XlapipeError(
                f"{path}: holds other files ({visible_line(item.name)}), which writing a dump "
                f"there would delete; {fix}"
            )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the manifest of a dump whose files stay, if it differs."""
    content = manifest_bytes(manifest)
    if read_file(path, MANIFEST) != content:
        write_files({path / MANIFEST: content})


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as it is in a dump."""
    text = json.dumps(manifest.to_json(), indent=1, sort_keys=True, ensure_ascii=False)
    return f"{text}\n".encode()


def write_source_lines(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes the source lines of a dump's files where those in the folder are others."""
    if SOURCE_LINES in files and read_file(path, SOURCE_LINES) != files[SOURCE_LINES]:
        write_files({path / SOURCE_LINES: files[SOURCE_LINES]})


def _as_stored(folder: Path, name: str, content: bytes) -> tuple[str, bytes]:
    """The name and the bytes on disk: those of `folder` if it has this content.

    Another build of liblzma packs the same content into other bytes.
    """
    for suffix in ("", *PACKED):
        file = folder / f"{name}{suffix}"
        with suppress(DumpError, OSError):
            if os.path.lexists(file) and read_file(folder, name) == content:
                return file.name, read_plain(file, follow_links=False)
    return _packed(name, content)


def _packed(name: str, content: bytes) -> tuple[str, bytes]:
    """The name and the bytes of a new file: large files are compressed."""
    if len(content) <= _COMPRESS_ABOVE_BYTES.get(name, len(content)):
        return name, content
    import lzma  # most dumps are read

    filters = [{"id": lzma.FILTER_LZMA2, **_XZ_SETTINGS}]
    return f"{name}.xz", lzma.compress(content, filters=filters)


def file_names(folder: Path) -> set[str]:
    """Names of the files in a dump's folder before they were packed."""
    return {plain_name(item.name) for item in folder.iterdir()}
