"""PJRT's C API through ctypes: the plugin's own structs, and calls that need no GPU."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import pytest
from jax._src.lib import xla_client

from xlapipe.devices.pjrt import c_api
from xlapipe.devices.pjrt.c_api import PjrtApi, PjrtError
from xlapipe.devices.pjrt.structs import ARGUMENTS, FUNCTIONS, NamedValue, struct_named
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import TargetError, XlapipeError
from xlapipe.run.built_executable import BuiltExecutable
from xlapipe.run.pjrt import load
from xlapipe.run.pjrt.client import ELEMENT_TYPES, client_options, plugin_path
from xlapipe.run.pjrt.load import check_cuda_versions, register_custom_calls

pytestmark = [
    pytest.mark.jax,
    pytest.mark.skipif(plugin_path() is None, reason="jax's CUDA plugin is not installed"),
]

# Types of StableHLO, by the name of the dtype.
MLIR_TYPES = {
    "bool": "i1",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"ui{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
    "float8_e5m2": "f8E5M2",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3b11fnuz": "f8E4M3B11FNUZ",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e4m3": "f8E4M3",
    "float8_e3m4": "f8E3M4",
    "float8_e8m0fnu": "f8E8M0FNU",
}
# A sum, and what each type of array is passed through.
_PARAMETERS = ", ".join(f"%{name}: tensor<{kind}>" for name, kind in MLIR_TYPES.items())
_RESULTS = ", ".join(f"tensor<{kind}>" for kind in MLIR_TYPES.values())
MODULE = f"""
func.func public @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>, {_PARAMETERS})
    -> (tensor<2x3xf32>, {_RESULTS}) {{
  %sum = stablehlo.add %x, %y : tensor<2x3xf32>
  return %sum, {", ".join(f"%{name}" for name in MLIR_TYPES)} : tensor<2x3xf32>, {_RESULTS}
}}
""".encode()
FAILED_PRECONDITION = 9


TOPOLOGY, EXECUTABLE = ("topology", c_void_p), ("executable", c_void_p)
# Functions that only these tests call: they compile without a GPU.
ONLY_HERE: dict[str, list[tuple[str, Any]]] = {
    "Plugin_Attributes": [("attributes", POINTER(NamedValue)), ("count", c_size_t)],
    "Executable_NumOutputs": [EXECUTABLE, ("num_outputs", c_size_t)],
    "Executable_Serialize": [
        EXECUTABLE,
        ("text", c_void_p),
        ("text_size", c_size_t),
        ("serialized_executable", c_void_p),
        ("serialized_executable_deleter", ctypes.CFUNCTYPE(None, c_void_p)),
    ],
    "TopologyDescription_Create": [
        ("topology_name", c_char_p),
        ("topology_name_size", c_size_t),
        ("create_options", POINTER(NamedValue)),
        ("num_options", c_size_t),
        TOPOLOGY,
    ],
    "TopologyDescription_Destroy": [TOPOLOGY],
    "TopologyDescription_GetDeviceDescriptions": [
        TOPOLOGY,
        ("items", POINTER(c_void_p)),
        ("count", c_size_t),
    ],
    "Compile": [
        TOPOLOGY,
        ("program", c_void_p),
        ("compile_options", c_char_p),
        ("compile_options_size", c_size_t),
        ("client", c_void_p),
        EXECUTABLE,
    ],
}
Program = struct_named(
    "Program",
    [
        ("code", c_char_p),
        ("code_size", c_size_t),
        ("format", c_char_p),
        ("format_size", c_size_t),
    ],
)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> PjrtApi:
    """The plugin's functions, and those of ONLY_HERE, whose structs are compared too."""
    path = plugin_path()
    assert path is not None
    more = {name: struct_named(f"{name}_Args", fields) for name, fields in ONLY_HERE.items()}
    monkeypatch.setattr(c_api, "ARGUMENTS", {**ARGUMENTS, **more})
    return PjrtApi(path)


def test_the_plugin_expects_the_structs_of_this_module(api: PjrtApi) -> None:
    assert api.differing_structs() == []
    assert api.version[0] == c_api.MAJOR_VERSION


def fields_of(name: str) -> list[Any]:
    return list(ARGUMENTS[name]._fields_[2:])


@pytest.mark.parametrize("name", sorted(set(ARGUMENTS) - set(c_api._RETURN_NOTHING)))
def test_a_struct_of_another_size_is_found(
    name: str, api: PjrtApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = struct_named(f"{name}_Args", [*fields_of(name), ("more", ctypes.c_void_p)])
    monkeypatch.setattr(c_api, "ARGUMENTS", {**c_api.ARGUMENTS, name: longer})
    (differing,) = api.differing_structs()
    assert differing.startswith(f"PJRT_{name}_Args of {longer.size()} B: Unexpected PJRT_")


def test_a_plugin_with_another_struct_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = struct_named("Client_Create_Args", fields_of("Client_Create")[:-1])
    monkeypatch.setattr(c_api, "ARGUMENTS", {**ARGUMENTS, "Client_Create": shorter})
    with pytest.raises(XlapipeError, match="differs from the expected one: PJRT_Client_Create"):
        PjrtApi(plugin_path() or Path())


def test_a_plugin_with_another_order_of_functions_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Functions whose structs have the same size are distinguished by the structs' names."""
    names = list(FUNCTIONS)
    one, other = names.index("Buffer_Destroy"), names.index("Event_Destroy")
    assert ARGUMENTS["Buffer_Destroy"].size() == ARGUMENTS["Event_Destroy"].size()
    names[one], names[other] = names[other], names[one]
    monkeypatch.setattr(c_api, "FUNCTIONS", tuple(names))
    with pytest.raises(XlapipeError, match="PJRT_Buffer_Destroy_Args of"):
        PjrtApi(plugin_path() or Path())


def test_attributes_of_the_plugin_are_read(api: PjrtApi) -> None:
    listed = api.call("Plugin_Attributes")
    attributes = dict(listed.attributes[index].read() for index in range(listed.count))
    assert attributes["cuda_version"] >= 13000
    assert len(attributes["stablehlo_current_version"]) == 3


@pytest.mark.parametrize("value", ["a", 7, True, False, 0.5, [3, 4], []])
def test_options_are_read_as_they_were_written(value: Any) -> None:
    name, read = NamedValue.of("name", value).read()
    assert (name, read) == ("name", value)
    assert type(read) is type(value)


def named(values: Mapping[str, str]) -> dict[str, Any]:
    options = [NamedValue.of(name, value) for name, value in values.items()]
    return {"create_options": (NamedValue * len(options))(*options), "num_options": len(options)}


def test_a_program_is_compiled_and_serialised_without_a_gpu(api: PjrtApi) -> None:
    config = {"target_config": target_named("h200").config_text, "topology": "1x1x1"}
    topology = api.call("TopologyDescription_Create", topology_name=b"", **named(config)).topology
    listed = api.call("TopologyDescription_GetDeviceDescriptions", topology=topology)
    kinds = [
        api.text(api.call("DeviceDescription_Kind", description=listed.items[index]))
        for index in range(listed.count)
    ]
    assert len(kinds) == 1 and kinds[0].startswith("NVIDIA H200")

    program = Program(code=MODULE, code_size=len(MODULE), format=b"mlir", format_size=len(b"mlir"))
    options = xla_client.CompileOptions().SerializeAsString()
    executable = api.call(
        "Compile",
        topology=topology,
        program=ctypes.addressof(program),
        compile_options=options,
        compile_options_size=len(options),
    ).executable
    types = api.call("Executable_OutputElementTypes", executable=executable)
    expected = {"": ELEMENT_TYPES["float32"], **ELEMENT_TYPES}
    assert dict(zip(["", *MLIR_TYPES], types.types[: types.count], strict=True)) == expected
    shapes = api.call("Executable_OutputDimensions", executable=executable)
    assert shapes.dim_sizes[: shapes.num_outputs] == [2, *[0] * len(MLIR_TYPES)]
    assert shapes.dims[:2] == [2, 3]
    assert api.call("Executable_NumOutputs", executable=executable).num_outputs == 1 + len(
        MLIR_TYPES
    )

    serialised = api.call("Executable_Serialize", executable=executable)
    content = ctypes.string_at(serialised.text, serialised.text_size)
    serialised.serialized_executable_deleter(serialised.serialized_executable)
    api.call("Executable_Destroy", executable=executable)
    api.call("TopologyDescription_Destroy", topology=topology)
    # As in a built executable, after the metadata of jax's runtime.
    metadata = b"\x08\x03\x12\x09pjrt_ifrt" + b"*\x80\x01" + b"x" * 128
    for stored in (
        content,
        bytes([0x80 | len(metadata) & 0x7F, len(metadata) >> 7]) + metadata + content,
    ):
        built = BuiltExecutable(Path(), Manifest.__new__(Manifest), stored)
        assert built.pjrt_content == content


def test_errors_of_the_plugin_have_its_message(api: PjrtApi) -> None:
    config = {"target_config": "not a configuration", "topology": "1x1x1"}
    with pytest.raises(PjrtError, match="Failed to parse GpuTargetConfigProto") as caught:
        api.call("TopologyDescription_Create", topology_name=b"", **named(config))
    assert caught.value.code == FAILED_PRECONDITION


def test_random_numbers_of_jax_are_registered(api: PjrtApi) -> None:
    content = b"... cu_threefry2x32_ffi ..."
    register_custom_calls(api, content)
    register_custom_calls(api, content)  # jax may have registered them before


class Versions:
    """jax's module with the versions of libraries: those of the build, and those that are found."""

    def __init__(self, **found: int | None) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        library = name.removesuffix("_build_version").removesuffix("_get_version")
        build = {"cudnn": 91200, "cufft": 12000}.get(library, 130000)
        version = build if name.endswith("_build_version") else self._found.get(library, build)

        def version_or_error() -> int:
            if version is None:
                raise RuntimeError("not found")
            return version

        return version_or_error


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"cudnn": 91000}, "cuDNN 91000, whose enums differ"),
        ({"cudnn": 91299, "cufft": None}, "needs: cuFFT cannot be loaded: not found; fix: "),
        ({"cublas": 120000}, "cuBLAS 120000, expected at least 120100"),
    ],
)
def test_outdated_libraries_are_refused(
    found: dict[str, int | None], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jax_cuda13_plugin._versions", Versions(**found))
    with pytest.raises(TargetError, match=expected):
        check_cuda_versions({})
    check_cuda_versions({"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"})
    monkeypatch.setitem(sys.modules, "jax_cuda13_plugin._versions", Versions())
    check_cuda_versions({})


CREATE = """
import sys
from xlapipe.errors import TargetError
from xlapipe.run.pjrt.load import create_client
try:
    create_client()
except TargetError as error:
    print(error)
print("jax" in sys.modules or "jaxlib" in sys.modules)
"""


def test_without_a_gpu_no_client_is_created_and_jax_is_not_imported() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("JAX_PLATFORMS", None)
    run = subprocess.run(
        [sys.executable, "-c", CREATE], env=environment, check=True, capture_output=True, text=True
    )
    error, imported = run.stdout.splitlines()
    assert error.startswith("no NVIDIA GPU is attached that XLA can use: ")
    assert error.endswith("fix: `xlapipe doctor` lists what is missing")
    assert imported == "False"


HOLD = """
from types import SimpleNamespace
from xlapipe.run.pjrt.client import Client

class Api:
    def call(self, name, **handles):
        if name.endswith("_Destroy"):
            print(name, *handles.values())
        return SimpleNamespace(client=1, count=0, items=[])

client, owners = Client(Api(), {}), [Api(), Api()]
for number, owner in enumerate(owners, 2):
    client.hold(owner, "Buffer_Destroy", buffer=number)
del owner, owners[0]
print("exit")
"""


def test_what_a_client_holds_is_destroyed_before_it() -> None:
    run = subprocess.run([sys.executable, "-c", HOLD], check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == [
        "Buffer_Destroy 2",
        "exit",
        "Buffer_Destroy 3",
        "Client_Destroy 1",
    ]


def test_jaxs_choice_of_platforms_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(TargetError, match="XLA can use: JAX_PLATFORMS=cpu; fix"):
        load.create_client()


def test_the_client_has_jaxs_options() -> None:
    """With the variables that jax reads, and without them."""
    for variables in (
        {},
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_CLIENT_MEM_FRACTION": "0.5"},
        {"XLA_PYTHON_CLIENT_ALLOCATOR": "BFC", "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB": "3"},
    ):
        code = (
            "from jax._src.lib import xla_client; "
            "print(xla_client.generate_pjrt_gpu_plugin_options())"
        )
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **variables},
            check=True,
            capture_output=True,
            text=True,
        )
        options = client_options({**os.environ, **variables})
        assert {name: options[name] for name in eval(run.stdout)} == eval(run.stdout)
