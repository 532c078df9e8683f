"""Invariants of the instructions of every plan; part of `xlapipe.plans.verify`.

One table states for each opcode how many operands and called computations an instruction has, and
what its dimensions are. What holds for all opcodes: operands come before their users, an element of
a tuple exists, a called computation takes what it is given, and no computation calls itself. What
the table lacks, such as a custom call, may have any operands.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import NamedTuple, TypeAlias

from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.opcodes import ELEMENTWISE
from xlapipe.plans.shapes import Shape, element_bits

Mismatch: TypeAlias = tuple[str, str]
_Check: TypeAlias = Callable[[Instruction, Sequence[Shape]], bool]
_MOST_BYTES = 1 << 62  # of an array; sums of a few fit 64 bits


class _Rule(NamedTuple):
    """What instructions of an opcode are like.

    Attributes:
      least, most: number of operands; any number from `least` on if `most` is None.
      calls: number of called computations; None for any.
      fits: whether the shapes and dimensions belong together, once the numbers are right.
    """

    least: int
    most: int | None
    calls: int | None
    fits: _Check | None = None


def instruction_mismatch(module: HloModule) -> Mismatch | None:
    """(expected, found) of the first instruction that is not well formed; None if all are."""
    sound: set[int] = set()  # identities of shapes that were checked; equal ones are one object
    for computation in module.computations.values():
        mismatch = _computation_mismatch(module, computation, sound)
        if mismatch is not None:
            return mismatch
    return _cycle_mismatch(module)


def _computation_mismatch(
    module: HloModule, computation: Computation, sound: set[int]
) -> Mismatch | None:
    if set(computation.parameters) != set(range(len(computation.parameters))) or (
        sum(i.parameter_number is not None for i in computation.instructions)
        != len(computation.parameters)
    ):
        numbers = sorted(str(number) for number in computation.parameters)
        return f"parameters 0, 1, … of {computation.name}", ", ".join(numbers)
    before: dict[str, Shape] = {}
    for instruction in computation.instructions:
        shape = instruction.shape
        if id(shape) not in sound:
            if not _is_sound(shape):
                return f"dimensions and a layout of {instruction.name} that fit", shape.text[:80]
            sound.add(id(shape))
        operands = list(_operand_shapes(instruction, before))
        if len(operands) != len(instruction.operands):
            name = instruction.operands[len(operands)]
            return f"an operand {name} before {instruction.name}", "none, or no such element of it"
        if not _is_well_formed(module, instruction, operands):
            return _described(instruction, operands)
        before[instruction.name] = shape
    return None


def _is_sound(shape: Shape) -> bool:
    """Whether arrays have sizes that 64 bits hold, and layouts of all their dimensions."""
    if not shape.element:
        is_tuple = shape.parts or shape.text == "()"
        return bool(is_tuple) and all(map(_is_sound, shape.parts))
    bits, order = element_bits(shape.element) or 8, shape.order
    return bits * prod(max(dim, 1) for dim in shape.dims) < 8 * _MOST_BYTES and (
        order is None or len(order) == 0 or sorted(order) == list(range(len(shape.dims)))
    )


def _operand_shapes(instruction: Instruction, before: Mapping[str, Shape]) -> Iterator[Shape]:
    """Shapes of the operands up to the first that does not exist."""
    indices = instruction.operand_indices
    if indices and len(indices) != len(instruction.operands):
        return
    for position, name in enumerate(instruction.operands):
        shape = before.get(name)
        for index in indices[position] if indices else ():
            if shape is None or not shape.is_tuple or not 0 <= index < len(shape.parts):
                return
            shape = shape.parts[index]
        if shape is None:
            return
        yield shape


def _is_well_formed(module: HloModule, instruction: Instruction, operands: Sequence[Shape]) -> bool:
    rule = _RULES.get(instruction.opcode)
    called = [module.computations.get(name) for name in instruction.called_computations]
    if None in called:
        return False
    if rule is None:
        return True
    if rule.calls is not None and len(called) != rule.calls:
        return False
    if len(operands) < rule.least or (rule.most is not None and len(operands) > rule.most):
        return False
    if rule.fits is not None and not rule.fits(instruction, operands):
        return False
    if instruction.opcode in _OF_ARRAYS and not all(shape.element for shape in operands):
        return False
    takes = _TAKES.get(instruction.opcode)
    return takes is None or takes(instruction, operands, [c for c in called if c is not None])


def _described(instruction: Instruction, operands: Sequence[Shape]) -> Mismatch:
    texts = ", ".join(shape.text for shape in operands)
    dims = instruction.contraction
    numbers = "" if dims is None else f", dimensions {[*dims.dims]}, starts {[*dims.starts]}"
    calls = f", calls {len(instruction.called_computations)}" * bool(
        instruction.called_computations
    )
    found = f"{instruction.shape.text:.100} {instruction.opcode}({texts:.200}){numbers:.100}{calls}"
    return (
        f"operands, dimensions and called computations of {instruction.name} that a "
        f"{instruction.opcode} can have",
        found,
    )


def _cycle_mismatch(module: HloModule) -> Mismatch | None:
    """A computation that calls itself, directly or not."""
    calls = {
        name: {called for item in computation.instructions for called in item.called_computations}
        for name, computation in module.computations.items()
    }
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        return "computations that do not call themselves", f"that {error.args[1][0]} does"
    return None


def _alike(one: Shape, other: Shape) -> bool:
    """Whether two values differ in their layouts at most."""
    return one is other or one.without_layout == other.without_layout


def _all_of(dims: Iterable[int], rank: int) -> bool:
    """Whether dimensions differ from each other, and are of an array of so many."""
    listed = list(dims)
    return len(set(listed)) == len(listed) and all(0 <= dim < rank for dim in listed)


# --- Called computations -----------------------------------------------------------------------


def _with_operands(
    i: Instruction, operands: Sequence[Shape], called: Sequence[Computation]
) -> bool:
    """Whether a call or a fusion has an operand per parameter, and the root as its result."""
    (body,) = called
    return _takes(body, operands) and _alike(_root(body), i.shape)


def _with_all_operands(
    i: Instruction, operands: Sequence[Shape], called: Sequence[Computation]
) -> bool:
    """As `_with_operands` without the result: that of an asynchronous start has more parts."""
    return all(_takes(body, operands) for body in called)


def _of_while(i: Instruction, operands: Sequence[Shape], called: Sequence[Computation]) -> bool:
    body, condition = called
    return (
        _takes(body, operands)
        and _takes(condition, operands)
        and _alike(_root(body), operands[0])
        and _alike(i.shape, operands[0])
        and _root(condition).without_layout == "pred[]"
    )


def _of_conditional(
    i: Instruction, operands: Sequence[Shape], called: Sequence[Computation]
) -> bool:
    return (
        operands[0].without_layout in ("pred[]", "s32[]")
        and 0 < len(called) == len(operands) - 1
        and all(
            _takes(branch, [operand]) and _alike(_root(branch), i.shape)
            for branch, operand in zip(called, operands[1:], strict=True)
        )
    )


def _combining(i: Instruction, operands: Sequence[Shape], called: Sequence[Computation]) -> bool:
    """Whether the combiner takes two scalars per array; a scatter's indices are not counted."""
    arrays = len(operands) - (i.opcode == "scatter")
    if i.opcode == "scatter":
        arrays = len(operands) // 2 * 2
    elif i.opcode == "sort":
        arrays = 2 * len(operands)
    elif i.opcode.startswith("all-reduce") or i.opcode == "reduce-scatter":
        arrays = 2
    return all(len(body.parameters) == arrays for body in called)


def _takes(body: Computation, operands: Sequence[Shape]) -> bool:
    return len(body.parameters) == len(operands) and all(
        _alike(body.parameters[number].shape, operand) for number, operand in enumerate(operands)
    )


def _root(body: Computation) -> Shape:
    return body.by_name[body.root].shape


# --- Dimensions --------------------------------------------------------------------------------


def _elementwise(i: Instruction, operands: Sequence[Shape]) -> bool:
    scalars = i.opcode in ("clamp", "select")
    return bool(i.shape.element) and all(
        operand.dims == i.shape.dims or (scalars and not operand.dims) for operand in operands
    )


def _same(i: Instruction, operands: Sequence[Shape]) -> bool:
    return _alike(operands[0], i.shape)


def _same_elements(i: Instruction, operands: Sequence[Shape]) -> bool:
    return operands[0].is_dynamic or prod(operands[0].dims) == prod(i.shape.dims)


def _same_bytes(i: Instruction, operands: Sequence[Shape]) -> bool:
    sizes = operands[0].size_bytes, i.shape.size_bytes
    return None in sizes or sizes[0] == sizes[1]


def _tuple(i: Instruction, operands: Sequence[Shape]) -> bool:
    return len(operands) == len(i.shape.parts) and all(map(_alike, operands, i.shape.parts))


def _broadcast(i: Instruction, operands: Sequence[Shape]) -> bool:
    dims, own, result = _dims(i), operands[0].dims, i.shape.dims
    if len(dims) != len(own) or not _all_of(dims, len(result)):
        return False
    return i.shape.is_dynamic or tuple(result[dim] for dim in dims) == own


def _transpose(i: Instruction, operands: Sequence[Shape]) -> bool:
    dims, own = _dims(i), operands[0].dims
    return (
        len(dims) == len(own)
        and _all_of(dims, len(own))
        and tuple(own[dim] for dim in dims) == i.shape.dims
    )


def _iota(i: Instruction, operands: Sequence[Shape]) -> bool:
    return len(_dims(i)) == 1 and _all_of(_dims(i), len(i.shape.dims))


def _reduce(i: Instruction, operands: Sequence[Shape]) -> bool:
    count = len(operands) // 2
    arrays, own = operands[:count], operands[0].dims
    kept = tuple(size for dim, size in enumerate(own) if dim not in _dims(i))
    return (
        len(operands) == 2 * count == 2 * len(i.shape.arrays)
        and _all_of(_dims(i), len(own))
        and all(array.dims == own for array in arrays)
        and all(array.dims == kept for array in i.shape.arrays)
        and not any(initial.dims for initial in operands[count:])
    )


def _reduce_window(i: Instruction, operands: Sequence[Shape]) -> bool:
    count = len(operands) // 2
    own = operands[0].dims
    sizes, lows = _dims(i), i.contraction.starts if i.contraction is not None else ()
    most = 2 * prod(max(size, 1) for size in (*own, *sizes))
    return (
        len(operands) == 2 * count == 2 * len(i.shape.arrays)
        and len(sizes) == len(lows) == len(own)
        and min(sizes, default=1) > 0
        and all(abs(low) <= most < _MOST_BYTES for low in lows)
        and all(array.dims == own for array in operands[:count])
        and all(len(array.dims) == len(own) for array in i.shape.arrays)
    )


def _sort(i: Instruction, operands: Sequence[Shape]) -> bool:
    own = operands[0].dims
    return (
        len(_dims(i)) == 1
        and _all_of(_dims(i), len(own))
        and len(i.shape.arrays) == len(operands)
        and all(array.dims == own for array in (*operands, *i.shape.arrays))
    )


def _slice(i: Instruction, operands: Sequence[Shape]) -> bool:
    own, strides = operands[0].dims, _dims(i)
    starts = i.contraction.starts if i.contraction is not None else ()
    return len(own) == len(strides) == len(starts) == len(i.shape.dims) and all(
        start >= 0 < stride and start + (count - 1) * stride < max(size, 1)
        for size, stride, start, count in zip(own, strides, starts, i.shape.dims, strict=True)
    )


def _pad(i: Instruction, operands: Sequence[Shape]) -> bool:
    own, interiors = operands[0].dims, _dims(i)
    lows = i.contraction.starts if i.contraction is not None else ()
    return len(own) == len(interiors) == len(lows) == len(i.shape.dims) and all(
        interior >= 0 and abs(low) <= size * (1 + interior) + count < _MOST_BYTES
        for size, interior, low, count in zip(own, interiors, lows, i.shape.dims, strict=True)
    )


def _concatenate(i: Instruction, operands: Sequence[Shape]) -> bool:
    sizes = [operand.dims for operand in operands]
    if any(len(own) != len(i.shape.dims) for own in sizes):
        return False
    joined = [
        dim for dim, size in enumerate(i.shape.dims) if any(own[dim] != size for own in sizes)
    ]
    if not joined:  # the others have no elements
        return len(sizes) == 1 or 0 in i.shape.dims
    dim = joined[0]
    return len(joined) == 1 and sum(own[dim] for own in sizes) == i.shape.dims[dim]


def _dynamic_slice(i: Instruction, operands: Sequence[Shape]) -> bool:
    return _is_part(i.shape, operands[0]) and _starts_of(operands[0], operands[1:])


def _dynamic_update_slice(i: Instruction, operands: Sequence[Shape]) -> bool:
    return (
        operands[0].dims == i.shape.dims
        and _is_part(operands[1], operands[0])
        and _starts_of(operands[0], operands[2:])
    )


def _is_part(part: Shape, whole: Shape) -> bool:
    return len(part.dims) == len(whole.dims) and all(
        size <= most for size, most in zip(part.dims, whole.dims, strict=True)
    )


def _starts_of(array: Shape, starts: Sequence[Shape]) -> bool:
    """Whether there is a scalar for each dimension; XLA also reads one vector."""
    rank = len(array.dims)
    if len(starts) == 1 and starts[0].dims == (rank,):
        return True
    return len(starts) == rank and not any(start.dims for start in starts)


def _gather(i: Instruction, operands: Sequence[Shape]) -> bool:
    starts = i.contraction.starts if i.contraction is not None else ()
    rank, places = len(operands[0].dims), operands[1].dims
    kept = [dim for dim in _dims(i) if dim != -1]
    # A dimension of the indices may be the vector that has a number for each of `starts`.
    by_vector = len(i.shape.dims) - len(kept) == len(places) - 1 and len(starts) in places
    by_number = len(i.shape.dims) - len(kept) == len(places) and len(starts) == 1
    return (
        len(_dims(i)) <= len(i.shape.dims)
        and _all_of(kept, rank)
        and _all_of(starts, rank)
        and (by_vector or by_number)
    )


def _scatter(i: Instruction, operands: Sequence[Shape]) -> bool:
    count = len(operands) // 2
    arrays = i.shape.arrays
    return (
        len(operands) == 2 * count + 1
        and len(arrays) == count
        and all(own.dims == array.dims for own, array in zip(operands, arrays, strict=False))
        and len({update.dims for update in operands[count + 1 :]}) == 1
    )


def _dot(i: Instruction, operands: Sequence[Shape]) -> bool:
    left, right = operands[0].dims, operands[1].dims
    if not _all_of(_dims(i), len(left)):
        return False
    # Each dimension of a batch is in all three, each contracted one in both operands.
    summed, both = prod(left[dim] for dim in _dims(i)), prod(left) * prod(right)
    once = prod(i.shape.dims) * summed * summed
    return len(operands) > 2 or once == both == 0 or (once > 0 and both % once == 0)


def _convolution(i: Instruction, operands: Sequence[Shape]) -> bool:
    rank = len(i.shape.dims)
    return (
        rank == len(operands[0].dims) == len(operands[1].dims)
        and len(_dims(i)) == rank - 1
        and _all_of(_dims(i), rank)
    )


def _fft(i: Instruction, operands: Sequence[Shape]) -> bool:
    rank = len(i.shape.dims)
    return len(operands[0].dims) == rank >= len(_dims(i)) > 0 and min(_dims(i)) > 0


def _dims(i: Instruction) -> tuple[int, ...]:
    return i.contraction.dims if i.contraction is not None else ()


_BINARY = frozenset(
    {"add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum", "multiply", "or"}
    | {"power", "remainder", "shift-left", "shift-right-arithmetic", "shift-right-logical"}
    | {"subtract", "xor"}
)
_TERNARY = frozenset({"clamp", "select"})
_NUMBERS: Mapping[_Rule, Set[str]] = {
    _Rule(0, 0, 0): {"constant", "parameter", "partition-id", "replica-id"}
    | {"rng-get-and-update-state"},
    _Rule(0, None, 1): {"async-start", "call", "fusion"},
    _Rule(1, 1, 0): {"copy-done", "copy-start", "get-dimension-size", "infeed", "recv"}
    | {"recv-done", "rng-bit-generator", "send-done"},
    _Rule(1, 1, 0, _same): {"cholesky", "copy", "domain", "get-tuple-element", "opt-barrier"}
    | {"reverse"},
    _Rule(1, 1, 0, _same_bytes): {"bitcast", "bitcast-convert"},
    _Rule(1, 1, None): {"async-done", "async-update"},
    _Rule(1, None, 1): {"all-reduce", "all-reduce-start", "map", "reduce-scatter"},
    _Rule(2, 2, 0): {"outfeed", "rng", "send", "set-dimension-size", "stochastic-convert"}
    | {"triangular-solve"},
    _Rule(1, 1, 0, _elementwise): ELEMENTWISE - _BINARY - _TERNARY,
    _Rule(2, 2, 0, _elementwise): _BINARY,
    _Rule(3, 3, 0, _elementwise): _TERNARY,
}
_RULES: Mapping[str, _Rule] = {
    **{opcode: rule for rule, opcodes in _NUMBERS.items() for opcode in opcodes},
    "add-dependency": _Rule(2, 2, 0, _same),
    "broadcast": _Rule(1, 1, 0, _broadcast),
    "concatenate": _Rule(1, None, 0, _concatenate),
    "conditional": _Rule(1, None, None),
    "convolution": _Rule(2, 2, 0, _convolution),
    "dot": _Rule(2, None, 0, _dot),
    "dynamic-slice": _Rule(1, None, 0, _dynamic_slice),
    "dynamic-update-slice": _Rule(2, None, 0, _dynamic_update_slice),
    "fft": _Rule(1, 1, 0, _fft),
    "gather": _Rule(2, 2, 0, _gather),
    "iota": _Rule(0, 0, 0, _iota),
    "pad": _Rule(2, 2, 0, _pad),
    "reduce": _Rule(2, None, 1, _reduce),
    "reduce-window": _Rule(2, None, 1, _reduce_window),
    "reshape": _Rule(1, 1, 0, _same_elements),
    "scatter": _Rule(3, None, 1, _scatter),
    "select-and-scatter": _Rule(3, 3, 2),
    "slice": _Rule(1, 1, 0, _slice),
    "sort": _Rule(1, None, 1, _sort),
    "transpose": _Rule(1, 1, 0, _transpose),
    "tuple": _Rule(0, None, 0, _tuple),
    "while": _Rule(1, 1, 2),
}
# All operands are arrays.
_OF_ARRAYS = ELEMENTWISE | {
    *("bitcast-convert", "broadcast", "concatenate", "convolution", "dot", "dynamic-slice"),
    *("dynamic-update-slice", "fft", "gather", "pad", "reduce", "reduce-window", "reshape"),
    *("reverse", "scatter", "slice", "sort", "transpose"),
}
_Takes: TypeAlias = Callable[[Instruction, Sequence[Shape], Sequence[Computation]], bool]
_COMBINES = ("all-reduce", "all-reduce-start", "reduce", "reduce-scatter", "reduce-window")
_TAKES: Mapping[str, _Takes] = {
    **dict.fromkeys((*_COMBINES, "scatter", "sort"), _combining),
    **dict.fromkeys(("call", "fusion"), _with_operands),
    "async-start": _with_all_operands,
    "conditional": _of_conditional,
    "while": _of_while,
}
