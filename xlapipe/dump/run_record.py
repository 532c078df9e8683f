"""The record of a run on a device: device, driver, versions, command, date, and files' digests."""

import hashlib
import json
import os
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
# An option's whole value, a string literal of a workload's argument, or a path among other text.
_ABSOLUTE_PATH = re.compile(
    r"""(?x)
    (?P<before> ^(?:--[\w-]+=)? ) (?P<whole> /.* )$
    | (?<=["']) (?P<quoted> /[^"']* ) (?=["'])
    | (?<=[\s=:,(\[{]) (?P<part> /[^\s=:,)\]}"']* )
    """
)


def run_record(
    *, device: str, versions: Mapping[str, str], command: Sequence[str]
) -> dict[str, Any]:
    """The provenance of a file that was written on a device of this machine.

    Its driver is None if it is unknown.

    Args:
      device: the GPU's name.
    """
    gpu = Machine.local().gpu()
    return {
        "device": device,
        "driver": gpu.driver_version if gpu is not None else None,
        "versions": dict(versions),
        "command": portable_command(command, Path.cwd()),
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


def portable_command(command: Sequence[str], folder: Path) -> str:
    """The command as one shell line without absolute paths, the same on every machine.

    The program's folder is left out. A path in the checkout that holds `folder` becomes relative to
    `folder`; any other absolute path becomes `<elsewhere>/name`.

    >>> portable_command(["/usr/bin/xlapipe", "dump", "--out", "/tmp/hlo"], Path("/home/me/steps"))
    "xlapipe dump --out '<elsewhere>/hlo'"
    """
    checkout = next(
        (path for path in (folder, *folder.parents) if (path / ".git").exists()), folder
    )

    def portable(match: re.Match[str]) -> str:
        path = match["whole"] or match["quoted"] or match["part"]
        return (match["before"] or "") + _portable_path(path, folder, checkout)

    program, *arguments = command
    words = [Path(program).name, *(_ABSOLUTE_PATH.sub(portable, text) for text in arguments)]
    return shlex.join(words)


def _portable_path(path: str, folder: Path, checkout: Path) -> str:
    for spelling in (os.path.normpath(path), os.path.realpath(path)):
        if Path(spelling).is_relative_to(checkout):
            return os.path.relpath(spelling, folder)
    return f"<elsewhere>/{Path(path).name}"
