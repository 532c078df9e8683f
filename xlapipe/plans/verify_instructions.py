"""Invariants of the instructions of every plan; part of `xlapipe.plans.verify`.

One table states for each opcode how many operands and called computations an instruction has, and
what its dimensions are. What holds for all opcodes: operands come before their users, an element of
a tuple exists, a called computation takes what it is given, and no computation calls itself. What
the table lacks, such as a custom call, may have any operands.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter
from math import inf, prod
from typing import NamedTuple, TypeAlias

from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.opcodes import ELEMENTWISE
from xlapipe.plans.shapes import Shape, element_bits

Mismatch: TypeAlias = tuple[str, str]


class UnknownForm(NamedTuple):
    """A `Mismatch` of one instruction with the rule of its opcode."""

    expected: str
    found: str


_MOST_BYTES = 1 << 62  # of an array; sums of a few fit 64 bits


class _Checked(NamedTuple):
    """An instruction with the shapes of its operands and the computations that it calls."""

    instruction: Instruction
    operands: Sequence[Shape]
    called: Sequence[Computation]

    @property
    def shape(self) -> Shape:
        return self.instruction.shape

    @property
    def dims(self) -> tuple[int, ...]:
        contraction = self.instruction.contraction
        return contraction.dims if contraction is not None else ()

    @property
    def starts(self) -> tuple[int, ...]:
        contraction = self.instruction.contraction
        return contraction.starts if contraction is not None else ()


_Check: TypeAlias = Callable[[_Checked], bool]


class _Rule(NamedTuple):
    """What instructions of an opcode are like.

    Attributes:
      least, most: number of operands.
      calls: number of called computations; None for any.
      checks: whether shapes, dimensions and computations belong together, once the numbers are
        right.
    """

    least: int
    most: float
    calls: int | None
    checks: tuple[_Check, ...] = ()

    def allows(self, found: _Checked) -> bool:
        return (
            self.calls in (None, len(found.called))
            and self.least <= len(found.operands) <= self.most
            and all(check(found) for check in self.checks)
        )


def instruction_mismatches(module: HloModule) -> Iterator[Mismatch]:
    """(expected, found) of instructions that are not well formed; the first is meaningful."""
    sound: set[int] = set()  # identities of shapes that were checked; equal ones are one object
    for computation in module.computations.values():
        yield from _computation_problems(module, computation, sound)
    yield from _cycle(module)


def _computation_problems(
    module: HloModule, computation: Computation, sound: set[int]
) -> Iterator[Mismatch]:
    if set(computation.parameters) != set(range(len(computation.parameters))) or (
        sum(i.parameter_number is not None for i in computation.instructions)
        != len(computation.parameters)
    ):
        numbers = sorted(str(number) for number in computation.parameters)
        yield f"parameters 0, 1, … of {computation.name}", ", ".join(numbers)
    before: dict[str, Shape] = {}
    for instruction in computation.instructions:
        shape = instruction.shape
        if id(shape) not in sound:
            if not _is_sound(shape):
                yield f"dimensions and a layout of {instruction.name} that fit", shape.text[:80]
            sound.add(id(shape))
        operands = list(_operand_shapes(instruction, before))
        if len(operands) != len(instruction.operands):
            name = instruction.operands[len(operands)]
            yield f"an operand {name} before {instruction.name}", "none, or no such element of it"
        called = [module.computations.get(name) for name in instruction.called_computations]
        known = [body for body in called if body is not None]
        rule = _RULES.get(instruction.opcode, _ANY)
        if len(known) < len(called) or not rule.allows(_Checked(instruction, operands, known)):
            yield _described(instruction, operands)
        before[instruction.name] = shape


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


def _described(instruction: Instruction, operands: Sequence[Shape]) -> UnknownForm:
    texts = ", ".join(shape.text for shape in operands)
    dims = instruction.contraction
    numbers = "" if dims is None else f", dimensions {[*dims.dims]}, starts {[*dims.starts]}"
    count = len(instruction.called_computations)
    calls = f", calls {count}" if count else ""
    found = f"{instruction.shape.text:.100} {instruction.opcode}({texts:.200}){numbers:.100}{calls}"
    return UnknownForm(
        f"operands, dimensions and called computations of {instruction.name} that a "
        f"{instruction.opcode} can have",
        found,
    )


def _cycle(module: HloModule) -> Iterator[Mismatch]:
    """A computation that calls itself, directly or not."""
    calls = {
        name: {called for item in computation.instructions for called in item.called_computations}
        for name, computation in module.computations.items()
    }
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        yield "computations that do not call themselves", f"that {error.args[1][0]} does"


def _alike(one: Shape, other: Shape) -> bool:
    """Whether two values differ in their layouts at most."""
    return one is other or one.without_layout == other.without_layout


def _all_of(dims: Iterable[int], rank: int) -> bool:
    """Whether dimensions differ from each other, and are of an array of so many."""
    listed = list(dims)
    return len(set(listed)) == len(listed) and all(0 <= dim < rank for dim in listed)


# --- Called computations -----------------------------------------------------------------------


def _as_body(x: _Checked) -> bool:
    """Whether a call or a fusion has an operand per parameter, and the root as its result."""
    (body,) = x.called
    return _takes(body, x.operands) and _alike(_root(body), x.shape)


def _takes_operands(x: _Checked) -> bool:
    """As `_as_body` without the result: that of an asynchronous start has more parts."""
    return all(_takes(body, x.operands) for body in x.called)


def _takes_operands_or_none(x: _Checked) -> bool:
    """An operation on the sparse cores of a TPU is handed its operands by a later async-update."""
    return not x.operands or _takes_operands(x)


def _while(x: _Checked) -> bool:
    body, condition = x.called
    return (
        _takes_operands(x)
        and _alike(_root(body), x.operands[0])
        and _alike(x.shape, x.operands[0])
        and _root(condition).without_layout == "pred[]"
    )


def _conditional(x: _Checked) -> bool:
    return (
        x.operands[0].without_layout in ("pred[]", "s32[]")
        and 0 < len(x.called) == len(x.operands) - 1
        and all(
            _takes(branch, [operand]) and _alike(_root(branch), x.shape)
            for branch, operand in zip(x.called, x.operands[1:], strict=True)
        )
    )


def _combines(x: _Checked) -> bool:
    """Whether the combiner takes two scalars per array; a scatter's indices are not counted."""
    match x.instruction.opcode:
        case "scatter":
            scalars = len(x.operands) // 2 * 2
        case "sort":
            scalars = 2 * len(x.operands)
        case "reduce" | "reduce-window":
            scalars = len(x.operands)
        case _:
            scalars = 2
    return all(len(body.parameters) == scalars for body in x.called)


def _takes(body: Computation, operands: Sequence[Shape]) -> bool:
    return len(body.parameters) == len(operands) and all(
        _alike(body.parameters[number].shape, operand) for number, operand in enumerate(operands)
    )


def _root(body: Computation) -> Shape:
    return body.by_name[body.root].shape


# --- Dimensions --------------------------------------------------------------------------------


def _arrays(x: _Checked) -> bool:
    return all(operand.element for operand in x.operands)


def _elementwise(x: _Checked) -> bool:
    scalars = x.instruction.opcode in ("clamp", "select")
    return bool(x.shape.element) and all(
        operand.dims == x.shape.dims or (scalars and not operand.dims) for operand in x.operands
    )


def _same(x: _Checked) -> bool:
    return _alike(x.operands[0], x.shape)


def _copies(x: _Checked) -> bool:
    """Whether dimensions are equal: XLA for TPUs changes the type of elements while it copies."""
    (operand,) = x.operands
    return _alike(operand, x.shape) or bool(
        operand.element and x.shape.element and operand.dims == x.shape.dims
    )


def _same_elements(x: _Checked) -> bool:
    (operand,) = x.operands
    return operand.is_dynamic or prod(operand.dims) == prod(x.shape.dims)


def _same_bytes(x: _Checked) -> bool:
    sizes = x.operands[0].size_bytes, x.shape.size_bytes
    return None in sizes or sizes[0] == sizes[1]


def _tuple(x: _Checked) -> bool:
    parts = x.shape.parts
    return len(x.operands) == len(parts) and all(map(_alike, x.operands, parts))


def _broadcast(x: _Checked) -> bool:
    operand_dims, result = x.operands[0].dims, x.shape.dims
    if len(x.dims) != len(operand_dims) or not _all_of(x.dims, len(result)):
        return False
    return x.shape.is_dynamic or tuple(result[dim] for dim in x.dims) == operand_dims


def _transpose(x: _Checked) -> bool:
    operand_dims = x.operands[0].dims
    return (
        len(x.dims) == len(operand_dims)
        and _all_of(x.dims, len(operand_dims))
        and tuple(operand_dims[dim] for dim in x.dims) == x.shape.dims
    )


def _iota(x: _Checked) -> bool:
    return len(x.dims) == 1 and _all_of(x.dims, len(x.shape.dims))


def _reduce(x: _Checked) -> bool:
    count, operand_dims = len(x.operands) // 2, x.operands[0].dims
    kept = tuple(size for dim, size in enumerate(operand_dims) if dim not in x.dims)
    return (
        len(x.operands) == 2 * count == 2 * len(x.shape.arrays)
        and _all_of(x.dims, len(operand_dims))
        and all(array.dims == operand_dims for array in x.operands[:count])
        and all(array.dims == kept for array in x.shape.arrays)
        and not any(initial.dims for initial in x.operands[count:])
    )


def _reduce_window(x: _Checked) -> bool:
    count, operand_dims = len(x.operands) // 2, x.operands[0].dims
    most = 2 * prod(max(size, 1) for size in (*operand_dims, *x.dims))
    return (
        len(x.operands) == 2 * count == 2 * len(x.shape.arrays)
        and len(x.dims) == len(x.starts) == len(operand_dims)
        and min(x.dims, default=1) > 0
        and all(abs(low) <= most < _MOST_BYTES for low in x.starts)
        and all(array.dims == operand_dims for array in x.operands[:count])
        and all(len(array.dims) == len(operand_dims) for array in x.shape.arrays)
    )


def _sort(x: _Checked) -> bool:
    operand_dims, arrays = x.operands[0].dims, x.shape.arrays
    return (
        len(x.dims) == 1
        and _all_of(x.dims, len(operand_dims))
        and len(arrays) == len(x.operands)
        and all(array.dims == operand_dims for array in (*x.operands, *arrays))
    )


def _slice(x: _Checked) -> bool:
    operand_dims, counts = x.operands[0].dims, x.shape.dims
    return len(operand_dims) == len(x.dims) == len(x.starts) == len(counts) and all(
        start >= 0 < stride and start + (count - 1) * stride < max(size, 1)
        for size, stride, start, count in zip(operand_dims, x.dims, x.starts, counts, strict=True)
    )


def _pad(x: _Checked) -> bool:
    operand_dims, counts = x.operands[0].dims, x.shape.dims
    return len(operand_dims) == len(x.dims) == len(x.starts) == len(counts) and all(
        interior >= 0 and abs(low) <= size * (1 + interior) + count < _MOST_BYTES
        for size, interior, low, count in zip(operand_dims, x.dims, x.starts, counts, strict=True)
    )


def _concatenate(x: _Checked) -> bool:
    sizes, result = [operand.dims for operand in x.operands], x.shape.dims
    if any(len(dims) != len(result) for dims in sizes):
        return False
    joined = [dim for dim, size in enumerate(result) if any(dims[dim] != size for dims in sizes)]
    if not joined:  # the others have no elements
        return len(sizes) == 1 or 0 in result
    dim = joined[0]
    return len(joined) == 1 and sum(dims[dim] for dims in sizes) == result[dim]


def _dynamic_slice(x: _Checked) -> bool:
    array, *starts = x.operands
    return _is_part(x.shape, array) and _starts_of(array, starts)


def _dynamic_update_slice(x: _Checked) -> bool:
    array, update, *starts = x.operands
    return array.dims == x.shape.dims and _is_part(update, array) and _starts_of(array, starts)


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


def _gather(x: _Checked) -> bool:
    array, indices = x.operands
    kept = [dim for dim in x.dims if dim != -1]
    batch = len(x.shape.dims) - len(kept)
    # A dimension of the indices may be the vector that has a number for each of `starts`.
    by_vector = batch == len(indices.dims) - 1 and len(x.starts) in indices.dims
    by_number = batch == len(indices.dims) and len(x.starts) == 1
    return (
        len(x.dims) <= len(x.shape.dims)
        and _all_of(kept, len(array.dims))
        and _all_of(x.starts, len(array.dims))
        and (by_vector or by_number)
    )


def _scatter(x: _Checked) -> bool:
    count, arrays = len(x.operands) // 2, x.shape.arrays
    return (
        len(x.operands) == 2 * count + 1
        and len(arrays) == count
        and all(
            operand.dims == array.dims for operand, array in zip(x.operands, arrays, strict=False)
        )
        and len({update.dims for update in x.operands[count + 1 :]}) == 1
    )


def _dot(x: _Checked) -> bool:
    left, right = x.operands[0].dims, x.operands[1].dims
    if not _all_of(x.dims, len(left)):
        return False
    # Each dimension of a batch is in all three, each contracted one in both operands.
    summed, both = prod(left[dim] for dim in x.dims), prod(left) * prod(right)
    once = prod(x.shape.dims) * summed * summed
    return len(x.operands) > 2 or once == both == 0 or (once > 0 and both % once == 0)


def _convolution(x: _Checked) -> bool:
    rank = len(x.shape.dims)
    return (
        all(len(operand.dims) == rank for operand in x.operands)
        and len(x.dims) == rank - 1
        and _all_of(x.dims, rank)
    )


def _fft(x: _Checked) -> bool:
    rank = len(x.shape.dims)
    return len(x.operands[0].dims) == rank >= len(x.dims) > 0 and min(x.dims) > 0


_BINARY = frozenset(
    {"add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum", "multiply", "or"}
    | {"power", "remainder", "shift-left", "shift-right-arithmetic", "shift-right-logical"}
    | {"subtract", "xor"}
)
_TERNARY = frozenset({"clamp", "select"})
_GROUPS: Mapping[_Rule, Set[str]] = {
    _Rule(0, 0, 0): {"constant", "parameter", "partition-id", "replica-id"}
    | {"rng-get-and-update-state"},
    _Rule(1, 1, 0): {"copy-done", "copy-start", "get-dimension-size", "infeed", "recv"}
    | {"recv-done", "rng-bit-generator", "send-done"},
    _Rule(1, 1, 0, (_same,)): {"cholesky", "domain", "get-tuple-element", "opt-barrier"},
    _Rule(1, 1, None): {"async-done"},
    _Rule(1, inf, None): {"async-update"},
    _Rule(0, inf, 1, (_as_body,)): {"call", "fusion"},
    _Rule(1, inf, 1, (_combines,)): {"all-reduce", "all-reduce-start", "reduce-scatter"},
    _Rule(2, 2, 0): {"outfeed", "rng", "send", "set-dimension-size", "stochastic-convert"}
    | {"triangular-solve"},
    _Rule(1, 1, 0, (_arrays, _elementwise)): ELEMENTWISE - _BINARY - _TERNARY,
    _Rule(2, 2, 0, (_arrays, _elementwise)): _BINARY,
    _Rule(3, 3, 0, (_arrays, _elementwise)): _TERNARY,
}
_ANY = _Rule(0, inf, None)
_RULES: Mapping[str, _Rule] = {
    **{opcode: rule for rule, opcodes in _GROUPS.items() for opcode in opcodes},
    "add-dependency": _Rule(2, 2, 0, (_same,)),
    "async-start": _Rule(0, inf, 1, (_takes_operands_or_none,)),
    "bitcast": _Rule(1, 1, 0, (_same_bytes,)),
    "bitcast-convert": _Rule(1, 1, 0, (_arrays, _same_bytes)),
    "broadcast": _Rule(1, 1, 0, (_arrays, _broadcast)),
    "concatenate": _Rule(1, inf, 0, (_arrays, _concatenate)),
    "conditional": _Rule(1, inf, None, (_conditional,)),
    "copy": _Rule(1, 1, 0, (_copies,)),
    "convolution": _Rule(2, 2, 0, (_arrays, _convolution)),
    "dot": _Rule(2, inf, 0, (_arrays, _dot)),
    "dynamic-slice": _Rule(1, inf, 0, (_arrays, _dynamic_slice)),
    "dynamic-update-slice": _Rule(2, inf, 0, (_arrays, _dynamic_update_slice)),
    "fft": _Rule(1, 1, 0, (_arrays, _fft)),
    "gather": _Rule(2, 2, 0, (_arrays, _gather)),
    "iota": _Rule(0, 0, 0, (_iota,)),
    "map": _Rule(1, inf, 1),
    "pad": _Rule(2, 2, 0, (_arrays, _pad)),
    "reduce": _Rule(2, inf, 1, (_arrays, _reduce, _combines)),
    "reduce-window": _Rule(2, inf, 1, (_arrays, _reduce_window, _combines)),
    "reshape": _Rule(1, 1, 0, (_arrays, _same_elements)),
    "reverse": _Rule(1, 1, 0, (_arrays, _same)),
    "scatter": _Rule(3, inf, 1, (_arrays, _scatter, _combines)),
    "select-and-scatter": _Rule(3, 3, 2),
    "slice": _Rule(1, 1, 0, (_arrays, _slice)),
    "sort": _Rule(1, inf, 1, (_arrays, _sort, _combines)),
    "transpose": _Rule(1, 1, 0, (_arrays, _transpose)),
    "tuple": _Rule(0, inf, 0, (_tuple,)),
    "while": _Rule(1, 1, 2, (_while,)),
}
