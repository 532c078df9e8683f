"""Memory that a process takes on a GPU outside XLA's pool, measured; see `outside_memory.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from xlapipe.files.typed_data import typed


@dataclass(frozen=True, kw_only=True)
class MeasuredOutside:
    """What was measured on one kind of GPU.

    Attributes:
      device, driver, jax, date: what it was measured with, and when.
      visible_bytes: the device's memory as CUDA reports it.
      parts: bytes by what takes them: `context`, `cublas`, …
      nccl: bytes of one communicator, by its number of GPUs.
    """

    device: str
    driver: str
    jax: str
    date: str
    visible_bytes: int
    parts: Mapping[str, int]
    nccl: Mapping[str, int] = field(default_factory=dict)


def measured_outside(target_name: str) -> MeasuredOutside | None:
    """The measurement of a GPU, by its name in the catalogue, if any."""
    return _measured().get(target_name)


@cache
def _measured() -> Mapping[str, MeasuredOutside]:
    path = files("xlapipe.devices.targets") / "outside_memory.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: typed(MeasuredOutside, row) for name, row in rows.items()}
