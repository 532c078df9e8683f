"""Which blocks of Triton XLA can compile in a fusion.

Blocks are powers of two. Where a fused reshape makes one dimension of the product of several, a
block must divide the inner ones or be a multiple of them; where a fused concatenation makes it, a
block must not extend over two operands. XLA's tuner cannot compile other candidates either.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import gcd, prod

from xlapipe.time.predicted_locks.form import dot_operands, dot_sizes

_LEAST = 8
# Shared memory of a block on a GPU of compute capability 9.0.
_SHARED_BYTES = 232_448
_BYTES = {"f64": 8, "c64": 8, "f32": 4, "s32": 4, "bf16": 2, "f16": 2}
# The least block of each dimension, where it is not the least of all.
_LEAST_BLOCK = {"block_m": 16, "block_n": 8, "block_k": 16}
_RESULT = re.compile(r"= \w+\[([\d,]*)\]\S* (bitcast|reshape|concatenate)\((.*?)\)(.*)")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")
_DIMENSION = re.compile(r"dimensions=\{(\d+)\}")
_BLOCK = re.compile(r"(block_[mnk]): (\d+)")
_STAGES = re.compile(r"num_stages: (\d+)")
_LOADED = re.compile(r"= (\w+)\[([\d,]*)\]\S* (parameter|concatenate)\((.*?)\)")


def block_limits(text: str) -> dict[str, int]:
    """The largest blocks of a product, by Triton's name of the block; without those of any size."""
    sizes = dot_sizes(text)
    limits: dict[str, int] = {}
    for size, limit in _limits_by_size(text):
        for name, block_size in zip(("block_m", "block_n", "block_k"), sizes, strict=True):
            if block_size == size:
                limits[name] = min(limit, limits.get(name, limit))
    return limits


def excludes_triton(limits: Mapping[str, int]) -> bool:
    """Whether even Triton's smallest block is too large."""
    return any(limit < _LEAST for limit in limits.values())


def is_within(config: str, limits: Mapping[str, int]) -> bool:
    """Whether XLA can compile a result with these limits."""
    blocks = _BLOCK.findall(config)
    return all(int(size) <= limits.get(name, int(size)) for name, size in blocks)


def fitted(config: str, text: str) -> str:
    """A result of Triton with the tile that XLA's tuner would try in its place for this product.

    A block is at most the power of two that holds its dimension, and a stage has a block of k of
    its own: so are all 2,118 tiles in the tuner's logs of 24 programs (jaxlib 0.12.0.1, an H100).
    XLA refuses a plan with stages that need more shared memory than there is.
    """
    sizes = dot_sizes(text)
    if "backend: TRITON" not in config or 0 in sizes:
        return config
    most = {
        name: max(least, 1 << (size - 1).bit_length())
        for (name, least), size in zip(_LEAST_BLOCK.items(), sizes, strict=True)
    }
    config = _BLOCK.sub(lambda block: f"{block[1]}: {min(int(block[2]), most[block[1]])}", config)
    blocks = {name: int(size) for name, size in _BLOCK.findall(config)}
    if len(blocks) < len(most):
        return config
    steps = -(-sizes[2] // blocks["block_k"])
    fit = max(1, min(steps, _SHARED_BYTES // _stage_bytes(text, blocks)))
    return _STAGES.sub(lambda stages: f"num_stages: {min(int(stages[1]), fit)}", config)


def _stage_bytes(text: str, blocks: Mapping[str, int]) -> int:
    """Shared memory of a stage: a tile of each operand, as it is loaded."""
    loaded: dict[int, int] = {}
    for kind, dims, opcode, operands in _LOADED.findall(text):
        # Each operand of a concatenation is loaded, and what they are together is kept.
        copies = len(_SHAPE.findall(operands)) + 1 if opcode == "concatenate" else 1
        elements = prod(_numbers(dims))
        loaded[elements] = max(_BYTES.get(kind, 1) * copies, loaded.get(elements, 0))
    total = 0
    for block, (kind, elements) in zip(("block_m", "block_n"), dot_operands(text), strict=True):
        bytes_each = loaded.get(elements, _BYTES.get(kind, 1))
        total += blocks[block] * blocks["block_k"] * bytes_each
    return total


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
