"""Choose a result for each tuned instruction of a module."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, gcd, prod
from types import MappingProxyType

from xlapipe.time.predicted_locks.basis import Basis
from xlapipe.time.predicted_locks.fingerprint import fingerprint
from xlapipe.time.predicted_locks.form import Form, dot_operands, dot_sizes, form_of
from xlapipe.time.predicted_locks.instructions import is_generic
from xlapipe.time.predicted_locks.known_results import KnownResult, KnownResults

# Largest distance, in octaves, from which a result is used.
_FURTHEST = 24.0
_OTHER_DEVICE = 2.0
_VOTERS = 20
# Another tuning chooses the other backend of a product as often as a margin of this many octaves
# has a logistic distribution's probability; where the margin is not known, that often.
_NEAR_TIE, _ASSUMED_CHANCE = 0.1, 0.1
_OTHER_BACKEND = {"TRITON": "CUBLASLT_FISSION", "CUBLASLT_FISSION": "TRITON"}
_WITH_WORKSPACE = ("CUBLASLT", "CUBLASLT_FISSION")
_NATIVE = KnownResult("", "backend: NATIVE_EMITTER backend_config { native_emitter { } }", "v1")
# Share of votes.
_AGREEING = 0.8
_OF_THE_TUNER = re.compile("autotun|triton|cublas|cudnn|gemm|determin|emitter|fission")
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


def decides_tuning(options: Iterable[str]) -> bool:
    """Whether one of these XLA options decides what the tuner chooses from, or whether it runs.

    Results that were recorded without the option are then no evidence.
    """
    return any(_OF_THE_TUNER.search(name) is not None for name in options)


@dataclass(frozen=True)
class PredictedLock:
    """Results for the tuned instructions of a module.

    Attributes:
      basis: number of instructions by `Basis`.
      other_choice: the probability that the device's results have a workspace of cuBLASLt where
        these have none, or none where these have one.
      chosen: the result of each instruction that has one, by fingerprint.
      defaults: what XLA itself chooses for loops and reductions without one, which it would
        otherwise compile to find out.
    """

    basis: Mapping[str, int]
    other_choice: float
    chosen: Mapping[str, KnownResult]
    defaults: Mapping[str, KnownResult]


def predict_lock(instructions: Iterable[str], known: KnownResults) -> PredictedLock:
    """Predict what the device's tuner would choose."""
    by_fingerprint = known.by_fingerprint()
    basis = dict.fromkeys(map(str, Basis), 0)
    chosen, defaults = {}, {}
    products: list[tuple[KnownResult, float]] = []
    for text in instructions:
        key = fingerprint(text)
        result = by_fingerprint.get(key) if key is not None else None
        how, agreement = Basis.KNOWN, 1.0
        form = form_of(text) if result is None else None
        if form is not None:
            result, agreement = nearest(form, known, block_limits(text))
            if result is not None:
                result = replace(result, config=fitted(result.config, text))
            is_sure = result is not None and form.is_product and agreement >= _AGREEING
            how = Basis.NEAREST if is_sure else Basis.UNSURE
        elif result is None:
            how = Basis.DEFAULT
        if result is not None and result.other_jaxlib and how is not Basis.UNSURE:
            how = Basis.OTHER_JAXLIB
        basis[how] += 1
        if result is not None and " dot(" in text:
            products.append((result, agreement))
        if result is not None and key is not None:
            chosen[key] = result
        elif key is not None and is_generic(text):
            defaults[key] = replace(_NATIVE, fingerprint=key)
    return PredictedLock(basis, round(other_choice(products), 3), chosen, defaults)


def other_choice(products: Iterable[tuple[KnownResult, float]]) -> float:
    """The probability that the device's results of a program differ in whether one has a workspace.

    Products of a program err together, since the same results vote for them. Of each, the result
    and the probability of its backend are given.
    """
    others: dict[bool, list[float]] = {True: [], False: []}
    for result, agreement in products:
        others[has_workspace(result)].append(1 - agreement)
    return min(others[True]) if others[True] else max(others[False], default=0.0)


def has_workspace(result: KnownResult) -> bool:
    """Whether a result is of cuBLASLt, whose workspace is part of the plan."""
    return result.backend in _WITH_WORKSPACE


def nearest(
    form: Form, known: KnownResults, limits: Mapping[str, int] = MappingProxyType({})
) -> tuple[KnownResult | None, float]:
    """The nearest complete result of the backend that most of the nearest results have.

    Votes weigh less with the distance, and a result whose backend was hardly faster than the other
    one votes for both. Among equally near results, one of the installed jaxlib is first, then that
    of the most programs. With the probability of its backend.
    """
    # Even Triton's smallest block is too large.
    without_triton = any(limit < _LEAST for limit in limits.values())
    near = sorted(
        (
            (
                far + _OTHER_DEVICE * row.other_device,
                row.other_jaxlib,
                -len(row.programs),
                repr(row),
                row,
            )
            for row in known.results
            if row.form is not None
            and (far := form.distance(row.form)) is not None
            and far <= _FURTHEST
            and not (without_triton and row.backend == "TRITON")
        ),
        key=lambda item: item[:4],
    )
    votes: dict[str, float] = defaultdict(float)
    for far, *_, row in near[:_VOTERS]:
        weight, other = 1 / (1 + far) ** 2, _OTHER_BACKEND.get(row.backend, row.backend)
        chance = _chance_of_another(row) if other != row.backend else 0.0
        votes[row.backend] += weight * (1 - chance)
        votes[other] += weight * chance
    if without_triton:
        votes.pop("TRITON", None)
    if not votes:
        return None, 0.0
    backend = max(votes, key=lambda name: (votes[name], name))
    complete = (
        row
        for *_, row in near
        if row.is_complete and row.backend == backend and is_within(row.config, limits)
    )
    return next(complete, None), votes[backend] / sum(votes.values())


def _chance_of_another(row: KnownResult) -> float:
    """The probability that another tuning chooses the other backend."""
    if row.margin is None:
        return _ASSUMED_CHANCE
    return 1 / (1 + exp(row.margin / _NEAR_TIE))


def block_limits(text: str) -> dict[str, int]:
    """The largest blocks of a product, by Triton's name of the block; without those of any size.

    Blocks are powers of two. Where a fused reshape makes one dimension of the product of several, a
    block must divide the inner ones or be a multiple of them; where a fused concatenation makes it,
    a block must not extend over two operands. XLA's tuner cannot compile other candidates either.
    """
    sizes = dot_sizes(text)
    limits: dict[str, int] = {}
    for size, limit in _limits_by_size(text):
        for name, block_size in zip(("block_m", "block_n", "block_k"), sizes, strict=True):
            if block_size == size:
                limits[name] = min(limit, limits.get(name, limit))
    return limits


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
