"""Workspaces of library calls, which the library states only on the device.

A call is identified by its target and its results, which a module before and after optimisation
share: `__cudnn$fmhaSoftmax bf16[2,8,512,64] f32[2,8,512]`.
"""

from collections.abc import Iterable, Mapping

from xlapipe.plans.hlo import Instruction

_WORKSPACE_TYPE = "u8"


def call_key(target: str, results: Iterable[tuple[str, Iterable[int]]]) -> str:
    """The key of a call.

    Args:
      results: dtype as XLA writes it, and dimensions, of each result except the workspace.
    """
    arrays = (f"{dtype}[{','.join(map(str, dims))}]" for dtype, dims in results)
    return " ".join((target, *arrays))


def workspaces_of(calls: Iterable[Instruction]) -> Mapping[str, int]:
    """Bytes of the workspaces by the call's key; calls that differ under one key are left out."""
    sizes: dict[str, set[int]] = {}
    for call in calls:
        *results, workspace = call.shape.arrays
        if workspace.element == _WORKSPACE_TYPE and len(workspace.dims) == 1:
            arrays = [(result.element, result.dims) for result in results if result.dims]
            key = call_key(call.custom_call_target or "", arrays)
            sizes.setdefault(key, set()).add(workspace.dims[0])
    return {key: known.pop() for key, known in sorted(sizes.items()) if len(known) == 1}
