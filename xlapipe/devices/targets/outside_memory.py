"""Memory that a process takes on a GPU outside XLA's pool, measured; see `outside_memory.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

_PROVENANCE = ("device", "driver", "jax", "date")


@dataclass(frozen=True, kw_only=True)
class MeasuredOutside:
    """What was measured on one kind of GPU.

    Attributes:
      target: a name of the catalogue.
      visible_bytes: the device's memory as CUDA reports it.
      parts: bytes by what takes them: `context`, `cublas`, …
      nccl: bytes of one communicator, by its number of GPUs.
      provenance: device, driver, version of jax and date of the measurement.
    """

    target: str
    visible_bytes: int
    parts: Mapping[str, int] = field(hash=False)
    nccl: Mapping[int, int] = field(hash=False)
    provenance: Mapping[str, str] = field(hash=False)


def measured_outside(target_name: str) -> MeasuredOutside | None:
    """The measurement of a GPU, by its name in the catalogue, if any."""
    return next((row for row in _rows() if row.target == target_name), None)


@cache
def _rows() -> tuple[MeasuredOutside, ...]:
    text = (
        files("xlapipe.devices.targets").joinpath("outside_memory.toml").read_text(encoding="utf-8")
    )
    return tuple(_row(dict(row)) for row in tomllib.loads(text)["measured"])


def _row(row: dict[str, Any]) -> MeasuredOutside:
    nccl = {int(count): size_bytes for count, size_bytes in row.pop("nccl", {}).items()}
    provenance = {name: str(row.pop(name)) for name in _PROVENANCE}
    return MeasuredOutside(
        target=str(row.pop("target")),
        visible_bytes=int(row.pop("visible_bytes")),
        parts={name: int(size_bytes) for name, size_bytes in row.items()},
        nccl=nccl,
        provenance=provenance,
    )
