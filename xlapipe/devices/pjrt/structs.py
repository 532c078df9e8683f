"""Functions and structs of PJRT's C API that compile, load and run executables, as ctypes.

They follow xla/pjrt/c/pjrt_c_api.h of API version 0.113. The plugin of jaxlib 0.11.2 reports 0.115,
those of 0.10.2 and 0.12.0.1 report 0.112 and 0.116, and all three have the same structs. `c_api`
compares them with the plugin's own.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any, ClassVar, TypeAlias

# The functions of PJRT_Api, in its order after `ApiHead`: the object, and what it can be asked.
_TABLE = (
    ("Error", "Destroy Message GetCode"),
    ("Plugin", "Initialize Attributes"),
    ("Event", "Destroy IsReady Error Await OnReady"),
    (
        "Client",
        "Create Destroy PlatformName ProcessIndex PlatformVersion Devices AddressableDevices "
        "LookupDevice LookupAddressableDevice AddressableMemories Compile "
        "DefaultDeviceAssignment BufferFromHostBuffer",
    ),
    ("DeviceDescription", "Id ProcessIndex Attributes Kind DebugString ToString"),
    (
        "Device",
        "GetDescription IsAddressable LocalHardwareId AddressableMemories DefaultMemory "
        "MemoryStats",
    ),
    ("Memory", "Id Kind DebugString ToString AddressableByDevices"),
    (
        "Executable",
        "Destroy Name NumReplicas NumPartitions NumOutputs SizeOfGeneratedCodeInBytes "
        "GetCostAnalysis OutputMemoryKinds OptimizedProgram Serialize",
    ),
    ("LoadedExecutable", "Destroy GetExecutable AddressableDevices Delete IsDeleted Execute"),
    ("Executable", "DeserializeAndLoad"),
    ("LoadedExecutable", "Fingerprint"),
    (
        "Buffer",
        "Destroy ElementType Dimensions UnpaddedDimensions DynamicDimensionIndices "
        "GetMemoryLayout OnDeviceSizeInBytes Device Memory Delete IsDeleted CopyToDevice "
        "ToHostBuffer IsOnCpu ReadyEvent UnsafePointer IncreaseExternalReferenceCount "
        "DecreaseExternalReferenceCount OpaqueDeviceMemoryDataPointer",
    ),
    ("CopyToDeviceStream", "Destroy AddChunk TotalBytes GranuleSize CurrentBytes"),
    (
        "TopologyDescription",
        "Create Destroy PlatformName PlatformVersion GetDeviceDescriptions Serialize Attributes",
    ),
    ("", "Compile"),
    ("Executable", "OutputElementTypes OutputDimensions"),
)
FUNCTIONS = tuple(f"{noun}_{verb}".lstrip("_") for noun, verbs in _TABLE for verb in verbs.split())
"""The functions of PJRT_Api, without the prefix `PJRT_`."""

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

_TYPES: Mapping[str, Any] = {
    "": c_void_p,
    "*": POINTER(c_void_p),
    "**": POINTER(POINTER(c_void_p)),
    "bool": c_bool,
    "int": c_int,
    "int*": POINTER(c_int),
    "int64": c_int64,
    "int64*": POINTER(c_int64),
    "NamedValue*": POINTER(NamedValue),
    "size": c_size_t,
    "size*": POINTER(c_size_t),
    "text": c_char_p,
}


def _fields(declarations: str) -> Fields:
    """The fields in `client, type: int`; those without a type are pointers to anything."""
    pairs = (declaration.partition(":") for declaration in declarations.split(",") if declaration)
    return [(name.strip(), _TYPES[kind.strip()]) for name, _, kind in pairs]


_TEXT = "text, text_size: size"
_STATS = ", ".join(f"{name}: int64, {name}_is_set: bool" for name in OPTIONAL_STATS)

# The arguments of each function that is used, after struct_size and extension_start. Text that has
# a size and no terminator is a pointer to anything. Newer fields at the end are left out where the
# plugin accepts the struct without them.
_USED: Mapping[str, str] = {
    "Error_Destroy": "error",
    "Error_Message": f"error, {_TEXT}",
    "Error_GetCode": "error, code: int",
    "Plugin_Initialize": "",
    "Event_Destroy": "event",
    "Event_Await": "event",
    "Client_Create": (
        "create_options: NamedValue*, num_options: size, kv_get_callback, kv_get_user_arg, "
        "kv_put_callback, kv_put_user_arg, client, kv_try_get_callback, kv_try_get_user_arg"
    ),
    "Client_Destroy": "client",
    "Client_AddressableDevices": "client, items: *, count: size",
    "Client_BufferFromHostBuffer": (
        "client, data, type: int, dims: int64*, num_dims: size, byte_strides: int64*, "
        "num_byte_strides: size, host_buffer_semantics: int, device, memory, device_layout, "
        "done_with_host_buffer, buffer"
    ),
    "DeviceDescription_Id": "description, id: int",
    "DeviceDescription_Attributes": "description, count: size, attributes: NamedValue*",
    "DeviceDescription_Kind": f"description, {_TEXT}",
    "DeviceDescription_ToString": f"description, {_TEXT}",
    "Device_GetDescription": "device, description",
    "Device_MemoryStats": f"device, bytes_in_use: int64, {_STATS}",
    "Executable_Destroy": "executable",
    "Executable_OutputElementTypes": "executable, types: int*, count: size",
    "Executable_OutputDimensions": (
        "executable, num_outputs: size, dims: int64*, dim_sizes: size*"
    ),
    "Executable_DeserializeAndLoad": (
        "client, serialized_executable: text, serialized_executable_size: size, loaded_executable, "
        "overridden_serialized_compile_options: text, "
        "overridden_serialized_compile_options_size: size"
    ),
    "LoadedExecutable_Destroy": "executable",
    "LoadedExecutable_GetExecutable": "loaded_executable, executable",
    "LoadedExecutable_Execute": (
        "executable, options, argument_lists: **, num_devices: size, num_args: size, "
        "output_lists: **, device_complete_events: *, execute_device"
    ),
    "Buffer_Destroy": "buffer",
    "Buffer_ToHostBuffer": "src, host_layout, dst, dst_size: size, event",
}

ARGUMENTS: Mapping[str, type[Struct]] = {
    name: struct_named(f"{name}_Args", _fields(text)) for name, text in _USED.items()
}

ExecuteOptions = struct_named(
    "ExecuteOptions",
    _fields(
        "send_callbacks, recv_callbacks, num_send_ops: size, num_recv_ops: size, launch_id: int, "
        "non_donatable_input_indices: int64*, num_non_donatable_input_indices: size, context, "
        "call_location: text, num_tasks: size, task_ids: int*, incarnation_ids: int64*"
    ),
)

# A compile's structs, up to the field that is read. They are only read: their size is not compared.
CompileArguments = struct_named("Compile_Args", _fields("topology, program"))
CompiledProgram = struct_named(
    "Program", _fields("code, code_size: size, format, format_size: size")
)
