"""Creates a client of the CUDA plugin, selects its device, loads executables. Imports no jax."""

import os
from functools import cache
from pathlib import Path
from threading import Lock

from xlapipe.devices.pjrt.c_api import PjrtApi, PjrtError
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import DumpError, TargetError
from xlapipe.run.built_executable import BuiltExecutable, locate_mosaic_runtime
from xlapipe.run.check_devices import (
    check_build,
    check_hosts,
    check_kind,
    first_of,
    no_gpu,
)
from xlapipe.run.cuda_context import gpus_are_selected, load_libraries
from xlapipe.run.pjrt.client import Client, Device, Executable, client_options, plugin_path
from xlapipe.run.pjrt.cuda_versions import check_cuda_versions
from xlapipe.run.pjrt.custom_calls import register_custom_calls

_ONE_CLIENT = Lock()


def shared_client() -> Client:
    """The client of this process; a second one would find most of the GPU's memory taken.

    Raises:
      TargetError: as `create_client`.
    """
    with _ONE_CLIENT:
        return _created_once()


@cache
def _created_once() -> Client:
    return create_client()


def create_client() -> Client:
    """A client of all visible GPUs, created as jax creates its own.

    Raises:
      TargetError: there is no GPU that it can use, the plugin is missing or differs from the one
        that this module is written for, or CUDA's libraries are outdated.
    """
    if not gpus_are_selected():
        raise no_gpu(f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}", "XLA")
    library = plugin_path()
    if library is None:
        raise TargetError("jax's CUDA plugin is not installed; fix: install jax[cuda13]")
    load_libraries()
    try:
        api = PjrtApi(library)
        client = Client(api, client_options())
    except (PjrtError, OSError, ValueError) as error:
        raise no_gpu(error, "XLA") from None
    check_cuda_versions()
    return client


def select_device(path: Path, manifest: Manifest, client: Client) -> Device:
    """The first GPU of the client; it must be the kind that the executable was built for.

    Args:
      path: folder of the executable, for messages.

    Raises:
      DumpError: the executable was built with other versions of jaxlib or the plugin.
      TargetError: it was built for a TPU, for several GPUs, or for another GPU.
    """
    check_build(path, manifest)
    check_hosts(path, manifest, hosts=1)
    devices = first_of(path, manifest, client.devices)
    if len(devices) != 1:
        raise TargetError(f"{path}: built for {len(devices)} GPUs, expected 1; fix: `xlapipe run`")
    check_kind(path, manifest, devices)
    device: Device = devices[0]
    return device


def load_executable(built: BuiltExecutable, client: Client) -> Executable:
    """Loads an executable. Several threads may load different ones at once.

    Raises:
      DumpError: this plugin cannot load it, a library that its kernels call is missing, or its
        outputs are not those of the manifest.
      TargetError: jax's plugin is not installed whole.
    """
    if built.has_mosaic_kernels and not locate_mosaic_runtime():
        raise DumpError(
            f"{built.path}: expected the library that its Mosaic GPU kernels call in the package "
            "jax_cuda13_plugin, found none; fix: install jax[cuda13]"
        )
    register_custom_calls(client.api, built.content)
    try:
        executable = client.load(built.pjrt_content)
    except PjrtError as error:
        raise built.not_loaded(error) from None
    if executable.outputs != tuple((leaf.shape, leaf.dtype) for leaf in built.manifest.outputs):
        raise DumpError(
            f"{built.path}: its outputs have other shapes or dtypes than the manifest lists; fix: "
            "build it again"
        )
    return executable
