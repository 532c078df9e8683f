"""Workspaces of cuDNN's attention, which cuDNN states only on the device."""

from collections.abc import Sequence
from math import prod

_FORWARD, _BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
_LEAST_BYTES = 256


def attention_workspace_bytes(
    target: str, results: Sequence[tuple[str, Sequence[int]]]
) -> int | None:
    """The workspace of a call, by a rule that all recorded calls follow.

    Forward, 256 B. Backward, also the gradient of the queries in float32, and a float32 per row.
    Recorded on an H200 and an H100 with cuDNN 9.19 for sequences of 64 to 2,048.

    Args:
      results: dtype as XLA writes it, and dimensions, of each result except the workspace; of the
        gradients batch, heads, sequence and depth.
    """
    if target == _FORWARD:
        return _LEAST_BYTES
    shapes = {tuple(dims) for _, dims in results}
    if target != _BACKWARD or len(shapes) != 1:
        return None
    *rows, depth = shapes.pop()
    return 4 * prod(rows) * (depth + 1) + _LEAST_BYTES
