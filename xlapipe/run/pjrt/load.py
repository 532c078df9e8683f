"""Creates a client of the CUDA plugin, selects its device, loads executables. Imports no jax.

It also does what jax does when it is imported: compares the versions of CUDA's libraries, and
registers what executables call in jax's libraries. Kernels through Triton are part of the
executable, and the plugin has Mosaic GPU's call. Host callbacks cannot be built in advance. Only
what an executable calls is registered: jax's module for that imports numpy, which would delay the
loading of all others.
"""

import ctypes
import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

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

_PACKAGE = "jax_cuda13_plugin"
_PLATFORM = "CUDA"
_CAPSULE = b"pjrt_c_api"
# Threefry, the generator of random numbers.
_LIBRARIES = ("_prng",)
_FFI = "_ffi"
_SKIP = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
# A library's name, its prefix in jax's module, and the oldest version. jax compares those of cuDNN
# and cuFFT with a hundredth of the version that it was built with, which every version exceeds.
_OLDEST = (
    ("CUDA", "cuda_runtime", 12010),
    ("cuDNN", "cudnn", 0),
    ("cuFFT", "cufft", 0),
    ("cuPTI", "cupti", 18),
    ("cuBLAS", "cublas", 120100),
    ("cuSPARSE", "cusparse", 12100),
)
# cuDNN 9.10.0 has other values of enums than later ones.
_BROKEN_CUDNN = 91000
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


def check_cuda_versions(environment: Mapping[str, str] | None = None) -> None:
    """Compares the libraries that are loaded with the versions that jax's plugin needs.

    Does nothing if jax's own check is switched off.

    Raises:
      TargetError: a library is missing or outdated.
    """
    if (os.environ if environment is None else environment).get(_SKIP):
        return
    try:
        versions = import_module("jax_cuda13_plugin._versions")
    except ImportError as error:
        raise TargetError(f"jax's CUDA plugin: {error}; fix: install jax[cuda13]") from None
    problems = list(_problems(versions))
    if problems:
        raise TargetError(
            f"libraries that jax's CUDA plugin needs: {'; '.join(problems)}; fix: `xlapipe doctor` "
            "lists what is missing"
        )


def _problems(versions: Any) -> Iterator[str]:
    for name, prefix, needed in _OLDEST:
        try:
            version = _call(versions, f"{prefix}_get_version")
        except RuntimeError as error:
            yield f"{name} cannot be loaded: {error}"
            continue
        if version < needed:
            yield f"{name} {version}, expected at least {needed}"
        if name == "cuDNN" and version == _BROKEN_CUDNN != _call(versions, "cudnn_build_version"):
            yield f"{name} {version}, whose enums differ from those of later versions"


def _call(versions: Any, name: str) -> int:
    return int(getattr(versions, name)())


def register_custom_calls(api: PjrtApi, content: bytes) -> None:
    """Registers those of jax's functions for GPUs that an executable calls.

    They may have been registered before.

    Args:
      content: the executable, which contains the names of what it calls.

    Raises:
      TargetError: jax's plugin is not installed, or does not accept them.
    """
    try:
        for library in _LIBRARIES:
            targets: Mapping[str, Any] = import_module(f"{_PACKAGE}.{library}").registrations()
            for name, function in targets.items():
                if name.encode() in content:
                    _register(api, name, function)
    except (ImportError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise TargetError(
            f"{_PACKAGE}: its functions cannot be registered with its plugin: {error}; fix: "
            "install jax[cuda13]"
        ) from None


def _register(api: PjrtApi, name: str, function: Any) -> None:
    extension = import_module(f"{_PACKAGE}.cuda_plugin_extension")
    extension.register_custom_call_target(
        _capsule(api.address), name, function, _PLATFORM, int(name.endswith(_FFI)), 0
    )


def _capsule(address: int) -> Any:
    """The address of a PJRT_Api, as jax passes it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(address, _CAPSULE, None)
