"""The attached GPUs, held against what an executable was built for."""

import os
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

import jax

from xlapipe.dumps.dump import read_file
from xlapipe.dumps.manifest import Manifest
from xlapipe.environment.doctor import missing_to_communicate
from xlapipe.errors import DumpError, TargetError
from xlapipe.platforms.textproto import parse
from xlapipe.targets.topology import Topology


def devices_for(path: Path, manifest: Manifest, hosts: int = 1) -> tuple[Any, ...]:
    """The GPUs to run on, in the order of the mesh: those of the kind that it was built for.

    Of more GPUs than the mesh has, one process takes the first ones.

    Args:
      hosts: that the processes are on.

    Raises:
      DumpError: it was built by other versions.
      TargetError: no GPU, fewer than the mesh has, others than it was built for, or more in
        several processes; or NCCL is missing.
    """
    for package in ("jaxlib", "jax-cuda13-plugin"):
        try:
            installed = version(package)
        except PackageNotFoundError:
            installed = "none"
        if manifest.versions[package] != installed:
            raise DumpError(
                f"{path}: built with {package} {manifest.versions[package]}, here is "
                f"{installed}; build it again with this one, or install that one"
            )
    count = prod((manifest.mesh or {}).values())
    try:
        attached = jax.devices("gpu")
    except RuntimeError as error:
        raise TargetError(
            f"no NVIDIA GPU is attached that jax can use: {error}; `xlapipe doctor` says what is "
            "missing"
        ) from None
    built_hosts = Topology.parse(manifest.topology).hosts if manifest.topology is not None else 1
    if built_hosts != hosts:
        raise TargetError(
            f"{path}: built for the topology {manifest.topology or '1x1'}, {built_hosts} hosts; "
            f"this is {hosts}; build it again with --topology {hosts}x{count // hosts}, or "
            "`xlapipe launch` it on as many hosts"
        )
    devices = _enough(path, manifest, count, attached)
    missing = missing_to_communicate() if count > 1 else None
    if missing is not None:
        raise TargetError(
            f"{path}: built for {count} GPUs, which communicate through NCCL: {missing.problem}"
        )
    config = read_file(path, "target_config.txtpb").decode()
    built_for = compute_capability(config)
    for device in devices:
        capability = str(device.compute_capability)
        described = manifest.target_description.startswith(device.device_kind)
        if not described or built_for != capability:
            which = f"GPU {device.id}" if count > 1 else "attached"
            raise TargetError(
                f"{path}: built for {manifest.target_description} (compute capability "
                f"{built_for}), {which} is {device.device_kind} ({capability}); build it for that"
            )
    return devices


def _enough(path: Path, manifest: Manifest, count: int, attached: list[Any]) -> tuple[Any, ...]:
    """The GPUs that the mesh is laid over."""
    processes = jax.process_count()
    mesh = f"the mesh {dict(manifest.mesh)}, {count} GPUs" if manifest.mesh else "1 GPU"
    if len(attached) < count:
        found = f"{len(attached)} of {processes} processes" if processes > 1 else len(attached)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
        raise TargetError(
            f"{path}: built for {mesh}; attached: {found}{seen}; run it where there are {count}, "
            f"or build it for fewer"
        )
    if processes > 1 and len(attached) > count:
        raise TargetError(
            f"{path}: built for {mesh}; {processes} processes have {len(attached)}; every process "
            f"takes part, so launch {count}, one for each GPU"
        )
    return tuple(attached[:count])


def compute_capability(config_text: str) -> str:
    """`9.0` of a GpuTargetConfigProto."""
    info: Any = parse(config_text).fields.get("gpu_device_info", {})
    found = info.get("cuda_compute_capability", {})
    return f"{found.get('major', 0)}.{found.get('minor', 0)}"
