"""The part of PJRT's C API that loads and runs executables, by ctypes. Imports no jax.

Structs and the order of functions follow xla/pjrt/c/pjrt_c_api.h of API version 0.113; the plugin
of jaxlib 0.11.2 reports 0.115, those of 0.10.2 and 0.12.0.1 report 0.112 and 0.116, and all three
have the same structs. Versions are not relied on: when the plugin is loaded, each function
that is used here is called once with a struct of size 0. It refuses the call and states the
struct's name and size, which must be those of this module.
"""

import ctypes
import re
from collections.abc import Mapping
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from xlapipe.errors import XlapipeError

MAJOR_VERSION = 0

# The functions of PJRT_Api, in its order, without the prefix `PJRT_`.
_FUNCTIONS = (
    "Error_Destroy",
    "Error_Message",
    "Error_GetCode",
    "Plugin_Initialize",
    "Plugin_Attributes",
    "Event_Destroy",
    "Event_IsReady",
    "Event_Error",
    "Event_Await",
    "Event_OnReady",
    "Client_Create",
    "Client_Destroy",
    "Client_PlatformName",
    "Client_ProcessIndex",
    "Client_PlatformVersion",
    "Client_Devices",
    "Client_AddressableDevices",
    "Client_LookupDevice",
    "Client_LookupAddressableDevice",
    "Client_AddressableMemories",
    "Client_Compile",
    "Client_DefaultDeviceAssignment",
    "Client_BufferFromHostBuffer",
    "DeviceDescription_Id",
    "DeviceDescription_ProcessIndex",
    "DeviceDescription_Attributes",
    "DeviceDescription_Kind",
    "DeviceDescription_DebugString",
    "DeviceDescription_ToString",
    "Device_GetDescription",
    "Device_IsAddressable",
    "Device_LocalHardwareId",
    "Device_AddressableMemories",
    "Device_DefaultMemory",
    "Device_MemoryStats",
    "Memory_Id",
    "Memory_Kind",
    "Memory_DebugString",
    "Memory_ToString",
    "Memory_AddressableByDevices",
    "Executable_Destroy",
    "Executable_Name",
    "Executable_NumReplicas",
    "Executable_NumPartitions",
    "Executable_NumOutputs",
    "Executable_SizeOfGeneratedCodeInBytes",
    "Executable_GetCostAnalysis",
    "Executable_OutputMemoryKinds",
    "Executable_OptimizedProgram",
    "Executable_Serialize",
    "LoadedExecutable_Destroy",
    "LoadedExecutable_GetExecutable",
    "LoadedExecutable_AddressableDevices",
    "LoadedExecutable_Delete",
    "LoadedExecutable_IsDeleted",
    "LoadedExecutable_Execute",
    "Executable_DeserializeAndLoad",
    "LoadedExecutable_Fingerprint",
    "Buffer_Destroy",
    "Buffer_ElementType",
    "Buffer_Dimensions",
    "Buffer_UnpaddedDimensions",
    "Buffer_DynamicDimensionIndices",
    "Buffer_GetMemoryLayout",
    "Buffer_OnDeviceSizeInBytes",
    "Buffer_Device",
    "Buffer_Memory",
    "Buffer_Delete",
    "Buffer_IsDeleted",
    "Buffer_CopyToDevice",
    "Buffer_ToHostBuffer",
    "Buffer_IsOnCpu",
    "Buffer_ReadyEvent",
    "Buffer_UnsafePointer",
    "Buffer_IncreaseExternalReferenceCount",
    "Buffer_DecreaseExternalReferenceCount",
    "Buffer_OpaqueDeviceMemoryDataPointer",
    "CopyToDeviceStream_Destroy",
    "CopyToDeviceStream_AddChunk",
    "CopyToDeviceStream_TotalBytes",
    "CopyToDeviceStream_GranuleSize",
    "CopyToDeviceStream_CurrentBytes",
    "TopologyDescription_Create",
    "TopologyDescription_Destroy",
    "TopologyDescription_PlatformName",
    "TopologyDescription_PlatformVersion",
    "TopologyDescription_GetDeviceDescriptions",
    "TopologyDescription_Serialize",
    "TopologyDescription_Attributes",
    "Compile",
    "Executable_OutputElementTypes",
    "Executable_OutputDimensions",
)

# struct_size, extension_start, then the version's struct: struct_size, extension_start, two ints.
_VERSION_OFFSET = 2 * ctypes.sizeof(c_size_t) + 2 * ctypes.sizeof(c_size_t)
_POINTER = ctypes.sizeof(c_void_p)
_FUNCTIONS_OFFSET = _VERSION_OFFSET + 2 * ctypes.sizeof(c_int)

# Newer fields at the end are left out where the plugin accepts the struct without them.
_SIZE_REFUSED = re.compile(r"Unexpected (\w+) size: expected (\d+), got 0\b")

Fields: TypeAlias = list[tuple[str, Any]]


class Struct(ctypes.Structure):
    """A struct of the C API whose first field is its own size.

    The size is that of the fields without padding at the end, as PJRT_STRUCT_SIZE computes it.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.struct_size = self.size()

    @classmethod
    def size(cls) -> int:
        """The size that the plugin must expect."""
        last = getattr(cls, cls._fields_[-1][0])
        return int(last.offset + last.size)


def _arguments(name: str, fields: Fields) -> type[Struct]:
    """The struct PJRT_`name`, with the two fields that all of them begin with."""
    begin: Fields = [("struct_size", c_size_t), ("extension_start", c_void_p)]
    return type(f"PJRT_{name}", (Struct,), {"_fields_": begin + fields})


class _Value(ctypes.Union):
    _fields_: ClassVar[Any] = [
        ("string_value", c_char_p),
        ("int64_value", c_int64),
        ("int64_array_value", POINTER(c_int64)),
        ("float_value", c_float),
        ("bool_value", c_bool),
        ("pointer", c_void_p),
    ]


class NamedValue(Struct):
    """PJRT_NamedValue: an option or an attribute."""

    STRING, INT64, INT64_LIST, FLOAT, BOOL = range(5)

    _anonymous_: ClassVar[Any] = ["value"]
    _fields_: ClassVar[Any] = [
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("name", c_char_p),
        ("name_size", c_size_t),
        ("type", c_int),
        ("value", _Value),
        ("value_size", c_size_t),
    ]

    @classmethod
    def of(cls, name: str, value: str | int | float | bool | list[int]) -> "NamedValue":
        """The value under its name; keeps what it points to alive."""
        encoded = name.encode()
        kwargs: dict[str, Any] = {"name": encoded, "name_size": len(encoded), "value_size": 1}
        if isinstance(value, bool):
            return cls(type=cls.BOOL, bool_value=value, **kwargs)
        if isinstance(value, int):
            return cls(type=cls.INT64, int64_value=value, **kwargs)
        if isinstance(value, float):
            return cls(type=cls.FLOAT, float_value=value, **kwargs)
        if isinstance(value, str):
            text = value.encode()
            kwargs["value_size"] = len(text)
            return cls(type=cls.STRING, string_value=text, **kwargs)
        kwargs["value_size"] = len(value)
        return cls(type=cls.INT64_LIST, int64_array_value=(c_int64 * len(value))(*value), **kwargs)

    def read(self) -> tuple[str, Any]:
        """The name and the value as Python's."""
        # Not `self.name`: a copy up to the first byte 0, which a name need not end with.
        address = c_void_p.from_buffer(self, type(self).name.offset).value
        name = ctypes.string_at(address or 0, self.name_size).decode()
        if self.type == self.STRING:
            return name, ctypes.string_at(self.pointer, self.value_size).decode()
        if self.type == self.INT64_LIST:
            return name, list(self.int64_array_value[: self.value_size])
        read = {
            self.INT64: self.int64_value,
            self.FLOAT: self.float_value,
            self.BOOL: self.bool_value,
        }
        return name, read[self.type]


_STATS = (
    "peak_bytes_in_use",
    "num_allocs",
    "largest_alloc_size",
    "bytes_limit",
    "bytes_reserved",
    "peak_bytes_reserved",
    "bytes_reservable_limit",
    "largest_free_block_bytes",
    "pool_bytes",
    "peak_pool_bytes",
)
# Fields of PJRT_Device_MemoryStats_Args that have a flag; `bytes_in_use` is always set.
OPTIONAL_STATS = _STATS

_EVENT: Fields = [("event", c_void_p)]
_BUFFER: Fields = [("buffer", c_void_p)]
_TEXT: Fields = [("text", c_void_p), ("text_size", c_size_t)]
_LIST: Fields = [("items", POINTER(c_void_p)), ("count", c_size_t)]

# The arguments of each function that is used, after struct_size and extension_start. Pointers to
# text are c_void_p, because the text has a size and no terminator.
_USED: Mapping[str, Fields] = {
    "Error_Destroy": [("error", c_void_p)],
    "Error_Message": [("error", c_void_p), *_TEXT],
    "Error_GetCode": [("error", c_void_p), ("code", c_int)],
    "Plugin_Initialize": [],
    "Plugin_Attributes": [("attributes", POINTER(NamedValue)), ("count", c_size_t)],
    "Event_Destroy": _EVENT,
    "Event_Await": _EVENT,
    "Client_Create": [
        ("create_options", POINTER(NamedValue)),
        ("num_options", c_size_t),
        ("kv_get_callback", c_void_p),
        ("kv_get_user_arg", c_void_p),
        ("kv_put_callback", c_void_p),
        ("kv_put_user_arg", c_void_p),
        ("client", c_void_p),
        ("kv_try_get_callback", c_void_p),
        ("kv_try_get_user_arg", c_void_p),
    ],
    "Client_Destroy": [("client", c_void_p)],
    "Client_PlatformVersion": [("client", c_void_p), *_TEXT],
    "Client_AddressableDevices": [("client", c_void_p), *_LIST],
    "Client_BufferFromHostBuffer": [
        ("client", c_void_p),
        ("data", c_void_p),
        ("type", c_int),
        ("dims", POINTER(c_int64)),
        ("num_dims", c_size_t),
        ("byte_strides", POINTER(c_int64)),
        ("num_byte_strides", c_size_t),
        ("host_buffer_semantics", c_int),
        ("device", c_void_p),
        ("memory", c_void_p),
        ("device_layout", c_void_p),
        ("done_with_host_buffer", c_void_p),
        ("buffer", c_void_p),
    ],
    "DeviceDescription_Id": [("description", c_void_p), ("id", c_int)],
    "DeviceDescription_Attributes": [
        ("description", c_void_p),
        ("count", c_size_t),
        ("attributes", POINTER(NamedValue)),
    ],
    "DeviceDescription_Kind": [("description", c_void_p), *_TEXT],
    "DeviceDescription_ToString": [("description", c_void_p), *_TEXT],
    "Device_GetDescription": [("device", c_void_p), ("description", c_void_p)],
    "Device_MemoryStats": [
        ("device", c_void_p),
        ("bytes_in_use", c_int64),
        *(field for name in _STATS for field in ((name, c_int64), (f"{name}_is_set", c_bool))),
    ],
    "Executable_Destroy": [("executable", c_void_p)],
    "Executable_NumOutputs": [("executable", c_void_p), ("num_outputs", c_size_t)],
    "Executable_Serialize": [
        ("executable", c_void_p),
        *_TEXT,
        ("serialized_executable", c_void_p),
        ("serialized_executable_deleter", ctypes.CFUNCTYPE(None, c_void_p)),
    ],
    "Executable_OutputElementTypes": [
        ("executable", c_void_p),
        ("types", POINTER(c_int)),
        ("count", c_size_t),
    ],
    "Executable_OutputDimensions": [
        ("executable", c_void_p),
        ("num_outputs", c_size_t),
        ("dims", POINTER(c_int64)),
        ("dim_sizes", POINTER(c_size_t)),
    ],
    "Executable_DeserializeAndLoad": [
        ("client", c_void_p),
        ("serialized_executable", c_char_p),
        ("serialized_executable_size", c_size_t),
        ("loaded_executable", c_void_p),
        ("overridden_serialized_compile_options", c_char_p),
        ("overridden_serialized_compile_options_size", c_size_t),
    ],
    "LoadedExecutable_Destroy": [("executable", c_void_p)],
    "LoadedExecutable_GetExecutable": [("loaded_executable", c_void_p), ("executable", c_void_p)],
    "LoadedExecutable_Execute": [
        ("executable", c_void_p),
        ("options", c_void_p),
        ("argument_lists", POINTER(POINTER(c_void_p))),
        ("num_devices", c_size_t),
        ("num_args", c_size_t),
        ("output_lists", POINTER(POINTER(c_void_p))),
        ("device_complete_events", POINTER(c_void_p)),
        ("execute_device", c_void_p),
    ],
    "Buffer_Destroy": _BUFFER,
    "Buffer_ElementType": [*_BUFFER, ("type", c_int)],
    "Buffer_Dimensions": [*_BUFFER, ("dims", POINTER(c_int64)), ("num_dims", c_size_t)],
    "Buffer_ReadyEvent": [*_BUFFER, *_EVENT],
    "Buffer_ToHostBuffer": [
        ("src", c_void_p),
        ("host_layout", c_void_p),
        ("dst", c_void_p),
        ("dst_size", c_size_t),
        *_EVENT,
    ],
    "TopologyDescription_Create": [
        ("topology_name", c_char_p),
        ("topology_name_size", c_size_t),
        ("create_options", POINTER(NamedValue)),
        ("num_options", c_size_t),
        ("topology", c_void_p),
    ],
    "TopologyDescription_Destroy": [("topology", c_void_p)],
    "TopologyDescription_GetDeviceDescriptions": [("topology", c_void_p), *_LIST],
    "Compile": [
        ("topology", c_void_p),
        ("program", c_void_p),
        ("compile_options", c_char_p),
        ("compile_options_size", c_size_t),
        ("client", c_void_p),
        ("executable", c_void_p),
    ],
}

ARGUMENTS: Mapping[str, type[Struct]] = {
    name: _arguments(f"{name}_Args", fields) for name, fields in _USED.items()
}

Program = _arguments(
    "Program",
    [
        ("code", c_char_p),
        ("code_size", c_size_t),
        ("format", c_char_p),
        ("format_size", c_size_t),
    ],
)

ExecuteOptions = _arguments(
    "ExecuteOptions",
    [
        ("send_callbacks", c_void_p),
        ("recv_callbacks", c_void_p),
        ("num_send_ops", c_size_t),
        ("num_recv_ops", c_size_t),
        ("launch_id", c_int),
        ("non_donatable_input_indices", POINTER(c_int64)),
        ("num_non_donatable_input_indices", c_size_t),
        ("context", c_void_p),
        ("call_location", c_char_p),
        ("num_tasks", c_size_t),
        ("task_ids", POINTER(c_int)),
        ("incarnation_ids", POINTER(c_int64)),
    ],
)

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


class PjrtApi:
    """The functions of a plugin.

    Attributes:
      address: of its PJRT_Api.
      version: major and minor version of the API.
    """

    def __init__(self, library: Path) -> None:
        """Loads the plugin, and checks its structs.

        Raises:
          OSError: it cannot be loaded.
          XlapipeError: its structs or functions are not those of this module.
        """
        self._library = ctypes.CDLL(str(library))
        get_api = self._library.GetPjrtApi
        get_api.restype = c_void_p
        self.address = int(get_api())
        self.version = tuple((c_int * 2).from_address(self.address + _VERSION_OFFSET))
        size = c_size_t.from_address(self.address).value
        if self.version[0] != MAJOR_VERSION or size < _FUNCTIONS_OFFSET + _POINTER * len(
            _FUNCTIONS
        ):
            raise XlapipeError(
                f"{library}: expected PJRT's C API {MAJOR_VERSION}.x with {len(_FUNCTIONS)} "
                f"functions, found {self.version[0]}.{self.version[1]}, {size} B"
            )
        prototype = ctypes.CFUNCTYPE(c_void_p, c_void_p)
        self._functions = {
            name: prototype(
                c_size_t.from_address(self.address + _FUNCTIONS_OFFSET + _POINTER * index).value
            )
            for index, name in enumerate(_FUNCTIONS)
            if name in ARGUMENTS
        }
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
            found = _SIZE_REFUSED.search(message)
            struct = ARGUMENTS.get(name, ExecuteOptions)
            if found is None or not _is_of(struct, *found.groups()):
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
    names = {each.casefold().removesuffix("_args") for each in (struct.__name__, name)}
    return len(names) == 1 and int(size) == struct.size()
