"""Loads a built executable onto the attached GPUs.

The executable is PJRT's own serialisation, and never a pickle: what is loaded is held against the
manifest's digest first, and everything else about it is plain data.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from jax._src.lib import xla_client
from jax.sharding import NamedSharding, SingleDeviceSharding

from xlapipe.dumps.dump import EXECUTABLE, read_file, read_manifest
from xlapipe.dumps.manifest import Manifest
from xlapipe.errors import DumpError
from xlapipe.lowering.specs import mesh_over, named
from xlapipe.plan.program import ArgumentLeaf, OutputLeaf
from xlapipe.platforms.nvidia import MOSAIC_CALL
from xlapipe.running.select_devices import devices_for


@dataclass(frozen=True)
class LoadedExecutable:
    """An executable on its devices.

    Attributes:
      path: of the folder that it was built into.
      manifest: of that folder, with the leaves of arguments and outputs.
      devices: of all processes, in the order of the mesh.
    """

    path: Path
    manifest: Manifest
    devices: tuple[Any, ...]
    _executable: Any

    @property
    def device(self) -> Any:
        """The first one of this process."""
        return self.local_devices[0]

    @property
    def local_devices(self) -> tuple[Any, ...]:
        """Those of this process."""
        return tuple(each for each in self.devices if each.process_index == jax.process_index())

    def place(self, leaf: ArgumentLeaf, value: Any) -> Any:
        """A whole value on the host, put on the devices as the program takes it.

        Raises:
          DumpError: the manifest does not tell how.
        """
        if len(self.devices) == 1:
            return jax.device_put(value, self.devices[0])
        return jax.make_array_from_callback(leaf.shape, self._sharding(leaf), value.__getitem__)

    def call(self, leaves: Sequence[Any]) -> list[Any]:
        """Outputs in the order of `manifest.outputs`; not waited for.

        Args:
          leaves: arrays on the devices, one for each of `manifest.arguments`. Donated ones are
            gone afterwards.
        """
        numbered = zip(self.manifest.arguments, leaves, strict=True)
        used = {leaf.parameter_number: value for leaf, value in numbered}
        used.pop(None, None)
        return self.call_numbered(used)

    def call_numbered(self, parameters: Mapping[Any, Any]) -> list[Any]:
        """The same with arrays by parameter number, of those that the program uses."""
        arguments = [parameters[number] for number in sorted(parameters)]
        results = self._executable.execute_sharded(arguments)
        shards = results.disassemble_into_single_device_arrays()
        if len(self.devices) == 1:
            return [shard[0] for shard in shards]
        return [
            jax.make_array_from_single_device_arrays(leaf.shape, self._sharding(leaf), pieces)
            for leaf, pieces in zip(self.manifest.outputs, shards, strict=True)
        ]

    @cached_property
    def _shardings(self) -> dict[ArgumentLeaf | OutputLeaf, NamedSharding | SingleDeviceSharding]:
        mesh = mesh_over(self.manifest.mesh or {}, self.devices)
        leaves: tuple[ArgumentLeaf | OutputLeaf, ...]
        leaves = (*self.manifest.arguments, *self.manifest.outputs)
        return {leaf: named(mesh, leaf.spec) for leaf in leaves if leaf.spec is not None}

    def _sharding(self, leaf: ArgumentLeaf | OutputLeaf) -> Any:
        try:
            return self._shardings[leaf]
        except (KeyError, ValueError) as error:
            raise DumpError(
                f"{self.path}: the manifest does not say how {leaf.path} lies over the mesh "
                f"{dict(self.manifest.mesh or {})}: {error}; build it again"
            ) from None


def load_executable(path: Path, devices: Sequence[Any] | None = None) -> LoadedExecutable:
    """Loads the executable of a folder that `xlapipe build` made.

    Args:
      devices: of `devices_for`, which is asked by default.

    Raises:
      DumpError: it is damaged, or holds no executable, or this jaxlib cannot load it.
      TargetError: as `devices_for` does.
    """
    manifest = built_manifest(path)
    devices = tuple(devices_for(path, manifest) if devices is None else devices)
    content = read_file(path, EXECUTABLE)
    # The file was held against its digest; hold the very bytes that are loaded too.
    if hashlib.sha256(content).hexdigest() != manifest.files[EXECUTABLE]:
        raise DumpError(f"{path / EXECUTABLE}: changed while it was read")
    if MOSAIC_CALL.encode() in content:
        _find_mosaic_runtime()
    try:
        executable = devices[0].client.deserialize_executable(
            content, executable_devices=xla_client.DeviceList(devices)
        )
    except RuntimeError as error:
        raise DumpError(
            f"{path / EXECUTABLE}: this jaxlib cannot load it: {error}; build it again"
        ) from None
    return LoadedExecutable(path, manifest, devices, executable)


def _find_mosaic_runtime() -> None:
    """Tells XLA where the library is that kernels of Mosaic GPU call: importing this does."""
    import_module("jax.experimental.mosaic.gpu")


def built_manifest(path: Path) -> Manifest:
    """The manifest of a folder that `xlapipe build` made, its files held against it.

    Raises:
      DumpError: it is damaged, or holds no executable.
    """
    manifest = read_manifest(path)
    if EXECUTABLE not in manifest.files:
        raise DumpError(f"{path}: holds no executable; `xlapipe build` makes one")
    return manifest
