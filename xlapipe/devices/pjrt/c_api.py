"""The functions of a plugin that has PJRT's C API, by ctypes. Imports no jax.

Versions of the API are not relied on: when the plugin is loaded, each function that is used here is
called once with a struct of size 0. It refuses the call and states the struct's name and size,
which must be those of `structs`.
"""

import ctypes
import re
from ctypes import c_size_t, c_void_p
from pathlib import Path
from typing import Any

from xlapipe.devices.pjrt.structs import ARGUMENTS, FUNCTIONS, ApiHead, ExecuteOptions, Struct
from xlapipe.errors import XlapipeError

MAJOR_VERSION = 0

_POINTER = ctypes.sizeof(c_void_p)
_SIZE_REFUSED = re.compile(r"Unexpected (\w+) size: expected (\d+), got 0\b")

# Error_Destroy and Error_Message return nothing: a wrong size would be ignored or logged. Their
# places are the first two, before Error_GetCode, which is checked.
_RETURN_NOTHING = ("Error_Destroy", "Error_Message")


class PjrtError(RuntimeError):
    """An error that the plugin returned.

    Attributes:
      code: an absl status code, e.g. 8 for RESOURCE_EXHAUSTED.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class PjrtTable:
    """A plugin's table of functions, whose major version only adds functions at its end.

    Attributes:
      address: address of its PJRT_Api.
      version: major and minor version of the API.
    """

    def __init__(self, library: Path) -> None:
        """Loads the plugin; calls none of its functions.

        Raises:
          OSError: it cannot be loaded.
          XlapipeError: it has another major version, or lacks functions of `structs`.
        """
        self._library = ctypes.CDLL(str(library))
        get_api = self._library.GetPjrtApi
        get_api.restype = c_void_p
        self.address = int(get_api())
        head = ApiHead.from_address(self.address)
        self.version = head.major_version, head.minor_version
        needed = ctypes.sizeof(ApiHead) + _POINTER * len(FUNCTIONS)
        if head.major_version != MAJOR_VERSION or head.struct_size < needed:
            raise XlapipeError(
                f"{library}: expected PJRT's C API {MAJOR_VERSION}.x with {len(FUNCTIONS)} "
                f"functions, found {self.version[0]}.{self.version[1]}, {head.struct_size} B"
            )

    def slot(self, function: str) -> c_size_t:
        """The place in the table that holds the address of a function."""
        offset = ctypes.sizeof(ApiHead) + _POINTER * FUNCTIONS.index(function)
        return c_size_t.from_address(self.address + offset)


class PjrtApi(PjrtTable):
    """The functions of a plugin."""

    def __init__(self, library: Path) -> None:
        """Loads the plugin, and checks its structs.

        Raises:
          OSError: it cannot be loaded.
          XlapipeError: its structs or functions are not those of this module.
        """
        super().__init__(library)
        prototype = ctypes.CFUNCTYPE(c_void_p, c_void_p)
        self._functions = {name: prototype(self.slot(name).value) for name in ARGUMENTS}
        differing = self.differing_structs()
        if differing:
            raise XlapipeError(
                f"{library}: PJRT's C API {self.version[0]}.{self.version[1]} differs from the "
                f"expected one: {'; '.join(differing)}"
            )
        self.call("Plugin_Initialize")

    def call(self, function: str, **values: Any) -> Any:
        """Calls a function, and returns its struct with the results.

        Raises:
          PjrtError: it returned an error.
        """
        arguments = ARGUMENTS[function](**values)
        error = self._functions[function](ctypes.byref(arguments))
        if error and function not in _RETURN_NOTHING:
            raise self._taken(error)
        return arguments

    def differing_structs(self) -> list[str]:
        """How the plugin's structs differ from those of this module; empty if they do not."""
        refusals = {
            name: self._functions[name](ctypes.byref(self._of_size_0(struct)))
            for name, struct in ARGUMENTS.items()
            if name not in _RETURN_NOTHING
        }
        # The options are checked before the executable is used.
        options = self._of_size_0(ExecuteOptions)
        execute = ARGUMENTS["LoadedExecutable_Execute"](options=ctypes.addressof(options))
        refusals["options"] = self._functions["LoadedExecutable_Execute"](ctypes.byref(execute))
        differing = []
        for name, error in refusals.items():
            message = str(self._taken(error)) if error else "no error"
            size_refusal = _SIZE_REFUSED.search(message)
            struct = ARGUMENTS.get(name, ExecuteOptions)
            if size_refusal is None or not _is_of(struct, *size_refusal.groups()):
                differing.append(f"{struct.__name__} of {struct.size()} B: {message}")
        return differing

    def text(self, arguments: Any) -> str:
        """The text that a function returned."""
        return ctypes.string_at(arguments.text, arguments.text_size).decode()

    @staticmethod
    def _of_size_0(struct: type[Struct]) -> Struct:
        value = struct()
        value.struct_size = 0
        return value

    def _taken(self, error: int) -> PjrtError:
        """The error as an exception; destroys the plugin's."""
        message = self.text(self.call("Error_Message", error=error))
        code = self.call("Error_GetCode", error=error).code
        self.call("Error_Destroy", error=error)
        return PjrtError(message, code)


def _is_of(struct: type[Struct], name: str, size: str) -> bool:
    """Whether the plugin's name and size are those of `struct`; it misspells some of the names."""
    names = {spelling.casefold().removesuffix("_args") for spelling in (struct.__name__, name)}
    return len(names) == 1 and int(size) == struct.size()
