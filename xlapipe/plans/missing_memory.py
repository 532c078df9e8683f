"""Memory that a step needs on its device, and that a plan compiled without the device lacks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from xlapipe.plans.hlo import HloModule, Instruction, SourceLine

# XLA's rule for a device of which it knows no other: CUB sorts more elements than this.
_ELEMENTS_FOR_CUB = 16_384
_MOST_OPERANDS = 2


class MissingKind(StrEnum):
    """Which decision XLA takes on the device only."""

    CUDNN_CALL = "cuDNN call"
    SORT = "sort"
    CONVOLUTION = "convolution"


@dataclass(frozen=True)
class MissingMemory:
    """An instruction that may need more memory on the device than in the plan."""

    kind: MissingKind
    instruction: str
    about_bytes: int | None
    source: SourceLine | None


def sorts_for_cub(module: HloModule | None) -> Iterator[Instruction]:
    """The sorts in any computation that XLA may rewrite to CUB on a device."""
    for computation in module.computations.values() if module is not None else ():
        for instruction in computation.instructions:
            if (
                instruction.opcode == "sort"
                and len(instruction.operands) <= _MOST_OPERANDS
                and prod(instruction.shape.arrays[0].dims) > _ELEMENTS_FOR_CUB
            ):
                yield instruction


def scratch_estimate_bytes(sort: Instruction) -> int:
    """CUB's second buffers: the operands once more; a sort of one operand has keys beside it."""
    return (sort.shape.size_bytes or 0) * (2 if len(sort.shape.arrays) == 1 else 1)


def missing_lines(missing: Sequence[MissingMemory]) -> Iterator[str]:
    """What a plan lacks, in words: one line for each kind, and one for each instruction."""
    for kind, text in _TEXTS.items():
        items = [item for item in missing if item.kind is kind]
        if not items:
            continue
        noun = kind if len(items) == 1 else f"{kind}s"
        known = sum(item.about_bytes or 0 for item in items)
        yield f"{len(items)} {noun} {text}" + (f", about {known:,} B" if known else "")
        for item in items:
            yield f"  {item.instruction}: {item.source or 'source line unknown'}"


_TEXTS = {
    MissingKind.CUDNN_CALL: (
        "without workspace: cuDNN states its size only on a GPU, where temp is larger by it"
    ),
    MissingKind.SORT: (
        "that XLA may give to CUB on the device: the plan lacks CUB's scratch in temp"
    ),
    MissingKind.CONVOLUTION: (
        "by XLA's own kernel, not the device's choice: there MIOpen computes it, with a workspace"
    ),
}
