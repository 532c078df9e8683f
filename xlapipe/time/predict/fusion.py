"""What a kernel computes: its launch, and of a fusion the instruction by which XLA emits it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plans import Computation, HloModule, Instruction, opcodes
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.predict.arrays import first_array, updated_in_place
from xlapipe.time.predict.gpu import Gpu
from xlapipe.time.predict.reductions import Reduced, reduced

# Elements per thread to which XLA unrolls loops over large arrays.
_ELEMENTS_OF_A_THREAD = 4
SHORT_TYPES = ("bf16", "f16")
"""Types of 16 bits."""
# Adjacent 16-bit elements per thread of a transpose.
_SHORT_ELEMENTS = 2
# Opcodes that decide how XLA emits a fusion: the first of these that its body has.
_HEROES = (
    *("scatter", "sort", "reduce", "reduce-window", "gather", "transpose"),
    *("dynamic-update-slice", "dynamic-slice", "concatenate", "pad", "reverse"),
)


@dataclass(frozen=True)
class LaunchedKernel:
    """What a kernel computes, and how it is launched.

    Attributes:
      inner: the instruction, in `scope`.
      cost: of one launch.
      threads, per_block: of the launch, and of a block; 0 if unknown.
      gpu: that runs it.
    """

    inner: Instruction
    scope: Computation
    module: HloModule
    cost: KernelCost
    threads: int
    per_block: int
    gpu: Gpu

    @cached_property
    def flops(self) -> Mapping[str, int]:
        """Operations by type, without zeros."""
        return {name: count for name, count in (self.cost.flops or {}).items() if count}

    @property
    def body(self) -> Computation:
        return self.module.computations[self.inner.called_computations[0]]


class Fusion(LaunchedKernel):
    """A kernel of a fusion, by what its body has."""

    @property
    def by_triton(self) -> bool:
        """Whether Triton computes it, each instruction's tile once."""
        return "triton" in self.cost.kind

    @property
    def emitter(self) -> str:
        """What writes its code: `loop` and `input` are XLA's, whose threads are followed."""
        emitter = {"kLoop": "loop", "kInput": "input"}.get(self.inner.fusion_kind or "", "")
        return emitter or ("triton" if self.by_triton else "custom")

    @cached_property
    def hero(self) -> Instruction | None:
        """The instruction by which XLA emits it; None if all are element-wise.

        The largest of the first opcode of `_HEROES`. XLA chooses by an instruction at the root, or
        with only element-wise ones between; others count if there is none.
        """

        def order(candidate: tuple[bool, Instruction]) -> tuple[bool, int, int]:
            at_root, instruction = candidate
            elements = first_array(instruction.shape).elements
            return not at_root, _HEROES.index(instruction.opcode), -elements

        candidates = list(_candidates(self.body, self.module, once=self.by_triton))
        return min(candidates, key=order)[1] if candidates else None

    @property
    def opcode(self) -> str:
        """The opcode of the hero; empty without one."""
        return self.hero.opcode if self.hero is not None else ""

    @cached_property
    def in_place(self) -> bool:
        """Whether it updates an array in place."""
        return self.opcode == "dynamic-update-slice" and bool(updated_in_place(self.body))

    @cached_property
    def sums(self) -> Reduced | None:
        """What it reduces; None if its hero is not a reduction."""
        return reduced(self.hero, self.body) if self.hero and self.opcode == "reduce" else None

    @property
    def elements_of_a_thread(self) -> int:
        """Elements of the result, or of an update in place, that each thread computes."""
        element, _, elements = first_array(self.inner.shape)
        if self.emitter != "loop":
            return _SHORT_ELEMENTS if self.opcode == "transpose" and element in SHORT_TYPES else 1
        if not self.threads:
            return _ELEMENTS_OF_A_THREAD
        if self.in_place and self.hero is not None:
            elements = first_array(self.body.by_name[self.hero.operands[1]].shape).elements
        return max(1, min(_ELEMENTS_OF_A_THREAD, round(elements / self.threads)))

    def assumed_threads(self, elements: float) -> int:
        """Threads of a launch whose number is unknown, by the elements that they compute."""
        return self.cost.written_bytes // 4 if self.in_place else int(elements) // 4


def _candidates(
    body: Computation, module: HloModule, *, once: bool
) -> Iterator[tuple[bool, Instruction]]:
    """Instructions of `_HEROES`, the last ones first, and whether each counts as at the root."""
    at_root = {body.root}
    for instruction in reversed(body.instructions):
        name, opcode = instruction.name, instruction.opcode
        if opcode in opcodes.HAS_BODY:
            inside = module.computations[instruction.called_computations[0]]
            yield from _candidates(inside, module, once=once)
        if opcode in _HEROES:
            yield once or name in at_root, instruction
        if name in at_root and opcode not in opcodes.READS_OTHER_INDICES:
            at_root.update(instruction.operands)
