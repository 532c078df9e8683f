"""Bytes of a collective in closed form: operand bytes, and bytes that a device has to send.

n is the number of participating devices; S is the size of the full array in bytes (the result of
an all-gather, the operand of an all-reduce or a reduce-scatter).
"""

from collections.abc import Sequence

from xlapipe.plans.shapes import Shape

Groups = tuple[tuple[int, ...], ...]


def common_size(groups: Groups) -> int | None:
    """Number of devices in each group; None if there are no groups or their sizes differ."""
    sizes = {len(group) for group in groups}
    return sizes.pop() if len(sizes) == 1 else None


def operand_bytes_of(
    kind: str, shapes: Sequence[Shape], output_bytes: int | None, group_size: int | None
) -> int | None:
    """Bytes of the operands, from their shapes or, for elements of a tuple, from the result.

    A Plan does not store which element of a tuple an operand is. The result of an all-gather is n
    times its operand, the result of a reduce-scatter is 1/n of it; other collectives, except
    ragged ones, have operands and results of the same size.

    Returns:
      The bytes on one device; None if the shapes do not determine them.
    """
    if not any(shape.is_tuple for shape in shapes):
        sizes = [shape.size_bytes for shape in shapes]
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
    """Least number of bytes that a device sends, without reduction in the network.

    S (n - 1) / n for all-gather, reduce-scatter and all-to-all; twice that for all-reduce; S for
    a broadcast and for a permutation (on a device that has a target). A ring sends exactly this,
    and nccl-tests uses the same factors to convert a time into a bus bandwidth (its
    doc/PERFORMANCE.md).

    Returns:
      The bytes, rounded up; None for ragged collectives, and if S or n is unknown.
    """
    whole_bytes = output_bytes if kind == "all-gather" else operand_bytes
    if whole_bytes is None or kind == "ragged-all-to-all":
        return None
    if kind in ("collective-broadcast", "collective-permute"):
        return whole_bytes
    if group_size is None:
        return None
    scaled_bytes = whole_bytes * (group_size - 1) * (2 if kind == "all-reduce" else 1)
    return -(-scaled_bytes // group_size)
