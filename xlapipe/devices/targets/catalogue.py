"""The targets of the catalogue, for which nothing has to be attached.

GPUs: `catalogue.toml` and `amd.toml`.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
from xlapipe.errors import TargetError

# The major version of the CUDA wheels that are compiled with. Without it XLA assumes a very old
# runtime and skips rewrites, e.g. those for float8.
CUDA_MAJOR = 13
ROCM_MAJOR = 7
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
_PARTS = re.compile(r"[a-z]+|\d+")
_SOCKET = re.compile(r"sxm\d?(?!\d)")
# Cloud's name of the chips whose name ends with e.
_LITE = re.compile(r"\b(v\d)lite(?:pod)?")
# Default when only the family is given.
_USUAL = ("h100_sxm", "a100_sxm_80")
# How far a number of gigabytes, of either kind, may be from the device's memory.
_MEMORY_ERROR = 0.06
# Words before a GPU's name, and the unit of its memory, whose short form may also end a name: A10G.
_FILLERS = {"nvidia", "tesla", "geforce", "quadro", "gb"}
_GIGABYTES = re.compile(r"(?<=[\s_-])(\d+)g\b")


@dataclass(frozen=True, slots=True)
class Named:
    """What a text can name.

    Attributes:
      description: the device's own name.
      memory_bytes: memory of the device.
      compute_capability: compute capability of a GPU, or its architecture; empty for a TPU.
    """

    name: str
    description: str
    memory_bytes: int
    compute_capability: str = ""


@dataclass(frozen=True, slots=True)
class TargetMatch:
    """What a text names.

    Attributes:
      name: in the catalogue; None if it is unknown, or several without a usual one.
      others: other names that the text fits, or, without a name, those that begin alike.
    """

    name: str | None
    others: tuple[str, ...] = ()


def resolve_target(text: str, rows: Mapping[str, Named]) -> TargetMatch:
    """The row that `text` names: `H100`, `a100-40gb`, `RTX A6000`, `tpu v5e`.

    A text names a row if it has the letters and numbers of the row's family (`h100`), and nothing
    that the row's name, description and memory do not have.

    Args:
      rows: the catalogue, by name.
    """
    if text in rows:
        return TargetMatch(text)
    plain = _LITE.sub(r"\1e", _SOCKET.sub("sxm ", _GIGABYTES.sub(r"\1", text.lower())))
    parts = set(_PARTS.findall(plain)) - _FILLERS
    matches = [name for name, row in rows.items() if parts and _fits(parts, row)]
    usual = [name for name in matches if name in _USUAL] or matches
    if len(usual) == 1:
        return TargetMatch(usual[0], tuple(name for name in matches if name != usual[0]))
    last = text.lower().split()[-1:]
    begin = [name for name in rows if last and name.startswith(last[0])]
    return TargetMatch(None, tuple(matches or begin))


def _fits(parts: set[str], row: Named) -> bool:
    family = set(_PARTS.findall(row.name.split("_")[0])) - {"tpu", "rtx"}
    if not row.compute_capability and parts & {"trillium", "ironwood"}:
        family = parts
    words = set(_PARTS.findall(f"{row.name} {row.description}".lower()))
    if "pcie" not in words:
        words.add("sxm")
    if "mig" in words - parts:  # a part of a GPU is meant only by its name
        return False
    return family <= parts and all(
        part in words or (part.isdigit() and _is_memory(int(part), row.memory_bytes))
        for part in parts
    )


def _is_memory(gigabytes: int, memory_bytes: int) -> bool:
    return any(
        abs(gigabytes * unit - memory_bytes) <= _MEMORY_ERROR * memory_bytes
        for unit in (10**9, 2**30)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueRow:
    """A GPU of the catalogue.

    Attributes:
      compute_capability: e.g. `9.0`, or the architecture of an AMD GPU, e.g. `gfx942`.
      dnn_version: cuDNN's; empty for an AMD GPU.
      device_info: fields of GpuDeviceInfoProto, in its units: bytes, bytes per second, GHz.
      reported_name: name of the device itself, if it is not the description.
      feature_extension: extension of the compute capability; None if the row's source has none.
      unsupported: why XLA cannot compile for it; None if it can.
      peak_flops: dense operations per second of the tensor cores, by type of the operands.
      peak_source: where `peak_flops` are from.
      link_bandwidth: bytes per second that it can send to other GPUs of its host, and receive at
        the same time; None if the catalogue does not have it.
      active_links: number of NVLinks; None if it has none, or a board may have some or none.
    """

    name: str
    description: str
    compute_capability: str
    device_info: Mapping[str, float]
    dnn_version: str = ""
    reported_name: str | None = None
    feature_extension: str | None = None
    unsupported: str | None = None
    peak_flops: Mapping[str, int] = field(default_factory=dict)
    peak_source: str = ""
    link_bandwidth: int | None = None
    active_links: int | None = None

    @property
    def core_count(self) -> int:
        return int(self.device_info["core_count"])

    @property
    def device_memory_size(self) -> int:
        return int(self.device_info["device_memory_size"])

    def target(self) -> Target:
        """The row as a Target.

        Raises:
          TargetError: XLA cannot compile for this GPU.
        """
        if self.unsupported is not None:
            supported = (row.name for row in catalogue() if row.unsupported is None)
            raise TargetError(
                f"target {self.name} ({self.description}) is not supported: {self.unsupported}; "
                f"fix: use one of {', '.join(supported)}"
            )
        return Target(
            name=self.name,
            description=self.description,
            config_text=self.config_text,
            compute_capability=self.compute_capability,
            device_memory_bytes=self.device_memory_size,
            source="catalogue",
            platform=self.platform,
        )

    @property
    def platform(self) -> str:
        """jax's name of its platform."""
        return "rocm" if self.compute_capability.startswith("gfx") else "cuda"

    @property
    def config_text(self) -> str:
        """The smallest GpuTargetConfigProto that every supported jaxlib accepts."""
        device_info = [f"  {name}: {value}" for name, value in self.device_info.items()]
        if self.platform == "rocm":
            lines = [
                "gpu_device_info {",
                *device_info,
                # The features of the devices, as ROCm names them by default.
                f'  rocm_compute_capability {{ gcn_arch_name: "{self.compute_capability}'
                ':sramecc+:xnack-" }',
                "}",
                'platform_name: "ROCM"',
                f"runtime_version {{ major: {ROCM_MAJOR} }}",
                f'device_description_str: "{self.description}"',
            ]
            return "\n".join(lines) + "\n"
        major, minor = self.compute_capability.split(".")
        dnn_major, dnn_minor, dnn_patch = self.dnn_version.split(".")
        extension = self.feature_extension
        feature = f" feature_extension: {extension}" if extension else ""
        links = (
            []
            if self.active_links is None
            # With links between its GPUs XLA computes small all-reduces by its own kernel.
            else [f"  device_interconnect_info {{ active_links: {self.active_links} }}"]
        )
        lines = [
            "gpu_device_info {",
            *device_info,
            f"  cuda_compute_capability {{ major: {major} minor: {minor}{feature} }}",
            *links,
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ major: {dnn_major} minor: {dnn_minor} patch: {dnn_patch} }}",
            f"runtime_version {{ major: {CUDA_MAJOR} }}",
            f'device_description_str: "{self.description}"',
        ]
        return "\n".join(lines) + "\n"


@cache
def catalogue() -> tuple[CatalogueRow, ...]:
    """Every GPU of the catalogue, unsupported ones last."""
    rows: list[CatalogueRow] = []
    for file in ("catalogue.toml", "amd.toml"):
        text = (files("xlapipe.devices.targets") / file).read_text(encoding="utf-8")
        tables = tomllib.loads(text)
        defaults = tables.pop("defaults")
        rows += [_row(name, defaults | row) for name, row in tables.items()]
    return tuple(sorted(rows, key=lambda row: row.unsupported is not None))


def _row(name: str, fields: dict[str, Any]) -> CatalogueRow:
    device_info = {field: fields.pop(field) for field in _DEVICE_INFO_FIELDS if field in fields}
    return CatalogueRow(name=name, device_info=device_info, **fields)


def row_named(name: str | None) -> CatalogueRow | None:
    """The row with exactly this name, if any."""
    return next((row for row in catalogue() if row.name == name), None)


def row_of_device(name: str, cores: int | None = None) -> CatalogueRow | None:
    """The row of a GPU with exactly this name, if any.

    Args:
      cores: its multiprocessors, if known: with others it is a part of the GPU, or another one.
    """
    for row in catalogue():
        if name in (row.description, row.reported_name):
            return row if cores in (None, row.core_count) else None
    return None


def is_same_device(first: str, second: str) -> bool:
    """Whether two names of GPUs are those of one: a part of a name is that of another GPU."""
    row = row_of_device(first)
    return first == second or (row is not None and row == row_of_device(second))


def name_of_target(target: Target) -> str:
    """The catalogue's name of the GPU that a target describes, else the target's own."""
    row = row_of_device(target.description, target.core_count)
    return row.name if row is not None else target.name


def target_named(name: str) -> Target:
    """The target that a name means: that of the catalogue, or as people write it.

    Raises:
      TargetError: the catalogue has no such target, or the GPU is not supported.
    """
    name = resolved_name(name).name or ""
    row = row_named(name)
    return row.target() if row is not None else tpu_catalogue()[name].target()


def resolved_name(name: str) -> TargetMatch:
    """The name in the catalogue of what people write, e.g. h100_sxm of `H100`; never without one.

    Raises:
      TargetError: the catalogue has no such target.
    """
    rows = _named_rows()
    target = resolve_target(name, rows)
    if target.name is not None:
        return target
    similar = [f"{other} ({rows[other].description})" for other in target.others]
    hint = f"use one of {', '.join(rows)}"
    if similar:
        hint = f"use the nearest known, {' or '.join(similar)}"
    raise TargetError(
        f"unknown target {name!r}: expected a name that `xlapipe targets` lists; fix: {hint}, or "
        "add that GPU: write its configuration on a machine that has it (`xlapipe device capture "
        "--out FILE`), and pass it with --target-config FILE"
    )


@cache
def _named_rows() -> dict[str, Named]:
    gpus = {
        row.name: Named(row.name, row.description, row.device_memory_size, row.compute_capability)
        for row in catalogue()
    }
    tpus = {
        name: Named(name, row.description, row.hbm_bytes) for name, row in tpu_catalogue().items()
    }
    return gpus | tpus
