"""A client of the CUDA plugin: its devices, and buffers and executables on them. Imports no jax.

Calls release the GIL, and may be made from several threads. numpy is imported when the first array
is copied: importing it takes as long as creating a client, which can load executables meanwhile.
"""

import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_int64, c_void_p
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from xlapipe.devices.pjrt.c_api import PjrtApi
from xlapipe.devices.pjrt.structs import OPTIONAL_STATS, ExecuteOptions, NamedValue

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_PACKAGE, _LIBRARY = "jax_plugins.xla_cuda13", "xla_cuda_plugin.so"
# PJRT_Buffer_Type, of the types that numpy has, with ml_dtypes, in whole bytes.
ELEMENT_TYPES: Mapping[str, int] = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "bfloat16": 13,
    "complex64": 14,
    "complex128": 15,
    "float8_e5m2": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3b11fnuz": 18,
    "float8_e5m2fnuz": 19,
    "float8_e4m3fnuz": 20,
    "float8_e4m3": 26,
    "float8_e3m4": 27,
    "float8_e8m0fnu": 28,
}
_DTYPES = {number: name for name, number in ELEMENT_TYPES.items()}
# PJRT_HostBufferSemantics: the array is unchanged until the copy is complete.
_UNTIL_TRANSFER_COMPLETES = 1

Option: TypeAlias = str | int | float | bool | list[int]


def plugin_path() -> Path | None:
    """The CUDA plugin's library; None if it is not installed. Does not import its package."""
    try:
        spec = find_spec(_PACKAGE)
    except ImportError:  # the parent package is missing
        return None
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return next((path for folder in folders if (path := Path(folder) / _LIBRARY).is_file()), None)


class Client:
    """A client of the plugin, with everything that it holds on the devices.

    It is destroyed when Python exits, after its buffers and executables.

    Attributes:
      api: the plugin's functions.
      devices: the devices of this process.
    """

    def __init__(self, api: PjrtApi, options: Mapping[str, Option]) -> None:
        """Creates the client.

        Args:
          options: as jax gives them; see `client_options`.

        Raises:
          PjrtError: there is no GPU that it can use, or an option is not valid.
        """
        self.api = api
        self.handle = api.call("Client_Create", **_named_values(options)).client
        # At exit, what is finalized first is destroyed last.
        weakref.finalize(self, api.call, "Client_Destroy", client=self.handle)
        listed = api.call("Client_AddressableDevices", client=self.handle)
        self.devices = tuple(Device(self, listed.items[index]) for index in range(listed.count))

    def hold(self, owner: Any, destroy: str, **handle: int) -> None:
        """Destroys what `handle` names when `owner` is collected, or before the client is."""
        weakref.finalize(owner, self.api.call, destroy, **handle)

    def wait(self, event: int) -> None:
        """Waits for an event and destroys it.

        Raises:
          PjrtError: the operation of the event failed.
        """
        try:
            self.api.call("Event_Await", event=event)
        finally:
            self.api.call("Event_Destroy", event=event)

    def load(self, content: bytes) -> "Executable":
        """Loads a serialised executable onto the devices that it was compiled for.

        Raises:
          PjrtError: the plugin cannot load it.
        """
        loaded = self.api.call(
            "Executable_DeserializeAndLoad",
            client=self.handle,
            serialized_executable=content,
            serialized_executable_size=len(content),
        )
        return Executable(self, loaded.loaded_executable)


class Device:
    """A device of a client. Attributes have the names that jax gives them.

    Attributes:
      id: its number in the client.
      device_kind: its name, e.g. `NVIDIA H200`.
      core_count: multiprocessors; None if the plugin does not report it.
      compute_capability: e.g. `9.0`.
    """

    platform = "gpu"

    def __init__(self, client: Client, handle: int) -> None:
        self.client = client
        self.handle = handle
        api = client.api
        description = api.call("Device_GetDescription", device=handle).description
        self.id = int(api.call("DeviceDescription_Id", description=description).id)
        self.device_kind = api.text(api.call("DeviceDescription_Kind", description=description))
        self._text = api.text(api.call("DeviceDescription_ToString", description=description))
        listed = api.call("DeviceDescription_Attributes", description=description)
        self.attributes = dict(listed.attributes[index].read() for index in range(listed.count))

    def __str__(self) -> str:
        return self._text

    @property
    def core_count(self) -> int | None:
        return self.attributes.get("core_count")

    @property
    def compute_capability(self) -> str:
        return str(self.attributes.get("compute_capability"))

    def memory_stats(self) -> dict[str, int]:
        """Bytes in use, their peak and limit, by jax's names."""
        stats = self.client.api.call("Device_MemoryStats", device=self.handle)
        known = {"bytes_in_use": stats.bytes_in_use}
        for name in OPTIONAL_STATS:
            if getattr(stats, f"{name}_is_set"):
                known[name] = getattr(stats, name)
        return known

    def put(self, array: "npt.NDArray[Any]") -> "Buffer":
        """Copies an array to the device; returns when the array may be changed or freed.

        Raises:
          PjrtError: the device has too little memory.
        """
        import numpy as np

        array = np.asarray(array, order="C")
        call = self.client.api.call(
            "Client_BufferFromHostBuffer",
            client=self.client.handle,
            data=array.ctypes.data,
            type=ELEMENT_TYPES[array.dtype.name],
            dims=(c_int64 * array.ndim)(*array.shape),
            num_dims=array.ndim,
            host_buffer_semantics=_UNTIL_TRANSFER_COMPLETES,
            device=self.handle,
        )
        buffer = Buffer(self.client, call.buffer, array.shape, array.dtype.name)
        self.client.wait(call.done_with_host_buffer)
        return buffer


class Buffer:
    """An array on a device. `np.asarray` copies it to the host, and waits for it.

    Attributes:
      shape: its dimensions.
      dtype: the name of its dtype, e.g. `bfloat16`.
    """

    def __init__(self, client: Client, handle: int, shape: Sequence[int], dtype: str) -> None:
        self.client = client
        self.handle = handle
        self.shape = tuple(shape)
        self.dtype = dtype
        client.hold(self, "Buffer_Destroy", buffer=handle)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "npt.NDArray[Any]":
        import numpy as np

        array = np.empty(self.shape, _numpy_dtype(self.dtype))
        call = self.client.api.call(
            "Buffer_ToHostBuffer", src=self.handle, dst=array.ctypes.data, dst_size=array.nbytes
        )
        self.client.wait(call.event)
        return array if dtype is None else array.astype(dtype)


class Executable:
    """An executable on its device.

    Attributes:
      outputs: shape and name of the dtype of each output.
    """

    def __init__(self, client: Client, handle: int) -> None:
        self.client = client
        self.handle = handle
        client.hold(self, "LoadedExecutable_Destroy", executable=handle)

    @cached_property
    def outputs(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and name of the dtype of each output, as the plugin reports them."""
        api = self.client.api
        loaded = api.call("LoadedExecutable_GetExecutable", loaded_executable=self.handle)
        executable = loaded.executable
        try:
            types = api.call("Executable_OutputElementTypes", executable=executable)
            names = [_DTYPES.get(number, "") for number in types.types[: types.count]]
            shapes = api.call("Executable_OutputDimensions", executable=executable)
            ranks = shapes.dim_sizes[: shapes.num_outputs]
            dimensions = iter(shapes.dims[: sum(ranks)])
            sizes = [tuple(next(dimensions) for _ in range(rank)) for rank in ranks]
        finally:
            api.call("Executable_Destroy", executable=executable)
        return tuple(zip(sizes, names, strict=True))

    def execute(self, arguments: Sequence[Buffer]) -> list[Buffer]:
        """Starts the program on its device, and returns its outputs without waiting for them.

        Buffers that the executable aliases to outputs are deleted.

        Args:
          arguments: one for each parameter, in the order of their numbers.

        Raises:
          PjrtError: a buffer has another size or was deleted, or there is too little memory.
        """
        inputs = (c_void_p * len(arguments))(*(buffer.handle for buffer in arguments))
        outputs = (c_void_p * len(self.outputs))()
        options = ExecuteOptions()
        self.client.api.call(
            "LoadedExecutable_Execute",
            executable=self.handle,
            options=ctypes.addressof(options),
            argument_lists=(POINTER(c_void_p) * 1)(ctypes.cast(inputs, POINTER(c_void_p))),
            num_devices=1,
            num_args=len(arguments),
            output_lists=(POINTER(c_void_p) * 1)(ctypes.cast(outputs, POINTER(c_void_p))),
        )
        return [
            Buffer(self.client, handle, shape, dtype)
            for handle, (shape, dtype) in zip(outputs, self.outputs, strict=True)
        ]


def client_options(environment: Mapping[str, str] | None = None) -> dict[str, Option]:
    """The options that jax creates its client with, from the same environment variables.

    Raises:
      ValueError: a variable has no valid value.
    """
    env = os.environ if environment is None else environment
    options: dict[str, Option] = {
        "platform_name": "cuda",
        "allocator": env.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default").lower(),
        "abort_collectives_on_failure": bool(
            int(env.get("XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE", "0"))
        ),
        "use_tfrt_gpu_client": bool(int(env.get("XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT", "0"))),
        "enable_mock_nccl": False,
    }
    fraction = env.get("XLA_CLIENT_MEM_FRACTION") or env.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    if fraction:
        options["memory_fraction"] = float(fraction)
    if preallocate := env.get("XLA_PYTHON_CLIENT_PREALLOCATE"):
        options["preallocate"] = preallocate not in ("false", "False", "0")
    if collective_mib := env.get("XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"):
        options["collective_memory_size"] = int(collective_mib) << 20
    visible = env.get("JAX_CUDA_VISIBLE_DEVICES", "all")
    if visible != "all":
        options["visible_devices"] = [int(number) for number in visible.split(",")]
    return options


def _named_values(options: Mapping[str, Option]) -> dict[str, Any]:
    values = [NamedValue.of(name, value) for name, value in options.items()]
    return {"create_options": (NamedValue * len(values))(*values), "num_options": len(values)}


def _numpy_dtype(name: str) -> "np.dtype[Any]":
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))
