"""What XLA's tuner measured: the log that it writes with `--xla_gpu_dump_autotune_logs_to`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xlapipe.devices.platforms.textproto import parse


@dataclass(frozen=True)
class Candidate:
    """One way to run an instruction; `backend` as XLA names it."""

    backend: str
    seconds: float
    scratch_bytes: int


def read_logs(text: str) -> dict[str, tuple[Candidate, ...]]:
    """The candidates that ran, by the fingerprint that the lock has of their instruction."""
    return {
        str(parse(profile).get("hlo_fingerprint")): tuple(_candidates(profile))
        for profile in _messages(text, "instruction_profiles", "")
    }


def _candidates(profile: str) -> Iterator[Candidate]:
    for text in _messages(profile, "config_profiles", "  "):
        fields: Any = parse(text)
        time = fields.get("run_time", {})
        seconds = time.get("nanos", 0) * 1e-9 + float(time.get("seconds", 0))
        if "failure" not in fields and seconds > 0:
            backend = str(fields["config"]["backend"])
            yield Candidate(backend, round(seconds, 9), int(fields.get("scratch_bytes", 0)))


def _messages(text: str, name: str, indent: str) -> Iterator[str]:
    """The contents of a repeated message, as XLA prints them, with one field in each line."""
    pattern = rf"^{indent}{name} \{{\n(.*?)^{indent}\}}$"
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        yield match[1]
