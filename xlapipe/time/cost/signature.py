"""What one kernel computes, and how, without its names: equal for equal kernels anywhere."""

from collections.abc import Iterator, Sequence

from xlapipe.plans.hlo import HloModule, Instruction
from xlapipe.time.cost.schedule import Site


def signature(site: Site, module: HloModule) -> tuple[object, ...]:
    """Opcodes, shapes with layouts and XLA's own decisions of a kernel and what it calls.

    Tiles and algorithms are in the backend config, so a kernel that was tuned otherwise differs.
    """
    by_name = site.scope.by_name
    shapes = [by_name[name].shape.text for name in site.inner.operands if name in by_name]
    return (*shapes, *_parts([site.inner], site.inner.name, module))


def _parts(instructions: Sequence[Instruction], root: str, module: HloModule) -> Iterator[object]:
    """Instructions with operands by number, and the computations that they call."""
    numbers = {item.name: number for number, item in enumerate(instructions)}
    yield numbers.get(root)
    for item in instructions:
        yield (
            item.opcode,
            item.custom_call_target,
            item.fusion_kind,
            item.shape.text,
            item.operand_indices,
            item.parameter_number,
            item.integer,
            item.comparison,
            item.unique_indices,
            item.contraction,
            item.backend_config,
            *[numbers.get(name) for name in item.operands],
        )
        for name in item.called_computations:
            called = module.computations.get(name)
            if called is not None:
                yield from _parts(called.instructions, called.root, module)
