"""Reading a path: a proto, a text, or the directory of a dump."""

from dataclasses import replace
from pathlib import Path

from xlapipe.plan import Plan
from xlapipe.plan.verify import verify
from xlapipe.read.file_contents import read_bytes, read_source
from xlapipe.read.files import DumpFiles, beside, in_directory
from xlapipe.read.source_text import SourceText
from xlapipe.read.text_reader import DumpTexts, live_ranges_of, read_text, total_of
from xlapipe.read.thunk_text import parse_thunks


def read_path(path: Path) -> Plan:
    """The plan in a dump.

    Args:
      path: an `.hlo.pb`, a `*buffer-assignment.txt` (either may be gzip), or a directory with one
        optimised module, of which the proto is read where there is one. Total, live ranges and
        thunks come from the texts that lie beside either.

    Raises:
      DumpError: for what is missing, damaged, ambiguous or of an unknown form.
      PlanMismatchError: for a plan that breaks an invariant, or XLA's total.
    """
    files = in_directory(path) if path.is_dir() else beside(path)
    if files.proto is not None:
        return _read_proto_files(files, files.proto)
    assert files.assignment is not None  # in_directory and beside find one of the two
    return read_text(
        DumpTexts(
            assignment=read_source(files.assignment),
            values=_optional(files.values),
            live_range=_optional(files.live_range),
            hlo=_optional(files.hlo),
            thunks=_optional(files.thunks),
        )
    )


def _read_proto_files(files: DumpFiles, path: Path) -> Plan:
    from xlapipe.read.proto_reader import parse_proto  # as in xlapipe.read: not for a text

    plan = parse_proto(read_bytes(path), where=str(path))
    assignment, thunks = _optional(files.assignment), _optional(files.thunks)
    plan = replace(
        plan,
        total_bytes_used=total_of(assignment, _optional(files.values)),
        live_ranges=live_ranges_of(plan.allocations, _optional(files.live_range), assignment),
        thunks=parse_thunks(thunks) if thunks else None,
    )
    verify(plan, where=str(path))
    return plan


def _optional(path: Path | None) -> SourceText | None:
    return None if path is None else read_source(path)
