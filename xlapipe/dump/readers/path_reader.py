"""Read the plan at a path: a proto, a text, or the directory of a dump."""

from dataclasses import replace
from pathlib import Path

from xlapipe.dump.readers.file_contents import read_bytes, read_source
from xlapipe.dump.readers.files import DumpFiles, files_at
from xlapipe.dump.readers.source_lines import SourceLines, read_source_lines
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.dump.readers.text_reader import (
    DumpTexts,
    read_text,
    total_of,
    with_optional_parts,
)
from xlapipe.plans import Plan


def read_path(path: Path) -> Plan:
    """The plan in a dump.

    Args:
      path: an `.hlo.pb`, a `*buffer-assignment.txt` (either may be gzip), or a directory with one
        optimised module, of which the proto is read if there is one. XLA's total, live ranges and
        thunks are read from the texts in the same folder.

    Raises:
      DumpError: a file is missing, damaged, ambiguous or in an unknown form.
      PlanMismatchError: the plan breaks an invariant or disagrees with XLA's total.
    """
    files = files_at(path)
    lines = None if files.source_lines is None else read_source_lines(files.source_lines)
    if files.proto is not None:
        return _read_proto_files(files, files.proto, lines)
    assert files.assignment is not None  # files_at finds one of the two
    return read_text(
        DumpTexts(
            assignment=read_source(files.assignment),
            values=_source_or_none(files.values),
            live_range=_source_or_none(files.live_range),
            hlo=_source_or_none(files.hlo),
            thunks=_source_or_none(files.thunks),
            lines=lines,
        )
    )


def _read_proto_files(files: DumpFiles, path: Path, lines: SourceLines | None) -> Plan:
    from xlapipe.dump.readers.proto_reader import (
        parse_proto,  # imported late, as in xlapipe.dump.readers
    )

    plan = parse_proto(read_bytes(path), where=str(path), lines=lines)
    assignment, thunks = _source_or_none(files.assignment), _source_or_none(files.thunks)
    total = total_of(assignment, _source_or_none(files.values))
    return with_optional_parts(
        replace(plan, total_bytes_used=total),
        _source_or_none(files.live_range),
        assignment,
        thunks,
        str(path),
    )


def _source_or_none(path: Path | None) -> SourceText | None:
    return None if path is None else read_source(path)
