"""Which instructions a value comes from, across fusion boundaries but not into loop bodies.

XLA may split one operation over several fusions (a product in one, its sum in the next). To see
what a reduction reduces, operands are followed from a fused parameter to the fusion's operand,
and from a fusion to the root of its body.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plan.hlo import Computation, HloModule, Instruction

# Operations that change the type or shape of a value but not the value itself.
PASS_THROUGH = frozenset(
    {
        "bitcast",
        "bitcast-convert",
        "convert",
        "copy",
        "get-tuple-element",
        "pad",
        "reshape",
        "slice",
        "transpose",
    }
)


@dataclass(frozen=True)
class Site:
    """An instruction and the computation that contains it."""

    computation: Computation
    instruction: Instruction


@dataclass(frozen=True)
class Dataflow:
    """Operand and body queries over a complete `HloModule`."""

    module: HloModule

    @cached_property
    def _fusion_of(self) -> dict[str, Site]:
        """The fusion that calls a fused computation, by the computation's name."""
        return {
            called: Site(computation, instruction)
            for computation, instruction in self.module.instructions()
            if instruction.opcode == "fusion"
            for called in instruction.called_computations
        }

    def operands(self, site: Site) -> Iterator[Site]:
        """The instructions that `site` reads, across fusion boundaries."""
        instruction, computation = site.instruction, site.computation
        if instruction.opcode == "parameter":
            fusion = self._fusion_of.get(computation.name)
            number = instruction.parameter_number
            if fusion is None or number is None or number >= len(fusion.instruction.operands):
                return
            yield from self._site(fusion.computation, fusion.instruction.operands[number])
        elif instruction.opcode == "fusion":
            for called in instruction.called_computations:
                body = self.module.computations.get(called)
                if body is not None:
                    yield from self._site(body, body.root)
        else:
            for name in instruction.operands:
                yield from self._site(computation, name)

    @staticmethod
    def _site(computation: Computation, name: str) -> Iterator[Site]:
        instruction = computation.by_name.get(name)
        if instruction is not None:
            yield Site(computation, instruction)

    def origins(self, site: Site) -> Iterator[Site]:
        """The nearest operations that compute what `site` reads, skipping `PASS_THROUGH` ones."""
        pending, seen = list(self.operands(site)), set[tuple[str, str]]()
        while pending:
            origin = pending.pop()
            key = (origin.computation.name, origin.instruction.name)
            if key in seen:
                continue
            seen.add(key)
            opcode = origin.instruction.opcode
            if opcode in PASS_THROUGH or opcode in ("parameter", "fusion", "tuple"):
                pending.extend(self.operands(origin))
            else:
                yield origin

    def body_has_any(self, instruction: Instruction, opcodes: frozenset[str]) -> bool:
        """Whether a computation that `instruction` calls has one of `opcodes` or is unknown."""
        computations = self.module.computations
        return any(
            name not in computations or not computations[name].opcodes.isdisjoint(opcodes)
            for name in instruction.called_computations
        )

    def body(self, instruction: Instruction) -> Iterator[Site]:
        """Every instruction of the computations that `instruction` calls, directly or not."""
        pending, seen = list(instruction.called_computations), set[str]()
        while pending:
            name = pending.pop()
            computation = self.module.computations.get(name)
            if computation is None or name in seen:
                continue
            seen.add(name)
            for inner in computation.instructions:
                yield Site(computation, inner)
                pending.extend(inner.called_computations)
