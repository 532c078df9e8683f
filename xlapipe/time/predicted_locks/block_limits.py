"""Which blocks of Triton XLA can compile in a fusion.

Blocks are powers of two. Where a fused reshape makes one dimension of the product of several, a
block must divide the inner ones or be a multiple of them; where a fused concatenation makes it, a
block must not extend over two operands. XLA's tuner cannot compile other candidates either.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import gcd, prod

from xlapipe.time.predicted_locks.form import dot_sizes

_LEAST = 8
_RESULT = re.compile(r"= \w+\[([\d,]*)\]\S* (bitcast|reshape|concatenate)\((.*?)\)(.*)")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")
_DIMENSION = re.compile(r"dimensions=\{(\d+)\}")
_BLOCK = re.compile(r"(block_[mnk]): (\d+)")


def block_limits(text: str) -> dict[str, int]:
    """The largest blocks of a product, by Triton's name of the block; without those of any size.

    Args:
      text: canonical text of the fusion.
    """
    sizes = dot_sizes(text)
    limits: dict[str, int] = {}
    for size, limit in _limits_by_size(text):
        for name, own in zip(("block_m", "block_n", "block_k"), sizes, strict=True):
            if own == size:
                limits[name] = min(limit, limits.get(name, limit))
    return limits


def excludes_triton(limits: Mapping[str, int]) -> bool:
    """Whether even Triton's smallest block is too large."""
    return any(limit < _LEAST for limit in limits.values())


def is_within(config: str, limits: Mapping[str, int]) -> bool:
    """Whether XLA can compile a result with these limits."""
    blocks = _BLOCK.findall(config)
    return all(int(size) <= limits.get(name, int(size)) for name, size in blocks)


def _limits_by_size(text: str) -> Iterator[tuple[int, int]]:
    """The size of a dimension and its largest block, for each dimension with a limit."""
    for result, opcode, operands, rest in _RESULT.findall(text):
        shapes = [_numbers(dims) for dims in _SHAPE.findall(operands)]
        if opcode == "concatenate":
            dimension = int(_DIMENSION.findall(rest)[0])
            ends = list(accumulate(shape[dimension] for shape in shapes))
            yield ends[-1], _power_of_two(gcd(*ends[:-1]))
            continue
        for before, after in _regrouped(shapes[0], _numbers(result)):
            several, one = (before, after) if len(after) == 1 else (after, before)
            if len(one) == 1 and len(several) > 1 and (limit := _limit(several)) is not None:
                yield one[0], limit


def _limit(dims: list[int]) -> int | None:
    """The largest block of the dimension that these were made of; None for any size."""
    limit = 1
    for size in reversed(dims[1:]):
        limit *= _power_of_two(size)
        if _power_of_two(size) != size:
            return limit
    return None


def _regrouped(before: list[int], after: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest groups of dimensions of both shapes that have the same number of elements."""
    before, after = ([size for size in dims if size != 1] for dims in (before, after))
    groups: tuple[list[int], list[int]] = [], []
    while before or after:
        shorter = prod(groups[0]) <= prod(groups[1])
        source = before if (shorter and before) or not after else after
        groups[source is after].append(source.pop(0))
        if prod(groups[0]) == prod(groups[1]):
            yield groups
            groups = [], []


def _power_of_two(size: int) -> int:
    """The largest power of two that divides a number."""
    return size & -size


def _numbers(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]
