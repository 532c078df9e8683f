"""A folder that XProf's memory viewer opens: `xprof --logdir DIR`.

XProf lists a folder below `plugins/profile` as a run, and in it each `*.hlo_proto.pb` as a module.
It offers its memory viewer only where the run's `*.xplane.pb`, the trace, has the module too, in a
plane of metadata; here that is all the trace holds. The messages are tsl's `xplane.proto`: some
strings and numbers, for which a generated module would be longer than writing them.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from xlapipe.report.subject import Subject

HOST = "xlapipe"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


def xprof_files(subjects: Sequence[Subject]) -> dict[PurePosixPath, bytes]:
    """Contents by path below the log folder; a run for each subject.

    Raises:
      DumpError: a dump without HloProto.
    """
    files: dict[PurePosixPath, bytes] = {}
    for subject in subjects:
        run = PurePosixPath("plugins/profile") / _unused(run_name(subject), files)
        name, proto = module_name(subject), subject.opened.proto()
        files[run / f"{name}.hlo_proto.pb"] = proto
        files[run / f"{HOST}.xplane.pb"] = xspace(name, proto)
    return files


def run_name(subject: Subject) -> str:
    """Workload and folder of an own dump; else the file's name."""
    path = subject.opened.path.absolute()
    if subject.opened.dump is not None:
        return _name(f"{subject.opened.dump.manifest.workload}-{path.name}")
    return _name(path.name)


def module_name(subject: Subject) -> str:
    """The HLO module's, as XProf lists it."""
    module = subject.plan.module
    return _name(module.name) if module is not None else "module"


def xspace(name: str, proto: bytes) -> bytes:
    """A serialised XSpace without events, whose metadata plane holds one HLO module."""
    stat = _number(1, 1) + _field(6, proto)  # XStat: metadata_id, bytes_value
    event = _number(1, 1) + _field(2, name.encode()) + _field(5, stat)  # XEventMetadata
    stat_metadata = _number(1, 1) + _field(2, b"Hlo Proto")  # XStatMetadata: id, name
    plane = (
        _field(2, b"/host:metadata")
        + _field(4, _number(1, 1) + _field(2, event))  # map entries: key, value
        + _field(5, _number(1, 1) + _field(2, stat_metadata))
    )
    return _field(1, plane)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("_", text).strip("_") or "module"


def _unused(name: str, files: dict[PurePosixPath, bytes]) -> str:
    taken = {path.parent.name for path in files}
    number = 2
    unused = name
    while unused in taken:
        unused, number = f"{name}-{number}", number + 1
    return unused
