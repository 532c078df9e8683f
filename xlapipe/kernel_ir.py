"""Takes source locations out of the Triton kernels that Pallas puts into a lowered module.

A kernel travels as MLIR bytecode in an attribute of its custom call, locations and all. Paths and
lines in there are out of reach of every rule for text, and would change a dump with each line that
is added above a kernel.
"""

import io
from collections.abc import Iterator
from typing import Any

from jax._src.lib import triton
from jax._src.lib.mlir import ir, passmanager

TARGET = "__gpu$xla.gpu.triton"
_CONFIG = "mhlo.backend_config"


def strip_locations(module: Any) -> None:
    """Changes the StableHLO module in place; what the kernels compute stays the same."""
    with module.context:
        calls = [
            operation
            for operation in _operations(module.operation)
            if operation.name == "stablehlo.custom_call"
            and ir.StringAttr(operation.attributes["call_target_name"]).value == TARGET
        ]
        for call in calls:
            attributes: Any = ir.DictAttr(call.attributes[_CONFIG])
            config = {item.name: item.attr for item in attributes}
            kernel = ir.StringAttr(config["ir"]).value_bytes
            config["ir"] = ir.StringAttr.get(_without_locations(kernel, module.context))
            call.attributes[_CONFIG] = ir.DictAttr.get(config)


def _operations(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _operations(inner.operation)


def _without_locations(bytecode: bytes, context: Any) -> bytes:
    # In jax's own context: operations of a dialect that a new one does not know (the barrier of
    # `gpu`) would be written as unregistered ones, which XLA cannot read.
    with context, ir.Location.unknown():
        triton.dialect.register_dialect(context)
        module = ir.Module.parse(bytecode)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        stripped = io.BytesIO()
        module.operation.write_bytecode(stripped)
        return stripped.getvalue()
