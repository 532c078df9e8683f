"""What a step needs of the device that it runs on, and of its executable. Imports no numpy."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

# Shape, and name of the dtype.
ArrayType: TypeAlias = tuple[tuple[int, ...], str]


@runtime_checkable
class PutDevice(Protocol):
    """What is used of `xlapipe.running.pjrt.client.Device`; `put` copies a numpy array to it."""

    platform: str
    device_kind: str

    def memory_stats(self) -> Mapping[str, int]: ...
    def put(self, array: Any) -> Any: ...


@runtime_checkable
class DeviceExecutable(Protocol):
    """What is used of `xlapipe.running.pjrt.client.Executable`.

    Attributes:
      outputs: shape and name of the dtype of each output.
    """

    @property
    def outputs(self) -> Sequence[ArrayType]: ...

    def execute(self, arguments: Sequence[Any]) -> Sequence[Any]: ...
