"""A workload of a module in a file: HLO before optimizations, StableHLO, or what jax.export wrote.

jax compiles the module as it compiles a step that calls an exported function.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from google.protobuf.message import DecodeError
from jax import export
from jax.extend.mlir import ir
from jax.interpreters import mlir

from xlapipe.dump.readers.file_contents import read_bytes
from xlapipe.dump.readers.hlo_proto import HloModuleProto, HloProto
from xlapipe.errors import WorkloadError
from xlapipe.jax_private import hlo_module_of_text, portable_artifact, stablehlo_of_hlo
from xlapipe.workload import Workload

_OTHER = re.compile(r"[^A-Za-z0-9._-]+")
_BYTECODE = b"ML\xefR"
_DONATED = re.compile("tf.aliasing_output|jax.buffer_donor")
_FORMS = "HLO text or an HloProto before optimizations, StableHLO, or the bytes of jax.export"
# Names of dtypes in MLIR that are not numpy's.
_DTYPES = {"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "i1": "bool"}


def workload(path: str) -> Workload:
    """The workload of a file."""
    content = read_bytes(Path(path))
    try:
        exported, donated = _exported(content)
    except (DecodeError, ImportError, ir.MLIRError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise WorkloadError(
            f"{path}: expected {_FORMS}; found {type(error).__name__}: {reason:.200}; fix: give "
            "XLA's *before_optimizations.txt, or jax.jit(f).lower(…).as_text()"
        ) from None
    if exported.nr_devices != 1:
        raise WorkloadError(
            f"{path}: a module of {exported.nr_devices} devices, expected one of one device; fix: "
            "give the step itself, since the devices of its mesh are not in the module"
        )
    if "cuda" not in exported.platforms:
        raise WorkloadError(
            f"{path}: exported for {', '.join(exported.platforms)}, expected cuda; fix: "
            "jax.export.export(f, platforms=['cuda'])"
        )
    leaves = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals]
    name = _OTHER.sub("-", Path(path).name.partition(".")[0]).strip("-._") or "module"

    def step(*args: Any) -> Any:
        tree_args, tree_kwargs = jax.tree.unflatten(exported.in_tree, args)
        return exported.call(*tree_args, **tree_kwargs)

    return Workload(name=name, fn=step, args=leaves, donate_argnums=sorted(donated))


def _exported(content: bytes) -> tuple[export.Exported, set[int]]:
    """The module, and the positions of donated arguments, which a call of it leaves out."""
    if content.startswith(b"HloModule"):
        return _exported_hlo(hlo_module_of_text(content.decode()))
    if _is_proto(content):
        return _exported_hlo(HloProto.FromString(content).hlo_module.SerializeToString())
    if content.startswith(_BYTECODE) or b"module" in content[:4096]:
        exported = _exported_stablehlo(content)
    else:
        exported = export.deserialize(bytearray(content))
    attributes = enumerate(_argument_attributes(exported))
    return exported, {number for number, text in attributes if _DONATED.search(text)}


def _exported_hlo(module: bytes) -> tuple[export.Exported, set[int]]:
    proto = HloModuleProto.FromString(module)
    entries: tuple[Any, ...] = (*proto.input_output_alias.entries, *proto.buffer_donor.entries)
    return _exported_stablehlo(stablehlo_of_hlo(module)), {
        entry.parameter_number for entry in entries
    }


def _is_proto(content: bytes) -> bool:
    try:
        return bool(HloProto.FromString(content).hlo_module.computations)
    except DecodeError:
        return False


def _exported_stablehlo(module: bytes) -> export.Exported:
    """The module as what jax.export gives of a function with its arguments and results."""
    with mlir.make_ir_context():
        parsed: Any = ir.Module.parse(module)
        main: Any = next(
            item for item in parsed.body.operations if item.attributes["sym_name"].value == "main"
        )
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        arguments, results = (
            [_abstract(item) for item in items] for items in (kind.inputs, kind.results)
        )
        count = parsed.operation.attributes
        devices = int(count["mhlo.num_partitions"].value) if "mhlo.num_partitions" in count else 1
        if devices == 1:
            _remove_shardings(main)
        artifact = portable_artifact(parsed)

    def template(*_: Any) -> Any:
        return tuple(jnp.zeros(item.shape, item.dtype) for item in results)

    jitted = jax.jit(template, keep_unused=True)
    exported = export.export(jitted, platforms=["cuda"])(*arguments)
    return replace(exported, mlir_module_serialized=artifact, nr_devices=devices)


def _remove_shardings(main: Any) -> None:
    """Removes the shardings of one device, which name a mesh that the module does not have."""
    for name in ("arg_attrs", "res_attrs"):
        if name in main.attributes:
            kept = [
                ir.DictAttr.get(
                    {item.name: item.attr for item in attributes if "sharding" not in item.name}
                )
                for attributes in _dictionaries(main.attributes[name])
            ]
            main.attributes[name] = ir.ArrayAttr.get(kept)


def _dictionaries(attribute: Any) -> list[Any]:
    return [ir.DictAttr(item) for item in ir.ArrayAttr(attribute)]


def _abstract(kind: Any) -> jax.ShapeDtypeStruct:
    tensor: Any = ir.RankedTensorType(kind)
    return jax.ShapeDtypeStruct(tuple(tensor.shape), _dtype(str(tensor.element_type)))


def _dtype(name: str) -> Any:
    if name in _DTYPES:
        return jnp.dtype(_DTYPES[name])
    if match := re.fullmatch(r"(u?)i(\d+)", name):
        return jnp.dtype(f"{'u' if match[1] else ''}int{match[2]}")
    if match := re.fullmatch(r"complex<f(32|64)>", name):
        return jnp.dtype(f"complex{2 * int(match[1])}")
    return jnp.dtype(getattr(jnp, f"float8_{name.partition('f8')[2].lower()}"))


def _argument_attributes(exported: export.Exported) -> list[str]:
    """The attributes of each argument of the module, as text."""
    text = exported.mlir_module()
    head = text[text.index("@main(") :].partition(") ->")[0]
    return re.split(r"%arg\d+:", head)[1:]
