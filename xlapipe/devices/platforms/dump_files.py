"""The files of a dump: their names in XLA's output, by version, and their names in a Dump.

XLA names a file `module_0001.jit_step.` and then, for what it writes after optimisation,
`sm_9.0a_gpu_after_optimizations` with one of the suffixes below. This is the only list of the
names: capture, the reader and reports use it.

To add a file: add a row, and, if the reader needs it, a field of `DumpFiles` in
`xlapipe.dump.readers.files`.
"""

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """The part of a dump that a file contains."""

    BEFORE = "before"
    BEFORE_PROTO = "before_proto"
    HLO = "hlo"
    PROTO = "proto"
    ASSIGNMENT = "assignment"
    VALUES = "values"
    LIVE_RANGE = "live_range"
    THUNKS = "thunks"
    TARGET_CONFIG = "target_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFile:
    """One file that XLA writes for a module.

    Attributes:
      part: the part of the dump that it contains.
      name: its name in a Dump; None if a Dump does not keep it.
      endings: the ends of the name that XLA gives it, newest jaxlib first.
      required: False if some supported jaxlib does not write it.
      read_into_plan: True if the Plan is read from it, so that its digest is checked on every
        read; other texts are checked only when they are shown.
    """

    part: Part
    endings: tuple[str, ...]
    name: str | None
    required: bool = True
    read_into_plan: bool = True


# Suffixes after the stem `…after_optimizations`. Up to jaxlib 0.9 the buffer assignment contains
# the values and live ranges, so VALUES and LIVE_RANGE are absent from older dumps.
OPTIMIZED_SUFFIXES = {
    Part.PROTO: ".hlo.pb",
    Part.HLO: ".txt",
    Part.ASSIGNMENT: "-buffer-assignment.txt",
    Part.VALUES: "-buffer-assignment-values.txt",
    Part.LIVE_RANGE: "-live-range.txt",
}
# XLA prints the thunk sequence before and, from jaxlib 0.9 on, after its thunk passes.
THUNKS_AFTER_PASSES = ".thunk_sequence_after_thunk_passes.txt"
THUNKS_BEFORE_PASSES = ".thunk_sequence.txt"
# The stem of the names in a Dump.
DUMP_STEM = "after_optimizations"
MODULE = f"{DUMP_STEM}.hlo.pb"
# Written by xlapipe: where the instructions are in the traced program.
SOURCE_LINES = "source_lines.json"
# Headings of the texts that a report shows, in the order of the compiler's stages.
STAGE_TITLES = {
    "before_optimizations.txt": "HLO before optimizations",
    "after_optimizations.txt": "HLO after optimizations",
    "hlo.txt": "HLO after optimizations, in normal form",
    "thunk_sequence.txt": "thunk sequence",
    "buffer-assignment.txt": "buffer assignment",
}


def optimized_file(part: Part, stem: str) -> DumpFile:
    """A file that XLA writes after optimisation.

    Args:
      part: the part of the dump that it contains.
      stem: the end of XLA's stem on this platform, `gpu_after_optimizations` for NVIDIA.
    """
    suffix = OPTIMIZED_SUFFIXES[part]
    name = suffix.removeprefix("-") if suffix.startswith("-") else f"{DUMP_STEM}{suffix}"
    return DumpFile(
        part=part,
        endings=(f"{stem}{suffix}",),
        name=name,
        read_into_plan=part is not Part.HLO,
    )


def stage_files(stem: str, *others: DumpFile) -> tuple[DumpFile, ...]:
    """The files of a platform in the order of the compiler's stages.

    Args:
      stem: as in `optimized_file`.
      others: files that only this platform has.
    """
    before = ".before_optimizations"
    return (
        DumpFile(
            part=Part.BEFORE,
            endings=(f"{before}.txt",),
            name="before_optimizations.txt",
            read_into_plan=False,
        ),
        DumpFile(part=Part.BEFORE_PROTO, endings=(f"{before}.hlo.pb",), name=None),
        optimized_file(Part.HLO, stem),
        optimized_file(Part.PROTO, stem),
        optimized_file(Part.ASSIGNMENT, stem),
        optimized_file(Part.VALUES, stem),
        optimized_file(Part.LIVE_RANGE, stem),
        *others,
    )
