"""Bytes of a collective in closed form: what goes in, and what a device has to send.

n is the number of devices that join, S the bytes of the whole (an all-gather's result, an
all-reduce's or a reduce-scatter's operand).
"""

from collections.abc import Sequence

from xlapipe.plan.shapes import shape_bytes

Groups = tuple[tuple[int, ...], ...]


def common_size(groups: Groups) -> int | None:
    """Size of the groups; None where there are none, or of several sizes."""
    sizes = {len(group) for group in groups}
    return sizes.pop() if len(sizes) == 1 else None


def operand_bytes_of(
    kind: str, shapes: Sequence[str], output_bytes: int | None, group_size: int | None
) -> int | None:
    """Bytes of the operands, from their shapes or, for parts of a tuple, from the result.

    Which part of a tuple an operand is, a Plan does not keep. The result of an all-gather is n
    times its operand, that of a reduce-scatter the n-th part; others are of one size, but for
    ragged ones.
    """
    if not any(shape.startswith("(") for shape in shapes):
        sizes = [shape_bytes(shape) for shape in shapes]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None
    if output_bytes is None or kind == "ragged-all-to-all":
        return None
    if kind == "all-gather":
        exact = group_size is not None and output_bytes % group_size == 0
        return output_bytes // group_size if exact else None  # type: ignore[operator]
    if kind == "reduce-scatter":
        return None if group_size is None else output_bytes * group_size
    return output_bytes


def wire_bytes(
    kind: str, operand_bytes: int | None, output_bytes: int | None, group_size: int | None
) -> int | None:
    """What a device sends, at least, and without reduction in the network.

    S (n - 1) / n for all-gather, reduce-scatter and all-to-all, twice that for all-reduce, S for
    a broadcast and for a permutation (of a device that has a target): a ring sends just that, and
    by these factors NCCL's tests make a bus bandwidth of a time (doc/PERFORMANCE.md of
    nccl-tests). Rounded up; None where S or n is unknown, and for ragged ones.
    """
    whole = output_bytes if kind in ("all-gather", "collective-broadcast") else operand_bytes
    if whole is None or kind == "ragged-all-to-all":
        return None
    if kind in ("collective-broadcast", "collective-permute"):
        return whole
    if group_size is None:
        return None
    sent = whole * (group_size - 1) * (2 if kind == "all-reduce" else 1)
    return -(-sent // group_size)
