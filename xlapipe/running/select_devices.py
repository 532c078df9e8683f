"""Selects the attached GPUs that an executable runs on; refuses GPUs it was not built for."""

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

import jax

from xlapipe.dumps.dump import read_checked_file
from xlapipe.dumps.manifest import Manifest
from xlapipe.environment.doctor import missing_to_communicate
from xlapipe.errors import DumpError, TargetError
from xlapipe.platforms import NVIDIA
from xlapipe.targets.target_config import target_attached
from xlapipe.targets.topology import Topology

_SAME_VERSION = ("jaxlib", "jax-cuda13-plugin")


def select_devices(path: Path, manifest: Manifest, hosts: int = 1) -> tuple[Any, ...]:
    """The GPUs to run on, in the order of the mesh.

    If more GPUs are attached than the mesh has, a single process uses the first ones.

    Args:
      path: folder of the executable, for messages.
      hosts: number of hosts that the processes run on.

    Raises:
      DumpError: the executable was built with other versions of jaxlib or the plugin.
      TargetError: it was built for a TPU; the attached GPUs differ from those that it was built
        for in number, kind or hosts; or NCCL is missing.
    """
    if manifest.platform != NVIDIA.name:
        raise TargetError(
            f"{path}: compiled for {manifest.target_description}, and executables run on NVIDIA "
            "GPUs only; fix: build it for a GPU"
        )
    _check_versions(path, manifest)
    count = prod((manifest.mesh or {}).values())
    attached = _attached_gpus()
    _check_hosts(path, manifest, count, hosts)
    devices = first_devices(path, manifest, attached)
    _check_nccl(path, count)
    _check_kind(path, manifest, devices)
    return devices


def first_devices(path: Path, manifest: Manifest, attached: Sequence[Any]) -> tuple[Any, ...]:
    """The first attached devices, one for each position of the mesh.

    Raises:
      TargetError: there are fewer, or several processes have more.
    """
    processes = jax.process_count()
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
            f"fix: launch {count} processes, one per GPU"
        )
    return tuple(attached[:count])


def _check_versions(path: Path, manifest: Manifest) -> None:
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


def _attached_gpus() -> list[Any]:
    try:
        return jax.devices("gpu")
    except RuntimeError as error:
        raise TargetError(
            f"no NVIDIA GPU is attached that jax can use: {error}; fix: `xlapipe doctor` lists "
            "what is missing"
        ) from None


def _check_hosts(path: Path, manifest: Manifest, count: int, hosts: int) -> None:
    topology = manifest.topology
    built_hosts = Topology.parse(topology).hosts if topology is not None else 1
    if built_hosts != hosts:
        raise TargetError(
            f"{path}: built for topology {topology or '1x1'} (hosts: {built_hosts}), found hosts: "
            f"{hosts}; fix: build it with --topology {hosts}x{count // hosts}, or give `xlapipe "
            f"launch` --hosts {built_hosts}"
        )


def _check_nccl(path: Path, count: int) -> None:
    missing = missing_to_communicate() if count > 1 else None
    if missing is not None:
        raise TargetError(
            f"{path}: built for {count} GPUs, which communicate through NCCL: {missing.problem}"
        )


def _check_kind(path: Path, manifest: Manifest, devices: Sequence[Any]) -> None:
    """Refuses a GPU of another name or compute capability than the target's."""
    config_text = read_checked_file(path, manifest, "target_config.txtpb").decode()
    built_for = target_attached(config_text).compute_capability
    for device in devices:
        capability = str(device.compute_capability)
        same_name = manifest.target_description.startswith(device.device_kind)
        if not same_name or built_for != capability:
            which = f"GPU {device.id}" if len(devices) > 1 else "the attached GPU"
            raise TargetError(
                f"{path}: built for {manifest.target_description} (compute capability "
                f"{built_for}), {which} is {device.device_kind} ({capability}); fix: build it "
                "with --target attached on this machine"
            )
