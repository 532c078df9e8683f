"""Instructions of a GPU's plan whose result may differ from run to run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from xlapipe.plans.hlo import HloModule, Instruction
from xlapipe.plans.plan import Plan

# XLA's rule (ScatterDeterminismExpander): in any order these have the same result.
_ANY_ORDER = frozenset({"and", "maximum", "minimum", "or", "xor"})
_ANY_ORDER_OF_INTEGERS = frozenset({"add", "multiply"})
_ADDS_ATOMICALLY = ("__cudnn$convBackwardFilter", "__cudnn$convBackwardInput")
OPTIONS = ("xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops")
"""Either lets XLA use only what has the same result in each run."""


@dataclass(frozen=True, slots=True)
class RunToRun:
    """An instruction whose result may differ.

    Attributes:
      reason: why, in words.
      advice: what removes it, as an imperative sentence.
    """

    instruction: Instruction
    reason: str
    advice: str


def run_to_run(plan: Plan, options: Mapping[str, str]) -> Iterator[RunToRun]:
    """The instructions, those inside of fusions included.

    Args:
      plan: of a GPU, with an HLO module.
      options: XLA's options that it was compiled with.
    """
    assert plan.module is not None
    is_set = any(options.get(name, "").lower() in ("true", "1") for name in OPTIONS)
    for computation in plan.module.computations.values():
        for instruction in computation.instructions:
            target = instruction.custom_call_target or ""
            if instruction.opcode == "scatter":
                yield from _scatter(plan.module, instruction, computation.by_name)
            elif target.startswith(_ADDS_ATOMICALLY) and not is_set:
                yield RunToRun(
                    instruction,
                    f"{target} may use an algorithm of cuDNN that adds in any order",
                    f"set the option {OPTIONS[1]}",
                )


def _scatter(
    module: HloModule, scatter: Instruction, by_name: Mapping[str, Instruction]
) -> Iterator[RunToRun]:
    indices = by_name[scatter.operands[len(scatter.operands) // 2]]
    is_single = prod(indices.shape.arrays[0].dims) <= 1
    if scatter.unique_indices or is_single or _is_any_order(module, scatter):
        return
    yield RunToRun(
        scatter,
        "a scatter by atomics, whose indices may repeat: the order of its updates differs",
        "state unique_indices=True if no index repeats (x.at[i].add(v, unique_indices=True)), or "
        f"set the option {OPTIONS[1]}, which sorts the indices first",
    )


def _is_any_order(module: HloModule, scatter: Instruction) -> bool:
    """Whether a scatter combines values with one operation whose order does not matter."""
    body = module.computations[scatter.called_computations[-1]]
    operations = [item for item in body.instructions if item.opcode != "parameter"]
    if len(operations) != 1:
        return False
    (operation,) = operations
    is_integer = operation.shape.arrays[0].element.startswith(("s", "u", "pred"))
    return operation.opcode in _ANY_ORDER or (
        operation.opcode in _ANY_ORDER_OF_INTEGERS and is_integer
    )
