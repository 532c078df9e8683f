"""The Pallas kernels in a lowered module: their names, lines and locations.

A kernel is MLIR bytecode, with its locations, in an attribute of its custom call. Rules for text do
not reach the paths and lines in it, which would change a dump with each line that is added above a
kernel.
"""

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax.extend.mlir import ir, passmanager
from jax.interpreters import mlir

from xlapipe.compile.messages import LoweredProgram
from xlapipe.devices.platforms.nvidia import MOSAIC_CALL, TRITON_CALL
from xlapipe.devices.platforms.tpu import MOSAIC_TPU_CALL
from xlapipe.jax_private import register_triton_dialect
from xlapipe.plans.call_chains import is_own_code
from xlapipe.plans.hlo import KERNEL_NAMES

_OP_NAME = re.compile(r'([^/()"]+)/pallas_call"')
_FRAME = re.compile(r'"(?P<file>[^"]+)":(?P<line>\d+):\d+')
_CONFIGS = ("mhlo.backend_config", "backend_config")
# The attribute that holds a kernel of each.
_KERNEL = {TRITON_CALL: "ir", MOSAIC_CALL: "module"}
# As jax writes them.
_VERSION: dict[str, dict[str, int]] = {
    TRITON_CALL: {},
    MOSAIC_CALL: {"desired_version": 0},
    MOSAIC_TPU_CALL: {"desired_version": 0},
}
_CONFIG = "mhlo.backend_config"
# A kernel for TPUs is in base64 in a config that is JSON.
_TPU_CONFIG = "backend_config"


def may_hold_kernels(bytecode: bytes) -> bool:
    """Whether a module in MLIR bytecode names the custom call of a kernel."""
    return any(target.encode() in bytecode for target in _VERSION)


def stripped_bytecode(module: Any) -> bytes:
    """jax's own StableHLO module; only the locations inside of Pallas kernels are taken out."""
    content = mlir.module_to_bytecode(module)
    if not may_hold_kernels(content):
        return content
    _strip_locations(module)
    return mlir.module_to_bytecode(module)


def _strip_locations(module: Any) -> None:
    with module.context:
        for operation in operations(module.operation):
            if operation.name != "stablehlo.custom_call":
                continue
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            if target in _KERNEL and _CONFIG in operation.attributes:
                _strip(operation, target, module.context)
            elif target == MOSAIC_TPU_CALL:
                _strip_for_tpu(operation, module.context)


def _strip(call: Any, target: str, context: Any) -> None:
    attributes: Any = ir.DictAttr(call.attributes[_CONFIG])
    config = {item.name: item.attr for item in attributes}
    name = _KERNEL[target]
    kernel = _without_locations(ir.StringAttr(config[name]).value_bytes, target, context)
    config[name] = ir.StringAttr.get(kernel)
    if target == MOSAIC_CALL:
        # By which the runtime knows what it has compiled before.
        config["kernel_hash"] = ir.StringAttr.get(hashlib.sha256(kernel).digest())
    call.attributes[_CONFIG] = ir.DictAttr.get(config)


def _strip_for_tpu(call: Any, context: Any) -> None:
    config = json.loads(ir.StringAttr(call.attributes[_TPU_CONFIG]).value)
    kernel = config.get("custom_call_config", {}).get("body")
    if kernel is not None:
        stripped = _without_locations(base64.b64decode(kernel), MOSAIC_TPU_CALL, context)
        config["custom_call_config"]["body"] = base64.b64encode(stripped).decode("ascii")
        call.attributes[_TPU_CONFIG] = ir.StringAttr.get(json.dumps(config), context)


def operations(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from operations(inner.operation)


def _without_locations(bytecode: bytes, target: str, context: Any) -> bytes:
    # In jax's own context: operations of a dialect that a new one does not know (the barrier of
    # `gpu`) would be written as unregistered ones, which XLA cannot read.
    with context, ir.Location.unknown(), _unregistered_allowed(context, target != TRITON_CALL):
        if target == TRITON_CALL:
            register_triton_dialect(context)
        module = ir.Module.parse(bytecode)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        stripped = io.BytesIO()
        module.operation.write_bytecode(stripped, **_VERSION[target])
        return stripped.getvalue()


@contextmanager
def _unregistered_allowed(context: Any, allowed: bool) -> Iterator[None]:
    """Operations of Mosaic are written with stable names, which belong to no dialect."""
    before = context.allow_unregistered_dialects
    context.allow_unregistered_dialects = allowed or before
    try:
        yield
    finally:
        context.allow_unregistered_dialects = before


def listed_kernels(program: LoweredProgram) -> str:
    """The program's Pallas kernels and their lines; empty if it has none."""
    if not may_hold_kernels(program.stablehlo):
        return ""
    with mlir.make_ir_context():
        calls = _kernels(ir.Module.parse(program.stablehlo))
        return ", ".join(dict.fromkeys(f"{_name(call)} at {_source(call)}" for call in calls))


def _kernels(module: Any) -> Iterator[Any]:
    """The calls of Pallas kernels in the module, one of each kernel."""
    seen = set()
    for operation in operations(module.operation):
        if operation.name == "stablehlo.custom_call" and _target(operation) in KERNEL_NAMES:
            key = _config(operation), str([value.type for value in operation.operands])
            if key not in seen:
                seen.add(key)
                yield operation


def _target(call: Any) -> str:
    return str(ir.StringAttr(call.attributes["call_target_name"]).value)


def _config(call: Any) -> str:
    return "".join(str(call.attributes[name]) for name in _CONFIGS if name in call.attributes)


def _name(call: Any) -> str:
    pattern = KERNEL_NAMES[_target(call)]
    match = pattern.search(_config(call)) or _OP_NAME.search(str(call.location))
    return match[1] if match is not None else "without a name"


def _source(call: Any) -> str | None:
    """The innermost line of the user's code, which is that of the `pallas_call`."""
    for frame in _FRAME.finditer(str(call.location)):
        if is_own_code(frame["file"]):
            return f"{frame['file']}:{frame['line']}"
    return None
