"""Takes source locations out of the kernels that Pallas puts into a lowered module.

A kernel travels as MLIR bytecode in an attribute of its custom call, locations and all. Paths and
lines in there are out of reach of every rule for text, and would change a dump with each line that
is added above a kernel.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax._src.lib import triton
from jax._src.lib.mlir import ir, passmanager

from xlapipe.platforms.nvidia import MOSAIC_CALL, TRITON_CALL

# The attribute that holds a kernel of each.
_KERNEL = {TRITON_CALL: "ir", MOSAIC_CALL: "module"}
# As jax writes them.
_VERSION: dict[str, dict[str, int]] = {TRITON_CALL: {}, MOSAIC_CALL: {"desired_version": 0}}
_CONFIG = "mhlo.backend_config"


def strip_locations(module: Any) -> None:
    """Changes the StableHLO module in place; what the kernels compute stays the same."""
    with module.context:
        for operation in _operations(module.operation):
            if operation.name == "stablehlo.custom_call" and _CONFIG in operation.attributes:
                target = ir.StringAttr(operation.attributes["call_target_name"]).value
                if target in _KERNEL:
                    _strip(operation, target, module.context)


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


def _operations(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _operations(inner.operation)


def _without_locations(bytecode: bytes, target: str, context: Any) -> bytes:
    # In jax's own context: operations of a dialect that a new one does not know (the barrier of
    # `gpu`) would be written as unregistered ones, which XLA cannot read.
    with context, ir.Location.unknown(), _unregistered_allowed(context, target == MOSAIC_CALL):
        if target == TRITON_CALL:
            triton.dialect.register_dialect(context)
        module = ir.Module.parse(bytecode)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        stripped = io.BytesIO()
        module.operation.write_bytecode(stripped, **_VERSION[target])
        return stripped.getvalue()


@contextmanager
def _unregistered_allowed(context: Any, allowed: bool) -> Iterator[None]:
    """Operations of Mosaic GPU travel under names that are stable, and of no dialect."""
    before = context.allow_unregistered_dialects
    context.allow_unregistered_dialects = allowed or before
    try:
        yield
    finally:
        context.allow_unregistered_dialects = before
