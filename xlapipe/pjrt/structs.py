"""Functions and structs of PJRT's C API that compile, load and run executables, as ctypes.

They follow xla/pjrt/c/pjrt_c_api.h of API version 0.113. The plugin of jaxlib 0.11.2 reports 0.115,
those of 0.10.2 and 0.12.0.1 report 0.112 and 0.116, and all three have the same structs. `c_api`
compares them with the plugin's own.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any, ClassVar, TypeAlias

# The functions of PJRT_Api, in its order after `ApiHead`, without the prefix `PJRT_`.
FUNCTIONS = (
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

Fields: TypeAlias = list[tuple[str, Any]]


class ApiHead(ctypes.Structure):
    """The start of PJRT_Api, with PJRT_Api_Version in it."""

    _fields_: ClassVar[Any] = [
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("version_struct_size", c_size_t),
        ("version_extension_start", c_void_p),
        ("major_version", c_int),
        ("minor_version", c_int),
    ]


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


def struct_named(name: str, fields: Fields) -> type[Struct]:
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


# Fields of PJRT_Device_MemoryStats_Args that have a flag; `bytes_in_use` is always set.
OPTIONAL_STATS = (
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

_EVENT: Fields = [("event", c_void_p)]
_BUFFER: Fields = [("buffer", c_void_p)]
_TEXT: Fields = [("text", c_void_p), ("text_size", c_size_t)]
_LIST: Fields = [("items", POINTER(c_void_p)), ("count", c_size_t)]

# The arguments of each function that is used, after struct_size and extension_start. Pointers to
# text are c_void_p, because the text has a size and no terminator. Newer fields at the end are left
# out where the plugin accepts the struct without them.
_USED: Mapping[str, Fields] = {
    "Error_Destroy": [("error", c_void_p)],
    "Error_Message": [("error", c_void_p), *_TEXT],
    "Error_GetCode": [("error", c_void_p), ("code", c_int)],
    "Plugin_Initialize": [],
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
        *(
            field
            for name in OPTIONAL_STATS
            for field in ((name, c_int64), (f"{name}_is_set", c_bool))
        ),
    ],
    "Executable_Destroy": [("executable", c_void_p)],
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
    "Buffer_ToHostBuffer": [
        ("src", c_void_p),
        ("host_layout", c_void_p),
        ("dst", c_void_p),
        ("dst_size", c_size_t),
        *_EVENT,
    ],
}

ARGUMENTS: Mapping[str, type[Struct]] = {
    name: struct_named(f"{name}_Args", fields) for name, fields in _USED.items()
}

ExecuteOptions = struct_named(
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

# Of a compile, up to the field that is read. They are only read, so their size is not compared.
CompileArguments = struct_named("Compile_Args", [("topology", c_void_p), ("program", c_void_p)])
CompiledProgram = struct_named(
    "Program",
    [
        ("code", c_void_p),
        ("code_size", c_size_t),
        ("format", c_void_p),
        ("format_size", c_size_t),
    ],
)
