"""Autotune locks: a device's autotune results, and what they are valid for.

XLA's cache key holds the device and the text of each fusion. A lock is therefore valid for one
target config, jaxlib, workload and GEMM policy, and is refused for any other.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from xlapipe.devices.platforms.textproto import TextProtoError, parse
from xlapipe.devices.targets.catalogue import row_named, row_of_device
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.topology import Topology
from xlapipe.errors import TargetError, XlapipeError
from xlapipe.files.contents import Refusal
from xlapipe.files.typed_data import Line, Natural, Text, read_typed

LOCK = "autotune_lock.json"
SCHEMA_VERSION = 1
_MAX_BYTES = 64 * 1024 * 1024
_FIX = "fix: make it again on the device: `xlapipe dump WORKLOAD --target attached --tuning tune`"


@dataclass(frozen=True, kw_only=True)
class AutotuneLock:
    """Autotune results and what they are valid for.

    Attributes:
      target: name of the target; the catalogue's name if the device is in the catalogue.
      device: the device's own name, e.g. `NVIDIA H200`.
      target_config: GpuTargetConfigProto of the device in text format.
      results: XLA's AutotuneResults in text format.
      versions: versions of jax, jaxlib and jax-cuda13-plugin on the device, by package.
      topology: `HOSTSxGPUS` of a workload for several devices; None for one device. The results
        are those of one device, and valid for any number of devices.
      workspaces: bytes of the workspaces that libraries stated on the device; see
        `xlapipe.plans.workspaces`.
    """

    workload: Line
    gemm_policy: Line
    target: Line
    device: Line
    compute_capability: Line
    device_memory_bytes: Natural
    versions: Mapping[Line, Line]
    target_config: Text
    results: Text
    topology: Line | None = None
    workspaces: Mapping[Line, Natural] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        data = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        if self.topology is None:
            del data["topology"]  # older locks lack this key
        if not self.workspaces:
            del data["workspaces"]  # likewise
        return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()

    @property
    def parsed_topology(self) -> Topology | None:
        """`topology`, parsed."""
        return Topology.parse(self.topology) if self.topology is not None else None

    def as_target(self) -> Target:
        """The device on which the results were measured, as a target."""
        return Target(
            name=self.target,
            description=self.device,
            config_text=self.target_config,
            compute_capability=self.compute_capability,
            device_memory_bytes=self.device_memory_bytes,
            source="attached",
        )

    def refuse_unless(self, *, where: str, **expected: str | None) -> None:
        """Refuses a lock that was made for other values of its fields."""
        actual = {**asdict(self), "jaxlib": self.versions.get("jaxlib")}
        for name, value in expected.items():
            if value is not None and actual[name] != value:
                raise TargetError(
                    f"autotune lock {where}: expected {name.replace('_', ' ')} {value!r}, found "
                    f"{actual[name]!r}; {_FIX}"
                )


def read_lock(path: Path) -> AutotuneLock:
    """Reads `autotune_lock.json`."""
    lock = read_typed(
        path,
        AutotuneLock,
        limit_bytes=_MAX_BYTES,
        refusal=Refusal(TargetError, _FIX.removeprefix("fix: ")),
        schema_version=SCHEMA_VERSION,
    )
    try:
        _ = lock.parsed_topology
    except XlapipeError as error:
        raise TargetError(f"autotune lock {path}: {error}; {_FIX}") from None
    check_results(lock.results, where=str(path))
    _refuse_another_device(path, lock)
    return lock


def _refuse_another_device(path: Path, lock: AutotuneLock) -> None:
    """Raises TargetError for results of a GPU that is not the one of the catalogue's target."""
    row = row_named(lock.target)
    cores = lock.as_target().core_count
    if row is not None and row_of_device(lock.device, cores) != row:
        raise TargetError(
            f"autotune lock {path}: expected the device of target {row.name}, {row.description} "
            f"with {row.core_count} multiprocessors, found {lock.device!r:.60} with {cores}; {_FIX}"
        )


def check_results(text: str, *, where: str) -> None:
    """Raises TargetError for text that is not XLA's AutotuneResults in text format."""
    try:
        field_names = set(parse(text))
    except TextProtoError as error:
        raise TargetError(f"autotune results {where}: {error}; {_FIX}") from None
    # jaxlib up to 0.10 writes `results`, later ones `entries`.
    unknown = field_names - {"version", "results", "entries"}
    if unknown:
        raise TargetError(
            f"autotune results {where}: expected XLA's AutotuneResults as text, with `entries` or "
            f"`results`; found {', '.join(sorted(unknown))}; {_FIX}"
        )
