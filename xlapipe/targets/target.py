"""GPUs to compile for: from the catalogue, a configuration file, or an attached GPU.

A `Target` is data: the text of a GpuTargetConfigProto and a few figures from it. This module does
not access devices or import jax.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from xlapipe.errors import TargetError
from xlapipe.platforms.textproto import Message, TextProtoError, parse

Source = Literal["catalogue", "file", "attached"]

# ptxas of CUDA 13 supports nothing older, and XLA's own message about that is hard to understand.
OLDEST_COMPUTE_CAPABILITY = (7, 5)
# The major version of the CUDA wheels that are compiled with. Without it XLA assumes a very old
# runtime and skips rewrites, e.g. those for float8.
CUDA_MAJOR = 13
# A device's configuration is about 5 kB; with autotune results it can grow to megabytes.
_MAX_CONFIG_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU to compile for.

    Attributes:
      name: part of folder names under `hlo_dumps/`: letters, digits, `.`, `_` and `-`.
      description: the device's name, e.g. `NVIDIA H200 141GB HBM3e`.
      config_text: a GpuTargetConfigProto in text form.
      compute_capability: e.g. `9.0`.
      device_memory_bytes: from the configuration.
      source: where the configuration came from.
      platform: jax's name of the vendor's platform; see `xlapipe.platforms`.
    """

    name: str
    description: str
    config_text: str
    compute_capability: str
    device_memory_bytes: int
    source: Source
    platform: str = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueRow:
    """A GPU of the catalogue, in the units of GpuDeviceInfoProto: bytes, bytes per second, GHz.

    Attributes:
      feature_extension: of the compute capability; None if the source of the row has none.
      unsupported: why XLA cannot compile for it; None if it can.
    """

    name: str
    description: str
    compute_capability: str
    dnn_version: str
    threads_per_block_limit: int
    threads_per_warp: int
    threads_per_core_limit: int
    thread_dim_limit_x: int
    thread_dim_limit_y: int
    thread_dim_limit_z: int
    block_dim_limit_x: int
    block_dim_limit_y: int
    block_dim_limit_z: int
    core_count: int
    fpus_per_core: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_core: int
    registers_per_block_limit: int
    registers_per_core_limit: int
    l2_cache_size: int
    device_memory_size: int
    memory_bandwidth: int
    clock_rate_ghz: float
    feature_extension: str | None = None
    unsupported: str | None = None

    def target(self) -> Target:
        """The row as a Target.

        Raises:
          TargetError: XLA cannot compile for this GPU.
        """
        if self.unsupported is not None:
            raise TargetError(
                f"target {self.name} ({self.description}): expected a supported GPU, found that "
                f"{self.unsupported}; fix: use one of {', '.join(_supported_names())}"
            )
        return Target(
            name=self.name,
            description=self.description,
            config_text=_render(self),
            compute_capability=self.compute_capability,
            device_memory_bytes=self.device_memory_size,
            source="catalogue",
        )


@cache
def catalogue() -> tuple[CatalogueRow, ...]:
    """Every GPU of the catalogue, unsupported ones last."""
    text = (files("xlapipe") / "targets" / "catalogue.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    defaults = tables.pop("defaults")
    return tuple(CatalogueRow(name=name, **defaults | row) for name, row in tables.items())


def target_named(name: str) -> Target:
    """The target with this name in the catalogue.

    Raises:
      TargetError: the catalogue has no such name, or the GPU is not supported.
    """
    rows = {row.name: row for row in catalogue()}
    if name in rows:
        return rows[name].target()
    normalized = name.lower().replace("-", "_")
    similar = [known for known in rows if known.startswith(normalized) and normalized]
    similar = similar or get_close_matches(normalized, _supported_names(), n=3, cutoff=0.5)
    hint = f"use {' or '.join(similar)}" if similar else f"use one of {', '.join(rows)}"
    raise TargetError(
        f"unknown target {name!r}: expected a name that `xlapipe targets` lists; "
        f"fix: {hint}, or pass another GPU's configuration with --target-config FILE"
    )


def target_from_file(path: str | Path) -> Target:
    """The target in a file with a GpuTargetConfigProto in text form, named after the file.

    Grid dimension limits that the file lacks are added.

    Raises:
      TargetError: the file cannot be read, is not such a configuration, is for an unsupported GPU,
        or has a name that is not a valid folder name or is in the catalogue.
    """
    path = Path(path)
    try:
        # Read one byte more than allowed, since a special file has no size.
        with path.open("rb") as stream:
            content = stream.read(_MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TargetError(
            f"target config {path}: expected a readable file, found: {reason}; "
            "fix: give a GpuTargetConfigProto in text form"
        ) from None
    if len(content) > _MAX_CONFIG_BYTES:
        raise TargetError(
            f"target config {path}: expected at most {_MAX_CONFIG_BYTES} B, found more; "
            "fix: give a GpuTargetConfigProto in text form"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TargetError(
            f"target config {path}: expected UTF-8 text, found another byte at {error.start}; "
            "fix: give a GpuTargetConfigProto in text form, not in binary form"
        ) from None
    name = path.stem
    if not _NAME.fullmatch(name):
        raise TargetError(
            f"target config {path}: expected a name of letters, digits, '.', '_' and '-' that "
            f"starts with a letter or digit, found {name!r}; fix: rename the file, because its "
            "name becomes the target's name and part of folder names"
        )
    if any(name == row.name for row in catalogue()):
        raise TargetError(
            f"target config {path}: expected a name that is not in the catalogue, found {name!r}; "
            f"fix: rename the file, e.g. to {name}_device{path.suffix}, because dumps of both "
            "targets would be in one folder"
        )
    return _from_text(text, name=name, source="file", where=f"target config {path}")


def target_attached(config_text: str) -> Target:
    """The target in the configuration that an attached GPU reports, named after the device.

    Args:
      config_text: the text of `TopologyDescription.target_config`.

    Raises:
      TargetError: the text is not a GpuTargetConfigProto, or is for an unsupported GPU.
    """
    target = _from_text(
        config_text, name="attached", source="attached", where="configuration of the attached GPU"
    )
    model = re.sub(r"[^a-z0-9]+", "_", target.description.lower().removeprefix("nvidia "))
    return Target(
        name=f"{model.strip('_') or 'gpu'}_attached",
        description=target.description,
        config_text=target.config_text,
        compute_capability=target.compute_capability,
        device_memory_bytes=target.device_memory_bytes,
        source=target.source,
    )


def _supported_names() -> list[str]:
    return [row.name for row in catalogue() if row.unsupported is None]


# In the order in which GpuDeviceInfoProto's text, also that of a device, has them.
_DEVICE_INFO_FIELDS = (
    "threads_per_block_limit",
    "threads_per_warp",
    "shared_memory_per_block",
    "shared_memory_per_core",
    "threads_per_core_limit",
    "core_count",
    "fpus_per_core",
    "block_dim_limit_x",
    "block_dim_limit_y",
    "block_dim_limit_z",
    "memory_bandwidth",
    "l2_cache_size",
    "clock_rate_ghz",
    "device_memory_size",
    "shared_memory_per_block_optin",
    "registers_per_core_limit",
    "registers_per_block_limit",
    "thread_dim_limit_x",
    "thread_dim_limit_y",
    "thread_dim_limit_z",
)
# CUDA's limits, the same for every GPU; XLA divides by them without checking for 0.
_GRID_LIMITS = {
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 2**16 - 1,
    "block_dim_limit_z": 2**16 - 1,
}


def _render(row: CatalogueRow) -> str:
    """The smallest GpuTargetConfigProto that every supported jaxlib accepts."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    major, minor = row.compute_capability.split(".")
    dnn_major, dnn_minor, dnn_patch = row.dnn_version.split(".")
    extension = f" feature_extension: {row.feature_extension}" if row.feature_extension else ""
    lines = [
        "gpu_device_info {",
        *(f"  {name}: {values[name]}" for name in _DEVICE_INFO_FIELDS),
        f"  cuda_compute_capability {{ major: {major} minor: {minor}{extension} }}",
        "}",
        'platform_name: "CUDA"',
        f"dnn_version_info {{ major: {dnn_major} minor: {dnn_minor} patch: {dnn_patch} }}",
        f"runtime_version {{ major: {CUDA_MAJOR} }}",
        f'device_description_str: "{row.description}"',
    ]
    return "\n".join(lines) + "\n"


def _from_text(text: str, *, name: str, source: Source, where: str) -> Target:
    try:
        parsed = parse(text)
    except TextProtoError as error:
        raise TargetError(
            f"{where}: expected a GpuTargetConfigProto in text form, found: {error}; "
            "fix: write the configuration again"
        ) from None
    config = parsed.fields
    device = _block(config, "gpu_device_info", where)
    platform = config.get("platform_name", "CUDA")
    if platform != "CUDA" or "rocm_compute_capability" in device:
        found = repr(platform) if platform != "CUDA" else "rocm_compute_capability"
        raise TargetError(
            f"{where}: expected a configuration for platform 'CUDA', found {found}; "
            "fix: give the configuration of an NVIDIA GPU"
        )
    capability = _block(device, "cuda_compute_capability", where)
    major, minor = _integer(capability, "major", where), _integer(capability, "minor", where, 0)
    if (major, minor) < OLDEST_COMPUTE_CAPABILITY:
        oldest = "".join(map(str, OLDEST_COMPUTE_CAPABILITY))
        raise TargetError(
            f"{where}: expected sm_{oldest} or newer, found sm_{major}{minor}; fix: give the "
            "configuration of a newer GPU, because the ptxas of CUDA 13 no longer generates code "
            "for this one"
        )
    description = str(config.get("device_description_str") or device.get("name") or name)
    for field in ("core_count", "threads_per_warp"):
        _integer(device, field, where)
    if missing := [limit for limit in _GRID_LIMITS if limit not in device]:
        begin = parsed.openings["gpu_device_info"]
        limits = " ".join(f"{limit}: {_GRID_LIMITS[limit]}" for limit in missing)
        text = f"{text[:begin]} {limits} {text[begin:]}"
    return Target(
        name=name,
        description=description if description.isprintable() else name,
        config_text=text,
        compute_capability=f"{major}.{minor}",
        device_memory_bytes=_integer(device, "device_memory_size", where),
        source=source,
    )


def _block(message: Message, name: str, where: str) -> Message:
    value = message.get(name)
    if not isinstance(value, Mapping):
        raise TargetError(
            f"{where}: expected a GpuTargetConfigProto in text form, found no `{name} {{ … }}`; "
            "fix: add the missing part"
        )
    return value


def _integer(message: Message, name: str, where: str, default: int | None = None) -> int:
    value: Any = message.get(name, default)
    if not isinstance(value, int) or value < 0 or (value == 0 and default is None):
        value_text = "nothing" if value is None else repr(value)[:40]
        raise TargetError(
            f"{where}: expected a positive whole number for `{name}`, found {value_text}; "
            "fix: set this field"
        )
    return value
