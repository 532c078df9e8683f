"""Checks of the attached GPUs against those that an executable was built for. Imports no jax."""

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.catalogue import is_same_device
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.devices.targets.topology import Topology
from xlapipe.dump.dump import read_checked_file
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import DumpError, TargetError

_SAME_VERSION = ("jaxlib", "jax-cuda13-plugin")


def check_build(path: Path, manifest: Manifest) -> None:
    """Checks what needs no device: the platform, and the versions that are installed."""
    if not platform_named(manifest.platform).builds_executables:
        raise TargetError(
            f"{path}: compiled for {manifest.target_description}, and executables run on NVIDIA "
            "GPUs only; fix: build it for a GPU"
        )
    for package in _SAME_VERSION:
        try:
            installed = version(package)
        except PackageNotFoundError:
            installed = "not installed"
        built_with = manifest.versions[package]
        if built_with != installed:
            raise DumpError(
                f"{path}: built with {package} {built_with}, found {installed}; fix: build it "
                f"again here, or install {package}=={built_with}"
            )


def no_gpu(error: object) -> TargetError:
    """The error that no GPU is attached that jax can use."""
    return TargetError(
        f"no NVIDIA GPU is attached that jax can use: {error}; fix: compare "
        "`nvidia-smi`, and install jax's CUDA libraries: pip install 'jax[cuda13]'"
    )


def first_of(
    path: Path, manifest: Manifest, attached: Sequence[Any], processes: int = 1
) -> tuple[Any, ...]:
    """The first attached devices, one for each position of the mesh."""
    count = prod((manifest.mesh or {}).values())
    mesh = f"the mesh {dict(manifest.mesh)}, {count} GPUs" if manifest.mesh else "1 GPU"
    if len(attached) < count:
        in_processes = f" in {processes} processes" if processes > 1 else ""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        setting = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
        raise TargetError(
            f"{path}: built for {mesh}; attached: {len(attached)}{in_processes}{setting}; "
            f"fix: run it on {count} GPUs, or build it for fewer"
        )
    if processes > 1 and len(attached) > count:
        raise TargetError(
            f"{path}: built for {mesh}; {processes} processes have {len(attached)} GPUs; "
            f"fix: start {count} processes, one per GPU"
        )
    return tuple(attached[:count])


def check_hosts(path: Path, manifest: Manifest, hosts: int) -> None:
    """Raises TargetError if the executable was built for another number of hosts."""
    topology = manifest.topology
    built_hosts = Topology.parse(topology).hosts if topology is not None else 1
    if built_hosts != hosts:
        count = prod((manifest.mesh or {}).values())
        raise TargetError(
            f"{path}: built for topology {topology or '1x1'} (hosts: {built_hosts}), found hosts: "
            f"{hosts}; fix: build it with --topology {hosts}x{count // hosts}, or run it on "
            f"{built_hosts}"
        )


def check_kind(path: Path, manifest: Manifest, devices: Sequence[Any]) -> None:
    """Raises TargetError for a GPU of another name or compute capability than the target's."""
    config_text = read_checked_file(path, manifest, "target_config.txtpb").decode()
    built_for = target_attached(config_text).compute_capability
    for device in devices:
        capability = str(device.compute_capability)
        same_name = is_same_device(manifest.target_description, device.device_kind)
        if not same_name or built_for != capability:
            which = f"GPU {device.id}" if len(devices) > 1 else "the attached GPU"
            raise TargetError(
                f"{path}: built for {manifest.target_description} (compute capability "
                f"{built_for}), {which} is {device.device_kind} ({capability}); fix: build it "
                "with --target attached on this machine"
            )
