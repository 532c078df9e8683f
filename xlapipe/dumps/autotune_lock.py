"""Autotune locks: a device's autotune results, with everything that they are valid for.

XLA's cache key holds the device and the text of each fusion. A lock therefore belongs to one
target config, one jaxlib, one workload and one GEMM policy, and is refused elsewhere.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from xlapipe.errors import TargetError, XlapipeError
from xlapipe.platforms.textproto import TextProtoError, parse
from xlapipe.targets.target import Target, catalogue
from xlapipe.targets.topology import Topology

LOCK = "autotune_lock.json"
SCHEMA_VERSION = 1
# XLA's own file of results does not say which program it was made on.
ANY_WORKLOAD = ""
_LARGEST_BYTES = 64 * 1024 * 1024
_AGAIN = "make it again on the device: `xlapipe dump WORKLOAD --target attached --tune`"


@dataclass(frozen=True, kw_only=True)
class AutotuneLock:
    """Autotune results and what they belong to.

    Attributes:
      target: name of the target, of the catalogue where the device is in it.
      device: the device's own name, e.g. `NVIDIA H200`.
      target_config: GpuTargetConfigProto of the device, as text.
      results: XLA's AutotuneResults, as text.
      versions: jax, jaxlib and jax-cuda13-plugin on the device.
      topology: hosts and GPUs of a workload over several devices. The results are of one device,
        and serve with any other number.
    """

    workload: str
    gemm_policy: str
    target: str
    device: str
    compute_capability: str
    device_memory_bytes: int
    versions: Mapping[str, str]
    target_config: str
    results: str
    topology: str | None = None

    def to_bytes(self) -> bytes:
        data = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        if self.topology is None:
            del data["topology"]  # as in locks that were made before there was any
        return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()

    @property
    def parsed_topology(self) -> Topology | None:
        """`topology` as hosts and GPUs."""
        return Topology.parse(self.topology) if self.topology is not None else None

    def as_target(self) -> Target:
        """The device that the results were made on."""
        return Target(
            name=self.target,
            description=self.device,
            config_text=self.target_config,
            compute_capability=self.compute_capability,
            device_memory_bytes=self.device_memory_bytes,
            source="attached",
        )

    def refuse_unless(self, *, where: str, **expected: str | None) -> None:
        """Holds the lock against what is to be compiled.

        Args:
          expected: `workload`, `gemm_policy`, `target`, `device` or `jaxlib`; None is not held.

        Raises:
          TargetError: the lock is of another.
        """
        found = {**asdict(self), "jaxlib": self.versions.get("jaxlib")}
        for name, value in expected.items():
            if found[name] == ANY_WORKLOAD and name == "workload":
                continue
            if value is not None and found[name] != value:
                raise TargetError(
                    f"autotune lock {where}: made for {name.replace('_', ' ')} {found[name]!r}, "
                    f"asked for {value!r}; {_AGAIN}"
                )


def read_lock(path: Path) -> AutotuneLock:
    """Reads `autotune_lock.json`.

    Raises:
      TargetError: it cannot be read, or is no lock.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise TargetError(f"autotune lock {path}: larger than {_LARGEST_BYTES:,} B; {_AGAIN}")
        data: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise TargetError(f"autotune lock {path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise TargetError(
            f"autotune lock {path}: not JSON; a raw file of XLA's autotune results goes with "
            "--target-config, the config of the device that it was made on"
        ) from None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise TargetError(
            f"autotune lock {path}: expected a lock of schema {SCHEMA_VERSION}; {_AGAIN}"
        )
    given = {item.name: data.get(item.name) for item in fields(AutotuneLock)}
    for name, value in given.items():
        types: dict[str, Any] = {
            "versions": dict,
            "device_memory_bytes": int,
            "topology": (str, type(None)),
        }
        if not isinstance(value, types.get(name, str)):
            raise TargetError(f"autotune lock {path}: {name} is {value!r:.60}; {_AGAIN}")
    lock = AutotuneLock(**given)  # type: ignore[arg-type]  # held just above
    try:
        _ = lock.parsed_topology
    except XlapipeError as error:
        raise TargetError(f"autotune lock {path}: {error}; {_AGAIN}") from None
    check_results(lock.results, where=str(path))
    return lock


def raw_lock(path: Path, target: Target, policy: str, jaxlib: str) -> AutotuneLock:
    """A lock of a raw file of XLA's autotune results, as its text form has them.

    Raises:
      TargetError: the file cannot be read, or holds no results.
    """
    try:
        results = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"autotune results {path}: cannot be read as text: {error}") from None
    check_results(results, where=str(path))
    return AutotuneLock(
        workload=ANY_WORKLOAD,
        gemm_policy=policy,
        target=target.name,
        device=target.description,
        compute_capability=target.compute_capability,
        device_memory_bytes=target.device_memory_bytes,
        versions={"jaxlib": jaxlib},
        target_config=target.config_text,
        results=results,
    )


def check_results(text: str, *, where: str) -> None:
    """Raises TargetError for text that is not XLA's AutotuneResults in text form."""
    try:
        fields_found = set(parse(text).fields)
    except TextProtoError as error:
        raise TargetError(f"autotune results {where}: {error}; {_AGAIN}") from None
    # `results` up to jaxlib 0.10, `entries` from 0.11 on.
    unknown = fields_found - {"version", "results", "entries"}
    if unknown:
        raise TargetError(
            f"autotune results {where}: expected XLA's AutotuneResults as text, with `entries` or "
            f"`results`; found {', '.join(sorted(unknown))}; {_AGAIN}"
        )


def target_name(target: Target) -> str:
    """The catalogue's name of a device, if one row's description begins with the device's name."""
    rows = [row.name for row in catalogue() if row.description.startswith(target.description)]
    return rows[0] if len(rows) == 1 else target.name
