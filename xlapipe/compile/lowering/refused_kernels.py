"""Which Pallas kernels of a program XLA does not compile: each is compiled by itself.

XLA's message about a kernel names neither the kernel nor a line.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xlapipe.compile.lowering.lowered_program import LoweredProgram
from xlapipe.plans.call_chains import is_own_code
from xlapipe.plans.hlo import KERNEL_NAMES

_OP_NAME = re.compile(r'([^/()"]+)/pallas_call"')
_FRAME = re.compile(r'"(?P<file>[^"]+)":(?P<line>\d+):\d+')
# XLA appends where it was, and the input, which may be a whole kernel.
_CONTEXT = re.compile(r", context: \[.*", re.DOTALL)
_MOST_KERNELS = 32
_CONFIGS = ("mhlo.backend_config", "backend_config")


@dataclass(frozen=True, slots=True)
class RefusedKernel:
    """A kernel that XLA does not compile by itself.

    Attributes:
      name: as given to `pallas_call`, or that of its function.
      source: `file:line` of the `pallas_call`; None if the module does not have it.
      message: XLA's.
    """

    name: str
    source: str | None
    message: str

    def __str__(self) -> str:
        at = f" at {self.source}" if self.source is not None else ""
        return f"the Pallas kernel {self.name}{at}: {self.message}"


def refused_kernels(
    program: LoweredProgram, devices: list[Any], options: Mapping[str, Any]
) -> list[RefusedKernel]:
    """The program's Pallas kernels that XLA does not compile, with its message for each.

    Args:
      devices: to compile for; one of them is enough for a kernel.
      options: XLA's; nothing is dumped.
    """
    import numpy as np
    from jax.extend.backend import get_compile_options
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    from xlapipe.compile.lowering.strip_kernel_locations import may_hold_kernels
    from xlapipe.jax_private import DeviceList, backend_compile_and_load

    if not may_hold_kernels(program.stablehlo):
        return []
    refused = []
    overrides = {name: value for name, value in options.items() if "dump" not in name}
    with mlir.make_ir_context():
        module = ir.Module.parse(program.stablehlo)
        for call in list(_kernels(module))[:_MOST_KERNELS]:
            compile_options = get_compile_options(
                num_replicas=1,
                num_partitions=1,
                device_assignment=np.array([[devices[0].id]]),
                env_options_overrides=overrides,
                backend=devices[0].client,
            )
            try:
                backend_compile_and_load(
                    devices[0].client,
                    _alone(call),
                    DeviceList((devices[0],)),
                    compile_options,
                    [],
                )
            except RuntimeError as error:
                message = _CONTEXT.sub("", str(error)).strip()
                refused.append(RefusedKernel(_name(call), _source(call), f"{message:.400}"))
    return refused


def listed_kernels(program: LoweredProgram) -> str:
    """The program's Pallas kernels and their lines; empty if it has none."""
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    from xlapipe.compile.lowering.strip_kernel_locations import may_hold_kernels

    if not may_hold_kernels(program.stablehlo):
        return ""
    with mlir.make_ir_context():
        calls = _kernels(ir.Module.parse(program.stablehlo))
        return ", ".join(dict.fromkeys(f"{_name(call)} at {_source(call)}" for call in calls))


def _kernels(module: Any) -> Iterator[Any]:
    """The calls of Pallas kernels in the module, one of each kernel."""
    from xlapipe.compile.lowering.strip_kernel_locations import operations

    seen = set()
    for operation in operations(module.operation):
        if operation.name == "stablehlo.custom_call" and _target(operation) in KERNEL_NAMES:
            key = _config(operation), str([value.type for value in operation.operands])
            if key not in seen:
                seen.add(key)
                yield operation


def _alone(call: Any) -> Any:
    """A module whose only function passes its arguments to this call."""
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import func

    module = ir.Module.create(loc=ir.Location.unknown())
    module.operation.attributes["sym_name"] = ir.StringAttr.get("kernel")
    types = [value.type for value in call.operands], [value.type for value in call.results]
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        function = func.FuncOp("main", ir.FunctionType.get(*types))
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            clone = call.clone()
            for position, argument in enumerate(block.arguments):
                clone.operands[position] = argument
            func.ReturnOp(list(clone.results))
    return module


def _target(call: Any) -> str:
    from jax.extend.mlir import ir

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
