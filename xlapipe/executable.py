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

from xlapipe.dump import EXECUTABLE, Dump, open_dump, read_file
from xlapipe.errors import DumpError, TargetError
from xlapipe.targets.textproto import parse


@dataclass(frozen=True)
class LoadedExecutable:
    """An executable on its device.

    Attributes:
      dump: what it was built as; `dump.manifest` has the leaves of its arguments and outputs.
    """

    dump: Dump
    device: Any
    _executable: Any

    def call(self, leaves: Sequence[Any]) -> list[Any]:
        """Outputs in the order of `manifest.outputs`; not waited for.

        Args:
          leaves: arrays on the device, one for each of `manifest.arguments`. Donated ones are
            gone afterwards.
        """
        numbered = zip(self.dump.manifest.arguments, leaves, strict=True)
        used = {leaf.parameter_number: value for leaf, value in numbered}
        used.pop(None, None)
        return self.call_numbered(used)

    def call_numbered(self, parameters: Any) -> list[Any]:
        """The same with arrays by parameter number, of those that the program uses."""
        arguments = [parameters[number] for number in sorted(parameters)]
        shards = self._executable.execute_sharded(arguments)
        return [shard[0] for shard in shards.disassemble_into_single_device_arrays()]


def open_built(folder: Path) -> Dump:
    """The dump of a folder that `xlapipe build` made.

    Raises:
      DumpError: it is damaged, or holds no executable.
    """
    dump = open_dump(folder)
    if EXECUTABLE not in dump.manifest.files:
        raise DumpError(f"{folder}: holds no executable; `xlapipe build` makes one")
    return dump


def load_executable(dump: Dump, device: Any) -> LoadedExecutable:
    """Loads the executable of a dump.

    Args:
      dump: of `open_built`.
      device: of `device_for(dump)`.

    Raises:
      DumpError: it is not what the manifest says, or this jaxlib cannot load it.
    """
    content = read_file(dump.path, EXECUTABLE)
    # open_dump has held the file against its digest; hold the very bytes that are loaded too.
    if hashlib.sha256(content).hexdigest() != dump.manifest.files[EXECUTABLE]:
        raise DumpError(f"{dump.path / EXECUTABLE}: changed while it was read")
    devices = xla_client.DeviceList((device,))
    try:
        executable = device.client.deserialize_executable(content, executable_devices=devices)
    except RuntimeError as error:
        raise DumpError(
            f"{dump.path / EXECUTABLE}: this jaxlib cannot load it: {error}; build it again"
        ) from None
    return LoadedExecutable(dump, device, executable)


def device_for(dump: Dump) -> Any:
    """The attached GPU, which is the one that the executable was built for.

    Raises:
      DumpError: it was built by other versions, or for several devices.
      TargetError: no GPU, or another one.
    """
    manifest = dump.manifest
    for package in ("jaxlib", "jax-cuda13-plugin"):
        try:
            installed = version(package)
        except PackageNotFoundError:
            installed = "none"
        if manifest.versions[package] != installed:
            raise DumpError(
                f"{dump.path}: built with {package} {manifest.versions[package]}, here is "
                f"{installed}; build it again with this one, or install that one"
            )
    if manifest.mesh is not None:
        raise DumpError(
            f"{dump.path}: built for the mesh {dict(manifest.mesh)}; `run` takes one device"
        )
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError as error:
        raise TargetError(
            f"no NVIDIA GPU is attached that jax can use: {error}; `xlapipe doctor` says what is "
            "missing"
        ) from None
    capability = str(device.compute_capability)
    config = read_file(dump.path, "target_config.txtpb").decode()
    built_for = compute_capability(config)
    described = manifest.target_description.startswith(device.device_kind)
    if not described or built_for != capability:
        raise TargetError(
            f"{dump.path}: built for {manifest.target_description} (compute capability "
            f"{built_for}), attached is {device.device_kind} ({capability}); build it for that"
        )
    return device


def compute_capability(config_text: str) -> str:
    """`9.0` of a GpuTargetConfigProto."""
    info: Any = parse(config_text).fields.get("gpu_device_info", {})
    found = info.get("cuda_compute_capability", {})
    return f"{found.get('major', 0)}.{found.get('minor', 0)}"
