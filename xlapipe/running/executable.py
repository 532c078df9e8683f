"""Loads a built executable onto the attached GPUs.

The executable is in PJRT's serialised form, never a pickle. Its bytes are compared with the
manifest's digest when they are read; all that describes it is plain data.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from jax._src.lib import xla_client
from jax.sharding import NamedSharding, SingleDeviceSharding

from xlapipe.dumps.dump import EXECUTABLE, read_checked_file, read_manifest
from xlapipe.dumps.manifest import Manifest
from xlapipe.errors import DumpError
from xlapipe.lowering.specs import mesh_over, named
from xlapipe.plan.program import ArgumentLeaf, OutputLeaf
from xlapipe.platforms.nvidia import MOSAIC_CALL, NVIDIA
from xlapipe.running.select_devices import select_devices
from xlapipe.running.stored_arrays import stored_array

_MOSAIC_RUNTIME = "libmosaic_gpu_runtime.so"


@dataclass(frozen=True)
class LoadedExecutable:
    """An executable on its devices.

    Attributes:
      path: the folder that it was built into.
      manifest: the folder's manifest, with the leaves of arguments and outputs.
      devices: jax devices of all processes, in the order of the mesh.
    """

    path: Path
    manifest: Manifest
    devices: tuple[Any, ...]
    _executable: Any

    @property
    def device(self) -> Any:
        """The first device of this process."""
        return self.local_devices[0]

    @property
    def local_devices(self) -> tuple[Any, ...]:
        """The devices of this process."""
        index = jax.process_index()
        return tuple(device for device in self.devices if device.process_index == index)

    def place(self, leaf: ArgumentLeaf, value: Any) -> Any:
        """Places a value in the memory and with the sharding that the program expects.

        Args:
          value: the whole array, on the host.

        Raises:
          DumpError: the manifest does not hold the leaf's sharding.
        """
        if len(self.devices) == 1:
            place = SingleDeviceSharding(self.devices[0], memory_kind=leaf.memory_kind)
            return jax.device_put(value, place)
        return jax.make_array_from_callback(value.shape, self._sharding(leaf), value.__getitem__)

    def call(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs the program; does not wait for the outputs.

        Args:
          leaves: arrays on the devices, one for each of `manifest.arguments`. Donated ones are
            deleted.

        Returns:
          The outputs, in the order of `manifest.outputs`.
        """
        numbered = zip(self.manifest.arguments, leaves, strict=True)
        used = {leaf.parameter_number: value for leaf, value in numbered}
        used.pop(None, None)
        return self.call_numbered(used)

    def call_numbered(self, parameters: Mapping[Any, Any]) -> list[Any]:
        """Runs the program as `call` does.

        Args:
          parameters: arrays on the devices by parameter number, without unused arguments.
        """
        arguments = [parameters[number] for number in sorted(parameters)]
        results = self._executable.execute_sharded(arguments)
        shards = results.disassemble_into_single_device_arrays()
        if len(self.devices) == 1:
            return [shard[0] for shard in shards]
        return [
            jax.make_array_from_single_device_arrays(
                stored_array(leaf.shape, leaf.dtype)[0], self._sharding(leaf), pieces
            )
            for leaf, pieces in zip(self.manifest.outputs, shards, strict=True)
        ]

    @cached_property
    def _shardings(self) -> dict[ArgumentLeaf | OutputLeaf, NamedSharding | SingleDeviceSharding]:
        mesh = mesh_over(self.manifest.mesh or {}, self.devices)
        leaves: tuple[ArgumentLeaf | OutputLeaf, ...]
        leaves = (*self.manifest.arguments, *self.manifest.outputs)
        return {
            leaf: named(mesh, leaf.spec, leaf.memory_kind)
            for leaf in leaves
            if leaf.spec is not None
        }

    def _sharding(self, leaf: ArgumentLeaf | OutputLeaf) -> Any:
        try:
            return self._shardings[leaf]
        except (KeyError, ValueError) as error:
            raise DumpError(
                f"{self.path}: the manifest does not hold the sharding of {leaf.path} over the "
                f"mesh {dict(self.manifest.mesh or {})}: {error}; fix: build it again"
            ) from None


@dataclass(frozen=True)
class BuiltExecutable:
    """An executable in a folder that `xlapipe build` made, in host memory.

    Attributes:
      content: what XLA serialised; its digest is that in the manifest.
    """

    path: Path
    manifest: Manifest
    content: bytes


def read_executable(path: Path) -> BuiltExecutable:
    """Reads the executable of a folder that `xlapipe build` made; needs no GPU.

    Raises:
      DumpError: the folder is damaged or holds no executable.
    """
    manifest = built_manifest(path)
    return BuiltExecutable(path, manifest, read_checked_file(path, manifest, EXECUTABLE))


def load_executable(
    built: Path | BuiltExecutable, devices: Sequence[Any] | None = None
) -> LoadedExecutable:
    """Loads an executable. Several threads may load different ones at once.

    Args:
      built: the executable, or the folder that `xlapipe build` made.
      devices: the result of `select_devices`, which is called by default.

    Raises:
      DumpError: the folder is damaged or holds no executable, or this jaxlib cannot load it.
      TargetError: as `select_devices`.
    """
    if isinstance(built, Path):
        built = read_executable(built)
    path, manifest = built.path, built.manifest
    devices = tuple(select_devices(path, manifest) if devices is None else devices)
    if MOSAIC_CALL.encode() in built.content:
        _locate_mosaic_runtime()
    try:
        executable = devices[0].client.deserialize_executable(
            built.content, executable_devices=xla_client.DeviceList(devices)
        )
    except RuntimeError as error:
        raise DumpError(
            f"{path / EXECUTABLE}: this jaxlib cannot load it: {error}; fix: build it again"
        ) from None
    return LoadedExecutable(path, manifest, devices, executable)


def _locate_mosaic_runtime() -> None:
    """Sets the path of the library that Mosaic GPU kernels call.

    Importing `jax.experimental.mosaic.gpu` does the same, but takes half a second.
    """
    try:
        extension = import_module("jax._src.lib.mosaic_gpu")._mosaic_gpu_ext
        library = Path(extension.__file__).parent / _MOSAIC_RUNTIME
    except (ImportError, AttributeError):
        library = Path()
    if library.is_file():
        os.environ["MOSAIC_GPU_RUNTIME_LIB_PATH"] = str(library)
    else:
        import_module("jax.experimental.mosaic.gpu")


def built_manifest(path: Path) -> Manifest:
    """The manifest of a folder that `xlapipe build` made.

    Checks no digests: the files that a plan is read from may take longer to decompress than the
    executable to load. Files are checked where they are read.

    Raises:
      DumpError: the manifest is missing or damaged, or lists no executable.
    """
    manifest = read_manifest(path, check_files=False)
    if EXECUTABLE not in manifest.files and manifest.platform != NVIDIA.name:
        raise DumpError(
            f"{path}: holds a plan for {manifest.device}, and executables are built for NVIDIA "
            "GPUs only; fix: run a folder that `xlapipe build` made for a GPU"
        )
    if EXECUTABLE not in manifest.files:
        raise DumpError(f"{path}: holds no executable; fix: make one with `xlapipe build`")
    return manifest
