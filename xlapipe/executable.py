"""Loads a built executable onto the attached GPU.

The executable is PJRT's own serialisation, and never a pickle: what is loaded is held against the
manifest's digest first, and everything else about it is plain data.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
from jax._src.lib import xla_client

from xlapipe.dump import EXECUTABLE, Manifest, read_file, read_manifest
from xlapipe.errors import DumpError, TargetError
from xlapipe.targets.textproto import parse


@dataclass(frozen=True)
class LoadedExecutable:
    """An executable on its device.

    Attributes:
      path: of the folder that it was built into.
      manifest: of that folder, with the leaves of arguments and outputs.
    """

    path: Path
    manifest: Manifest
    device: Any
    _executable: Any

    def call(self, leaves: Sequence[Any]) -> list[Any]:
        """Outputs in the order of `manifest.outputs`; not waited for.

        Args:
          leaves: arrays on the device, one for each of `manifest.arguments`. Donated ones are
            gone afterwards.
        """
        numbered = zip(self.manifest.arguments, leaves, strict=True)
        used = {leaf.parameter_number: value for leaf, value in numbered}
        used.pop(None, None)
        return self.call_numbered(used)

    def call_numbered(self, parameters: Any) -> list[Any]:
        """The same with arrays by parameter number, of those that the program uses."""
        arguments = [parameters[number] for number in sorted(parameters)]
        shards = self._executable.execute_sharded(arguments)
        return [shard[0] for shard in shards.disassemble_into_single_device_arrays()]


def load_executable(path: Path, device: Any = None) -> LoadedExecutable:
    """Loads the executable of a folder that `xlapipe build` made.

    Args:
      device: of `device_for`, which is asked by default.

    Raises:
      DumpError: it is damaged, or holds no executable, or this jaxlib cannot load it.
      TargetError: as `device_for` does.
    """
    manifest = built_manifest(path)
    device = device_for(path, manifest) if device is None else device
    content = read_file(path, EXECUTABLE)
    # The file was held against its digest; hold the very bytes that are loaded too.
    if hashlib.sha256(content).hexdigest() != manifest.files[EXECUTABLE]:
        raise DumpError(f"{path / EXECUTABLE}: changed while it was read")
    devices = xla_client.DeviceList((device,))
    try:
        executable = device.client.deserialize_executable(content, executable_devices=devices)
    except RuntimeError as error:
        raise DumpError(
            f"{path / EXECUTABLE}: this jaxlib cannot load it: {error}; build it again"
        ) from None
    return LoadedExecutable(path, manifest, device, executable)


def built_manifest(path: Path) -> Manifest:
    """The manifest of a folder that `xlapipe build` made, its files held against it.

    Raises:
      DumpError: it is damaged, or holds no executable.
    """
    manifest = read_manifest(path)
    if EXECUTABLE not in manifest.files:
        raise DumpError(f"{path}: holds no executable; `xlapipe build` makes one")
    return manifest


def device_for(path: Path, manifest: Manifest) -> Any:
    """The attached GPU, which is the one that the executable was built for.

    Raises:
      DumpError: it was built by other versions, or for several devices.
      TargetError: no GPU, or another one.
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
    if manifest.mesh is not None:
        raise DumpError(
            f"{path}: built for the mesh {dict(manifest.mesh)}; only one device is loaded onto"
        )
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError as error:
        raise TargetError(
            f"no NVIDIA GPU is attached that jax can use: {error}; `xlapipe doctor` says what is "
            "missing"
        ) from None
    capability = str(device.compute_capability)
    config = read_file(path, "target_config.txtpb").decode()
    built_for = compute_capability(config)
    described = manifest.target_description.startswith(device.device_kind)
    if not described or built_for != capability:
        raise TargetError(
            f"{path}: built for {manifest.target_description} (compute capability "
            f"{built_for}), attached is {device.device_kind} ({capability}); build it for that"
        )
    return device


def compute_capability(config_text: str) -> str:
    """`9.0` of a GpuTargetConfigProto."""
    info: Any = parse(config_text).fields.get("gpu_device_info", {})
    found = info.get("cuda_compute_capability", {})
    return f"{found.get('major', 0)}.{found.get('minor', 0)}"
