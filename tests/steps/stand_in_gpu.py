# ruff: noqa: N802 - methods have the names of PJRT's functions
"""A stand-in for the functions of XLA's CUDA plugin: its arrays are NumPy's, its program is Python.

`Client`, `Device`, `Buffer` and `Executable` of `xlapipe.run.pjrt.client` call it as they call
the plugin, with pointers to arrays.
"""

import ctypes
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xlapipe.run.pjrt import load
from xlapipe.run.pjrt.client import ELEMENT_TYPES, Client, _numpy_dtype

Arrays = Sequence[np.ndarray[Any, Any]]
Program = Callable[[Arrays], Arrays]
_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}
_ATTRIBUTES = {"core_count": 132, "compute_capability": "9.0"}


class StandInApi:
    """Has the methods of `PjrtApi` that a client uses.

    Attributes:
      program: computes the outputs of an executable from its arguments, in the program's order.
      outputs: arrays with the shapes and dtypes that the executable reports.
      donated: positions of the arguments whose buffers a call deletes.
      calls: the arguments of each call.
    """

    address = 0

    def __init__(self, program: Program, outputs: Arrays, donated: Sequence[int] = ()) -> None:
        self.program = program
        self.outputs = outputs
        self.donated = donated
        self.calls: list[Arrays] = []
        self.buffers: dict[int, np.ndarray[Any, Any]] = {}
        self._handles = count(1)

    def call(self, function: str, **values: Any) -> Any:
        known: Any = getattr(self, f"_{function}", None)
        return SimpleNamespace() if known is None else known(**values)

    def text(self, arguments: Any) -> str:
        text: str = arguments.content
        return text

    def _Client_Create(self, **options: Any) -> Any:
        return SimpleNamespace(client=1)

    def _Client_AddressableDevices(self, client: int) -> Any:
        return SimpleNamespace(items=[1], count=1)

    def _Device_GetDescription(self, device: int) -> Any:
        return SimpleNamespace(description=1)

    def _DeviceDescription_Id(self, description: int) -> Any:
        return SimpleNamespace(id=0)

    def _DeviceDescription_Kind(self, description: int) -> Any:
        return SimpleNamespace(content="NVIDIA H200")

    def _DeviceDescription_ToString(self, description: int) -> Any:
        return SimpleNamespace(content="cuda:0")

    def _DeviceDescription_Attributes(self, description: int) -> Any:
        values = [SimpleNamespace(read=lambda item=item: item) for item in _ATTRIBUTES.items()]
        return SimpleNamespace(attributes=values, count=len(values))

    def _Client_BufferFromHostBuffer(
        self, data: int, dims: Any, num_dims: int, **values: Any
    ) -> Any:
        array = np.empty(tuple(dims[:num_dims]), _numpy_dtype(_NAMES[values["type"]]))
        ctypes.memmove(array.ctypes.data, data, array.nbytes)
        return SimpleNamespace(buffer=self._new(array), done_with_host_buffer=1)

    def _Buffer_ToHostBuffer(self, src: int, dst: int, dst_size: int) -> Any:
        array = self.buffers[src]
        assert dst_size == array.nbytes
        ctypes.memmove(dst, array.ctypes.data, array.nbytes)
        return SimpleNamespace(event=1)

    def _Executable_DeserializeAndLoad(self, **_: Any) -> Any:
        return SimpleNamespace(loaded_executable=1)

    def _LoadedExecutable_GetExecutable(self, loaded_executable: int) -> Any:
        return SimpleNamespace(executable=1)

    def _Executable_OutputElementTypes(self, executable: int) -> Any:
        types = [ELEMENT_TYPES[array.dtype.name] for array in self.outputs]
        return SimpleNamespace(types=types, count=len(types))

    def _Executable_OutputDimensions(self, executable: int) -> Any:
        return SimpleNamespace(
            dims=[size for array in self.outputs for size in array.shape],
            dim_sizes=[array.ndim for array in self.outputs],
            num_outputs=len(self.outputs),
        )

    def _LoadedExecutable_Execute(
        self, argument_lists: Any, num_args: int, output_lists: Any, **_: Any
    ) -> Any:
        handles = argument_lists[0][:num_args]
        self.calls.append([self.buffers[handle] for handle in handles])
        for index, array in enumerate(self.program(self.calls[-1])):
            output_lists[0][index] = self._new(np.ascontiguousarray(array))
        for position in self.donated:
            del self.buffers[handles[position]]
        return SimpleNamespace()

    def _new(self, array: np.ndarray[Any, Any]) -> int:
        handle = next(self._handles)
        self.buffers[handle] = array
        return handle


def attach(monkeypatch: pytest.MonkeyPatch, api: StandInApi) -> None:
    """Makes `api` the plugin of this process."""
    client = Client(api, {})  # type: ignore[arg-type]
    monkeypatch.setattr(load, "shared_client", lambda: client)
    # jax's functions are registered with the plugin's own code.
    monkeypatch.setattr(load, "register_custom_calls", lambda api, content: None)
