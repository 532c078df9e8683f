"""What one kernel computes, and how, as one short text: equal for equal kernels anywhere."""

import hashlib
from collections.abc import Iterator, Mapping

from xlapipe.cost.schedule import Site
from xlapipe.plans.hlo import HloModule, Instruction


def fingerprint(site: Site, module: HloModule) -> str:
    """A digest of a kernel without its names: opcodes, shapes with layouts, XLA's own decisions.

    Tiles and algorithms are in the backend config, so a kernel that was tuned otherwise differs.
    """
    shapes = [site.scope.by_name[name].shape.text for name in site.inner.operands]
    parts = [shapes, *_parts(site.inner, {}, module)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _parts(
    instruction: Instruction, numbers: Mapping[str, int], module: HloModule
) -> Iterator[tuple[object, ...]]:
    """An instruction with its operands by number, and the computations that it calls."""
    yield (
        instruction.opcode,
        instruction.custom_call_target,
        instruction.fusion_kind,
        instruction.shape.text,
        [numbers.get(name) for name in instruction.operands],
        instruction.operand_indices,
        instruction.parameter_number,
        instruction.integer,
        instruction.comparison,
        instruction.unique_indices,
        instruction.contraction,
        instruction.backend_config,
    )
    for name in instruction.called_computations:
        called = module.computations.get(name)
        if called is not None:
            inside = {item.name: number for number, item in enumerate(called.instructions)}
            for item in called.instructions:
                yield from _parts(item, inside, module)
