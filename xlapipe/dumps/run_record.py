"""The record of a run on a device: device, versions, command, date, and the files' digests."""

import hashlib
import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xlapipe.dumps.atomic_write import write_files

RUN_RECORD = "run_record.json"


def run_record(
    *, device: str, driver: str | None, versions: Mapping[str, str], command: list[str]
) -> dict[str, Any]:
    """Provenance of a file that was written on a device."""
    return {
        "device": device,
        "driver": driver,
        "versions": dict(versions),
        "command": shlex.join(command),
        "date": datetime.now(UTC).date().isoformat(),
    }


def write_run_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes the record into a golden's folder, with the digest of every file there."""
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != RUN_RECORD
    }
    text = json.dumps({**record, "sha256": digests}, indent=1, sort_keys=True) + "\n"
    write_files({folder / RUN_RECORD: text.encode()})
