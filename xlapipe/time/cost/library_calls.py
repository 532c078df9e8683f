"""Calls of NVIDIA's libraries, also those that a fusion makes on slices of its operands."""

from xlapipe.plans.hlo import Computation, HloModule, Instruction

_TARGETS = ("__cublas$", "__cudnn$", "__cusolver$", "__cub$")


def library_call(
    instruction: Instruction, scope: Computation, module: HloModule
) -> tuple[Instruction, Computation] | None:
    """The call that an instruction makes, and the computation that has it; None if it makes none.

    A fusion makes one where XLA reads the slices of a call's operands in place, or writes the
    result into a larger array (its dynamic slice fusion).
    """
    if (instruction.custom_call_target or "").startswith(_TARGETS):
        return instruction, scope
    if instruction.fusion_kind != "kCustom":
        return None
    for name in instruction.called_computations:
        body = module.computations.get(name)
        if body is None or "custom-call" not in body.opcodes:
            continue
        for inner in body.instructions:
            if (inner.custom_call_target or "").startswith(_TARGETS):
                return inner, body
    return None
