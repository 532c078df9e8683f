"""`tuning_times.json`: what XLA's tuner measured, beside the lock that it made.

XLA writes every candidate with its time (`--xla_gpu_dump_autotune_logs_to`); its lock has only the
ones that it chose.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from xlapipe.devices.platforms.textproto import Message, TextProtoError, parse
from xlapipe.dump.manifest import TUNING_TIMES
from xlapipe.errors import DumpError
from xlapipe.files.contents import Refusal
from xlapipe.files.typed_data import Line, Natural, read_typed

_SCHEMA_VERSION = 1
_FIX = "remove the file, or tune again: `xlapipe dump WORKLOAD --target attached --tuning tune`"
_MAX_BYTES = 64 * 1024 * 1024
# `%gemm_fusion_dot.2 = f32[8,1,4096]{2,1,0} fusion(...)`
_INSTRUCTION = re.compile(r"%?(?P<name>[^\s=]+) = (?P<shape>\([^)]*\)|\S+) ")


@dataclass(frozen=True)
class TuningCandidate:
    """One way to run an instruction.

    Attributes:
      config: backend and its settings, as XLA names them.
      chosen: whether the lock has it.
    """

    config: Mapping[str, Any]
    seconds: Annotated[float, Meta(gt=0, le=3600)]
    scratch_bytes: Natural
    chosen: bool


@dataclass(frozen=True)
class TunedInstruction:
    """An instruction with the candidates that ran.

    Attributes:
      name, shape: when it was tuned, which comes before the last passes.
      hlo_fingerprint: XLA's, as in the lock.
    """

    name: Line
    shape: Line
    hlo_fingerprint: Line
    candidates: tuple[TuningCandidate, ...]

    @property
    def seconds(self) -> float | None:
        """Time of the chosen candidate; None if the tuner did not time it."""
        return next((item.seconds for item in self.candidates if item.chosen), None)


@dataclass(frozen=True)
class _File:
    instructions: tuple[TunedInstruction, ...]


def tuning_times(logs: str, results: str) -> tuple[TunedInstruction, ...]:
    """What the tuner measured.

    Args:
      logs: XLA's AutotuningLogs in text form.
      results: XLA's AutotuneResults in text form, which have the chosen candidates.
    """
    chosen: dict[str, Message] = {}
    for text in _messages(results, "entries", ""):
        entry = parse(text).fields
        target = _inside(entry, "key", "target")
        chosen[str(target.get("hlo_fingerprint"))] = _inside(entry, "value", "optimal_config")
    return tuple(_instruction(text, chosen) for text in _messages(logs, "instruction_profiles", ""))


def _instruction(text: str, chosen: Mapping[str, Message]) -> TunedInstruction:
    outer = parse(text).fields
    fingerprint = str(outer.get("hlo_fingerprint"))
    match = _INSTRUCTION.match(str(outer.get("hlo_text", "")))
    candidates = []
    for profile in _messages(text, "config_profiles", "  "):
        fields = parse(profile).fields
        nanoseconds = _inside(fields, "run_time").get("nanos")
        if "failure" in fields or not isinstance(nanoseconds, int) or nanoseconds <= 0:
            continue  # of those that failed, the time is 0
        seconds = nanoseconds * 1e-9 + float(str(_inside(fields, "run_time").get("seconds", 0)))
        config = _inside(fields, "config")
        scratch = fields.get("scratch_bytes", 0)
        candidates.append(
            TuningCandidate(
                config,
                round(seconds, 9),
                scratch if isinstance(scratch, int) else 0,
                config == chosen.get(fingerprint),
            )
        )
    name, shape = (match["name"], match["shape"]) if match is not None else ("", "")
    return TunedInstruction(name, shape, fingerprint, tuple(candidates))


def _messages(text: str, name: str, indent: str) -> Iterator[str]:
    """The contents of a repeated message, as XLA prints them, with one field in each line."""
    pattern = rf"^{indent}{name} \{{\n(.*?)^{indent}\}}$"
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        yield match[1]


def _inside(message: Message, *names: str) -> Message:
    for name in names:
        inner = message.get(name, {})
        if not isinstance(inner, dict):
            raise TextProtoError(f"expected a message in {name!r}")
        message = inner
    return message


def tuning_times_to_bytes(instructions: tuple[TunedInstruction, ...]) -> bytes:
    """The content of the file, one instruction per line."""
    rows = ",\n".join(json.dumps(asdict(item), sort_keys=True) for item in instructions)
    return f'{{"schema_version": {_SCHEMA_VERSION}, "instructions": [\n{rows}\n]}}\n'.encode()


def read_tuning_times(folder: Path) -> tuple[TunedInstruction, ...]:
    """What a dump's tuner measured; empty without the file."""
    path = folder / TUNING_TIMES
    if not os.path.lexists(path):
        return ()
    refusal = Refusal(DumpError, _FIX)
    return read_typed(
        path,
        _File,
        limit_bytes=_MAX_BYTES,
        refusal=refusal,
        follow_links=False,
        schema_version=_SCHEMA_VERSION,
    ).instructions
