"""Workspaces of library calls, which the library states only on the device.

A call is identified by its target and its results, which a module before and after optimisation
share: `__cudnn$fmhaSoftmax bf16[2,8,512,64] f32[2,8,512]`.
"""

import re
from collections.abc import Iterable, Mapping

from xlapipe.plan.hlo import Instruction

_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
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
        *results, (dtype, size) = _ARRAY.findall(call.shape)
        if dtype == _WORKSPACE_TYPE and size.isdigit():
            arrays = [(kind, map(int, dims.split(","))) for kind, dims in results if dims]
            key = call_key(call.custom_call_target or "", arrays)
            sizes.setdefault(key, set()).add(int(size))
    return {key: found.pop() for key, found in sorted(sizes.items()) if len(found) == 1}
