"""What one kernel computes, and how, as one short text: equal for equal kernels anywhere."""

import hashlib
from collections.abc import Iterator

from xlapipe.cost.schedule import Site
from xlapipe.plans.hlo import Computation, HloModule, Instruction


def fingerprint(site: Site, module: HloModule) -> str:
    """A digest of a kernel without its names: opcodes, shapes with layouts, XLA's own decisions.

    Tiles and algorithms are in the backend config, so a kernel that was tuned otherwise differs.
    """
    inner = site.inner
    shapes = [_shape(site.scope, name) for name in inner.operands]
    lines = [" ".join(shapes), *_lines(inner, {}, module)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _shape(scope: Computation, name: str) -> str:
    operand = scope.by_name.get(name)
    return operand.shape.text if operand is not None else "?"


def _lines(instruction: Instruction, numbers: dict[str, int], module: HloModule) -> Iterator[str]:
    """An instruction with its operands by number, and the computations that it calls."""
    yield " ".join(
        (
            instruction.opcode,
            instruction.custom_call_target or instruction.fusion_kind or "",
            instruction.shape.text,
            ",".join(str(numbers.get(name, "")) for name in instruction.operands),
            str(instruction.parameter_number),
            str(instruction.integer),
            instruction.comparison or "",
            str(instruction.contraction),
            instruction.backend_config,
        )
    )
    for name in instruction.called_computations:
        called = module.computations.get(name)
        if called is None:
            continue
        inside = {item.name: number for number, item in enumerate(called.instructions)}
        for item in called.instructions:
            yield from _lines(item, inside, module)
