"""GPUs to compile for: a catalogue, a configuration file, or the GPU that is attached.

A `Target` is data: the text of a GpuTargetConfigProto and what people ask about it. Nothing here
looks at a device or imports jax.
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

# ptxas of CUDA 13 knows nothing older; XLA's own message for it is hard to understand.
OLDEST_COMPUTE_CAPABILITY = (7, 5)
# The major version of the CUDA wheels that the configuration is compiled with. Without it XLA
# takes the runtime for very old and skips rewrites, float8 ones among them.
CUDA_MAJOR = 13
# A device's configuration is about 5 kB; with autotune results it can grow to megabytes.
_MAX_CONFIG_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU to compile for.

    Attributes:
      name: names folders under `hlo_dumps/`; letters, digits, `.`, `_` and `-`.
      description: the device's name, e.g. `NVIDIA H200 141GB HBM3e`.
      config_text: a GpuTargetConfigProto in text form.
      compute_capability: e.g. `9.0`.
      device_memory_bytes: as the configuration says.
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
      feature_extension: of the compute capability; None where the source has none.
      unsupported: why nothing can be compiled for it, or None.
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
          TargetError: nothing can be compiled for this GPU.
        """
        if self.unsupported is not None:
            raise TargetError(
                f"target {self.name} ({self.description}) is not supported: {self.unsupported}. "
                f"Supported: {', '.join(_supported_names())}"
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
    """Every GPU that has a name here, unsupported ones last."""
    text = (files("xlapipe") / "targets" / "catalogue.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    defaults = tables.pop("defaults")
    return tuple(CatalogueRow(name=name, **defaults | row) for name, row in tables.items())


def target_named(name: str) -> Target:
    """The catalogue's target of that name.

    Raises:
      TargetError: no such name (the nearest ones are offered), or a GPU that is not supported.
    """
    rows = {row.name: row for row in catalogue()}
    if name in rows:
        return rows[name].target()
    asked = name.lower().replace("-", "_")
    near = [known for known in rows if known.startswith(asked) and asked]
    near = near or get_close_matches(asked, _supported_names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(rows)}."
    raise TargetError(
        f"unknown target {name!r}: {hint} `xlapipe targets` lists them; "
        "for another GPU, pass its configuration with --target-config FILE"
    )


def target_from_file(path: str | Path) -> Target:
    """The target that a GpuTargetConfigProto in text form describes, named after the file.

    Limits of grid dimensions that the file lacks are filled in.

    Raises:
      TargetError: the file cannot be read, is no such configuration, is of a GPU that is not
        supported, or has a name that cannot name a folder or belongs to the catalogue.
    """
    path = Path(path)
    try:
        # Read one byte more than is allowed: a device file has no size to ask for.
        with path.open("rb") as stream:
            content = stream.read(_MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TargetError(f"target config {path}: cannot be read: {reason}") from None
    if len(content) > _MAX_CONFIG_BYTES:
        raise TargetError(
            f"target config {path}: larger than {_MAX_CONFIG_BYTES} B: no GpuTargetConfigProto"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TargetError(
            f"target config {path}: not UTF-8 at byte {error.start}; "
            "expected a GpuTargetConfigProto in text form, not in binary"
        ) from None
    name = path.stem
    if not _NAME.fullmatch(name):
        raise TargetError(
            f"target config {path}: its name names the target and its folders: rename it so that "
            f"it is of letters, digits, '.', '_' and '-' and starts with a letter or digit"
        )
    if any(name == row.name for row in catalogue()):
        raise TargetError(
            f"target config {path}: {name!r} is a target of the catalogue, and dumps of the two "
            f"would lie in one folder: rename the file, for instance {name}_device{path.suffix}"
        )
    return _from_text(text, name=name, source="file", where=f"target config {path}")


def target_attached(config_text: str) -> Target:
    """The target that an attached GPU's own configuration describes, named after the device.

    Args:
      config_text: as `TopologyDescription.target_config` prints it.

    Raises:
      TargetError: the text is no GpuTargetConfigProto, or of a GPU that is not supported.
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


# In the order of GpuDeviceInfoProto's text, which a device's own configuration has too.
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
# CUDA's own limits, the same for every GPU; XLA divides by them without asking whether they are 0.
_GRID_LIMITS = {
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 2**16 - 1,
    "block_dim_limit_z": 2**16 - 1,
}


def _render(row: CatalogueRow) -> str:
    """The smallest GpuTargetConfigProto that every supported jaxlib takes."""
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
        raise TargetError(f"{where}: no GpuTargetConfigProto in text form: {error}") from None
    config = parsed.fields
    device = _block(config, "gpu_device_info", where)
    platform = config.get("platform_name", "CUDA")
    if platform != "CUDA" or "rocm_compute_capability" in device:
        raise TargetError(f"{where}: for platform {platform!r}; only CUDA is supported")
    capability = _block(device, "cuda_compute_capability", where)
    major, minor = _integer(capability, "major", where), _integer(capability, "minor", where, 0)
    if (major, minor) < OLDEST_COMPUTE_CAPABILITY:
        oldest = "".join(map(str, OLDEST_COMPUTE_CAPABILITY))
        raise TargetError(
            f"{where}: compute capability {major}.{minor} is not supported: the ptxas of CUDA 13 "
            f"no longer generates code for sm_{major}{minor}; its oldest is sm_{oldest}"
        )
    description = str(config.get("device_description_str") or device.get("name") or name)
    for needed in ("core_count", "threads_per_warp"):
        _integer(device, needed, where)
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
            f"{where}: expected a GpuTargetConfigProto in text form, found no `{name} {{ … }}`"
        )
    return value


def _integer(message: Message, name: str, where: str, default: int | None = None) -> int:
    value: Any = message.get(name, default)
    if not isinstance(value, int) or value < 0 or (value == 0 and default is None):
        found = "nothing" if value is None else repr(value)[:40]
        raise TargetError(f"{where}: expected a positive whole number for `{name}`, found {found}")
    return value
