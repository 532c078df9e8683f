"""A log folder for XProf's memory viewer: `xprof --logdir DIR`.

XProf lists a folder below `plugins/profile` as a run, and each `*.hlo_proto.pb` in it as a module.
It offers its memory viewer only if the run's trace, `*.xplane.pb`, also contains the module in a
plane of metadata; that plane is the whole trace here. The messages are those of tsl's
`xplane.proto`; encoding these few fields is shorter than a generated module.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from xlapipe.dump.opened import Opened

HOST = "xlapipe"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


def xprof_files(dumps: Sequence[Opened]) -> dict[PurePosixPath, bytes]:
    """The files of the log folder, by path; one run per dump.

    Raises:
      DumpError: a dump without HloProto.
    """
    files: dict[PurePosixPath, bytes] = {}
    for dump in dumps:
        run = PurePosixPath("plugins/profile") / _unused(run_name(dump), files)
        name, proto = module_name(dump), dump.proto()
        files[run / f"{name}.hlo_proto.pb"] = proto
        files[run / f"{HOST}.xplane.pb"] = xspace(name, proto)
    return files


def run_name(dump: Opened) -> str:
    """Workload and folder of a dump of xlapipe, otherwise the name of the file."""
    path = dump.path.absolute()
    if dump.dump is not None:
        return _name(f"{dump.dump.manifest.workload}-{path.name}")
    return _name(path.name)


def module_name(dump: Opened) -> str:
    """The name of the HLO module, as XProf lists it."""
    module = dump.plan.module
    return _name(module.name) if module is not None else "module"


def xspace(name: str, proto: bytes) -> bytes:
    """A serialised XSpace without events, with one HLO module in its metadata plane."""
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
