"""Targets from a GpuTargetConfigProto in text form: that of a file, or of an attached GPU.

This module does not access devices or import jax.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xlapipe.devices.platforms import AMD, Platform, platform_of_config
from xlapipe.devices.platforms.textproto import Message, TextProtoError, parse
from xlapipe.devices.targets.catalogue import row_named
from xlapipe.devices.targets.target import OLDEST_COMPUTE_CAPABILITY, Source, Target
from xlapipe.errors import TargetError
from xlapipe.files.contents import Refusal, read_plain

# A device's configuration is about 5 kB; with autotune results it can grow to megabytes.
_MAX_CONFIG_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# XLA divides by the limits without checking for 0.
_NEEDED = ("core_count", "threads_per_warp", *(f"block_dim_limit_{axis}" for axis in "xyz"))
# Ranges of fields that times depend on, or that may be negative; others are at least 0.
_RANGES = {
    "clock_rate_ghz": (0.01, 100.0),
    "memory_bandwidth": (1e9, 1e15),
    "l2_cache_size": (1, 2**40),
    "fpus_per_core": (1, 2**20),
    "core_count": (1, 2**20),
    "numa_node": (-1, 2**20),
}


def target_from_file(path: str | Path) -> Target:
    """The target in a file with a GpuTargetConfigProto in text form, named after the file.

    Raises:
      TargetError: the file cannot be read, is not such a configuration, is for an unsupported GPU,
        or has a name that is not a valid folder name or is in the catalogue.
    """
    path = Path(path)
    refusal = Refusal(TargetError, "give a GpuTargetConfigProto in text form")
    content = read_plain(path, limit_bytes=_MAX_CONFIG_BYTES, refusal=refusal)
    name = path.stem
    if not _NAME.fullmatch(name):
        raise TargetError(
            f"target config {path}: expected a name of letters, digits, '.', '_' and '-' that "
            f"starts with a letter or digit, found {name!r}; fix: rename the file, because its "
            "name becomes the target's name and part of folder names"
        )
    if row_named(name) is not None:
        raise TargetError(
            f"target config {path}: expected a name that is not in the catalogue, found {name!r}; "
            f"fix: rename the file, e.g. to {name}_device{path.suffix}, because dumps of both "
            "targets would be in one folder"
        )
    text = content.decode("utf-8", errors="replace")
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
    model = model.removeprefix("amd_instinct_")
    return replace(target, name=f"{model.strip('_') or 'gpu'}_attached")


def _from_text(text: str, *, name: str, source: Source, where: str) -> Target:
    try:
        config = parse(text)
    except TextProtoError as error:
        raise TargetError(
            f"{where}: expected a GpuTargetConfigProto in text form, found: {error}; "
            "fix: write the configuration again"
        ) from None
    device = _block(config, "gpu_device_info", where)
    platform = _platform(text, device, where)
    capability = (_architecture if platform is AMD else _cuda_capability)(device, where)
    description = str(config.get("device_description_str") or device.get("name") or name)
    for field in _NEEDED:
        _integer(device, field, where)
    _check_numbers(device, where)
    return Target(
        name=name,
        description=description if description.isprintable() else name,
        config_text=text,
        compute_capability=capability,
        device_memory_bytes=_integer(device, "device_memory_size", where),
        source=source,
        platform=platform.name,
    )


def _check_numbers(device: Message, where: str) -> None:
    """Refuses numbers that no GPU has: times would be negative, or infinite."""
    for name, value in device.items():
        if isinstance(value, (int, float)):
            least, most = _RANGES.get(name, (0, 2**63))
            if not least <= value <= most:
                raise TargetError(
                    f"{where}: expected {least:g} to {most:g} for `{name}`, found {value!r:.40}; "
                    "fix: correct this field, or leave it out"
                )


def _platform(text: str, device: Message, where: str) -> Platform:
    stated = [AMD] if "rocm_compute_capability" in device else []
    try:
        stated.append(platform_of_config(text))
    except KeyError as error:
        raise TargetError(
            f"{where}: expected a configuration for platform 'CUDA' or 'ROCM', found {error}; "
            "fix: give the configuration of a GPU of NVIDIA or AMD"
        ) from None
    if stated[0] is not stated[-1]:
        raise TargetError(
            f'{where}: expected platform_name: "ROCM" beside rocm_compute_capability, found '
            f"{stated[-1].config_name!r}; fix: correct the name"
        )
    return stated[0]


def _cuda_capability(device: Message, where: str) -> str:
    capability = _block(device, "cuda_compute_capability", where)
    major, minor = _integer(capability, "major", where), _integer(capability, "minor", where, 0)
    if (major, minor) < OLDEST_COMPUTE_CAPABILITY:
        oldest = "".join(map(str, OLDEST_COMPUTE_CAPABILITY))
        raise TargetError(
            f"{where}: expected sm_{oldest} or newer, found sm_{major}{minor}; fix: give the "
            "configuration of a newer GPU, because the ptxas of CUDA 13 no longer generates code "
            "for this one"
        )
    return f"{major}.{minor}"


def _architecture(device: Message, where: str) -> str:
    """The name of an AMD GPU's architecture, without its features."""
    name = _block(device, "rocm_compute_capability", where).get("gcn_arch_name")
    match = re.match(r"gfx[0-9a-f]{3,4}\b", name) if isinstance(name, str) else None
    if match is None:
        raise TargetError(
            f'{where}: expected `gcn_arch_name: "gfx…"`, found {name!r}; fix: set this field'
        )
    return match.group()


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
