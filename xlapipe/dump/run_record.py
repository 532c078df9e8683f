"""The record of a run on a device: device, driver, versions, command, date, and files' digests."""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.platforms.dump_files import SOURCE_LINES
from xlapipe.files.contents import read_plain
from xlapipe.files.writing import write_files

RUN_RECORD = "run_record.json"
# The folders of an absolute path.
_FOLDERS = re.compile(r"""(?<![\w.])/(?:[^\s/=:,)\]}"']+/)*""")


def run_record(
    *, device: str, versions: Mapping[str, str], command: Sequence[str]
) -> dict[str, Any]:
    """The provenance of a file that was written on a device of this machine.

    Its driver is None if it is unknown.
    """
    gpu = Machine.local().gpu()
    return {
        "device": device,
        "driver": gpu.driver_version if gpu is not None else None,
        "versions": dict(versions),
        "command": portable_command(command),
        "date": datetime.now(UTC).date().isoformat(),
    }


def write_run_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes the record into a golden's folder, with the digest of every other file there.

    Source lines are left out, since they may change where the plan does not.
    """
    digests = {
        path.name: hashlib.sha256(read_plain(path, follow_links=False)).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name not in (RUN_RECORD, SOURCE_LINES)
    }
    text = json.dumps({**record, "sha256": digests}, indent=1, sort_keys=True) + "\n"
    write_files({folder / RUN_RECORD: text.encode()})


def portable_command(command: Sequence[str]) -> str:
    """The command as one shell line without absolute paths, the same on every machine.

    >>> portable_command(["/usr/bin/xlapipe", "dump", "--out", "/tmp/hlo"])
    "xlapipe dump --out '<elsewhere>/hlo'"
    """
    program, *arguments = command
    words = [Path(program).name, *(_FOLDERS.sub("<elsewhere>/", text) for text in arguments)]
    return shlex.join(words)
