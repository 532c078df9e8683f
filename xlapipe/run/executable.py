"""Selects the attached GPUs of a built executable, and loads it onto them, through jax."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, SingleDeviceSharding

from xlapipe.compile.lowering.leaves import mesh_over, named
from xlapipe.devices.environment.machine import Machine, hide_missing_gpu
from xlapipe.devices.platforms.nvidia import MOSAIC_CALL
from xlapipe.dump.dump import EXECUTABLE
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import DumpError, TargetError
from xlapipe.jax_private import DeviceList
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf
from xlapipe.run.built_executable import BuiltExecutable, read_executable
from xlapipe.run.check_devices import check_build, check_hosts, check_kind, first_of, no_gpu
from xlapipe.run.inputs import stored_array

_NCCL = "libnccl.so.2"


@dataclass(frozen=True)
class LoadedExecutable:
    """An executable on its devices, with the folder that it was built into and the manifest there.

    The devices are jax's, of all processes, in the order of the mesh.
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
        index = jax.process_index()
        return tuple(device for device in self.devices if device.process_index == index)

    def place(self, leaf: ArgumentLeaf, value: Any) -> Any:
        """Places a value in the memory and with the sharding that the program expects.

        It is the whole array, on the host, or an output of a program on these devices.
        """
        if len(self.devices) == 1:
            place = SingleDeviceSharding(self.devices[0], memory_kind=leaf.memory_kind)
            with jax.enable_x64(True):  # the array's own type, whatever the process has set
                return jax.device_put(value, place)
        sharding = self._sharding(leaf)
        if isinstance(value, jax.Array) and value.sharding == sharding:
            return value
        return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)

    def execute(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the program; does not wait for the outputs, in the order of `manifest.outputs`.

        The arguments are in the order of parameter numbers, without unused ones. Donated ones are
        deleted.
        """
        results = self._executable.execute_sharded([*arguments])
        shards = results.disassemble_into_single_device_arrays()
        if len(self.devices) == 1:
            return [shard[0] for shard in shards]
        return [
            jax.make_array_from_single_device_arrays(
                stored_array(leaf.shape, leaf.dtype).shape, self._sharding(leaf), pieces
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


def load_executable(
    built: Path | BuiltExecutable, devices: Sequence[Any] | None = None
) -> LoadedExecutable:
    """Loads an executable. Several threads may load different ones at once."""
    if isinstance(built, Path):
        built = read_executable(built)
    path, manifest = built.path, built.manifest
    devices = tuple(select_devices(path, manifest) if devices is None else devices)
    if MOSAIC_CALL.encode() in built.content:
        import_module("jax.experimental.mosaic.gpu")  # finds the library that the kernels call
    try:
        executable = devices[0].client.deserialize_executable(
            built.content, executable_devices=DeviceList(devices)
        )
    except RuntimeError as error:
        raise DumpError(
            f"{path / EXECUTABLE}: this jaxlib cannot load it: {error}; fix: build it again"
        ) from None
    return LoadedExecutable(path, manifest, devices, executable)


def select_devices(path: Path, manifest: Manifest, hosts: int = 1) -> tuple[Any, ...]:
    """The GPUs to run on, in the order of the mesh.

    If more GPUs are attached than the mesh has, a single process uses the first ones.
    """
    check_build(path, manifest)
    hide_missing_gpu()
    try:
        attached = jax.devices("gpu")
    except RuntimeError as error:
        raise no_gpu(error) from None
    check_hosts(path, manifest, hosts)
    devices = first_of(path, manifest, attached, jax.process_count())
    _check_nccl(path, prod((manifest.mesh or {}).values()))
    check_kind(path, manifest, devices)
    return devices


def _check_nccl(path: Path, count: int) -> None:
    if count > 1 and Machine.local().library(_NCCL) is None:
        raise TargetError(
            f"{path}: built for {count} GPUs, which communicate through {_NCCL}, which is not "
            "found in XLA's search paths; fix: pip install nvidia-nccl-cu13"
        )
