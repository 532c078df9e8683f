"""Lines of the L1 cache and sectors of the L2 cache that the threads of a fusion read.

XLA's emitters compute an element's operands in the thread that needs them, wherever they are in
memory. Neighbouring threads that read neighbours share lines; those that read every second element,
along columns or at indices do not.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, prod
from typing import NamedTuple

from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.shapes import Shape, element_bits

# What a multiprocessor reads at once from its L1 cache, and what the L2 cache moves at least.
_LINE_BYTES, _SECTOR_BYTES = 128, 32
# A thread's share of a line at least: what the 32 threads of a warp read at once takes two.
_LEAST_SHARE = 1 / 16
# Of a larger array, only a part stays in the L1 cache.
_L1_BYTES = 192 << 10
# How often an element is read, at most.
_MOST_AGAIN = 64
# Indices that are computed from one number, from which on they are taken to follow each other.
_INDICES_OF_A_NUMBER = 8
# Sums of fewer elements are no reductions for XLA's emitters.
_LEAST_SUM = 16


class Reads(NamedTuple):
    """What all threads of a launch read together.

    Attributes:
      lines: of 128 bytes, once for each warp that reads one.
      sectors: of 32 bytes, of elements whose neighbours in memory no other thread reads soon.
    """

    lines: float = 0.0
    sectors: float = 0.0

    @property
    def sector_bytes(self) -> int:
        """Bytes of the sectors."""
        return int(self.sectors) * _SECTOR_BYTES


class _Access(NamedTuple):
    """How neighbouring threads read an array.

    Attributes:
      distance: in memory, in elements; less than 1 where only some of the threads read.
      apart: whether what is between is read by other threads at another time.
    """

    distance: float = 1.0
    apart: bool = False


_NEIGHBOURS = _Access()
_AT_INDICES = _Access(inf, apart=True)


def reads_of(
    body: Computation, module: HloModule, *, tiled: bool, elements_of_a_thread: float
) -> Reads:
    """The reads for all elements of a fusion's result.

    Args:
      tiled: whether blocks of threads reduce or transpose tiles together, as XLA's emitters of
        `kInput` fusions do.
    """
    lines = sectors = 0.0
    for shape, access, count in _parameters(body, module, None, tiled=tiled):
        element_bytes = _element_bytes(shape)
        between = access.distance * element_bytes
        if access.distance > 1:
            between *= elements_of_a_thread
        lines += count * max(_LEAST_SHARE, min(1.0, between / _LINE_BYTES))
        if access.apart and between >= _LINE_BYTES:
            if access.distance < inf:
                sectors += min(count, shape.elements)
            else:
                array_bytes = max(1, shape.elements * element_bytes)
                sectors += count * max(0.0, 1 - _L1_BYTES / array_bytes)
    return Reads(lines, sectors)


def _parameters(
    body: Computation, module: HloModule, result: Mapping[_Access, float] | None, *, tiled: bool
) -> Iterator[tuple[Shape, _Access, float]]:
    """The body's parameters, how each is read, and how often.

    Args:
      result: how the body's result is read; None for all elements, by neighbours.
    """
    # Those that read an instruction at their own index share what it computes; others do not.
    at_same: dict[str, dict[_Access, float]] = {body.root: dict(result or {})}
    at_other: dict[str, dict[_Access, float]] = {}
    at_root = {body.root} if result is None else set()
    for instruction in reversed(body.instructions):
        name, opcode = instruction.name, instruction.opcode
        if not instruction.shape.arrays or not (name in at_same or name in at_other):
            continue
        shape = instruction.shape.arrays[0]
        counts = dict(at_same.get(name, {}))
        if name in at_root and not counts:
            counts[_NEIGHBOURS] = float(shape.elements)
        for access, count in at_other.get(name, {}).items():
            counts[access] = counts.get(access, 0.0) + count
        if opcode == "parameter":
            yield from ((shape, access, count) for access, count in counts.items())
        elif opcode == "tuple":
            at_root.update(instruction.operands)
            at_same.update({operand: {} for operand in instruction.operands})
        elif opcode in opcodes.HAS_BODY:
            for called in instruction.called_computations[:1]:
                if called in module.computations:
                    inner = module.computations[called]
                    yield from _parameters(inner, module, counts, tiled=False)
        elif opcode not in opcodes.READS_OTHER_INDICES:
            if name in at_root:
                at_root.update(instruction.operands)
            for operand in instruction.operands:
                same = at_same.setdefault(operand, {})
                for access, count in counts.items():
                    same[access] = max(same.get(access, 0.0), count)
        else:
            for position, operand in enumerate(instruction.operands):
                arrays = body.by_name[operand].shape.arrays
                if arrays and tiled and name in at_root and _in_tiles(instruction, arrays[0]):
                    at_same.setdefault(operand, {})[_NEIGHBOURS] = float(arrays[0].elements)
                elif arrays:
                    other = at_other.setdefault(operand, {})
                    most = float(_MOST_AGAIN * max(arrays[0].elements, shape.elements))
                    for access, count in _read(instruction, position, body, counts):
                        other[access] = min(other.get(access, 0.0) + count, most)
                if operand in at_other and not at_other[operand]:
                    del at_other[operand]


def _in_tiles(instruction: Instruction, operand: Shape) -> bool:
    """Whether blocks work on it together: short sums are left to single threads."""
    if instruction.opcode == "reduce":
        return operand.elements >= _LEAST_SUM * instruction.shape.arrays[0].elements
    return instruction.opcode == "transpose"


def _read(
    instruction: Instruction, position: int, body: Computation, counts: Mapping[_Access, float]
) -> Iterator[tuple[_Access, float]]:
    """How an operand is read, and how often, for what is read of the result."""
    result = instruction.shape.arrays[0]
    operand = body.by_name[instruction.operands[position]].shape.arrays[0]
    share = _share(instruction, position, operand)
    if not share:
        return
    gathers = instruction.opcode == "gather"
    at_indices = gathers and _reads_indices(instruction, body)
    row, most = _row(instruction, result), _SECTOR_BYTES // _element_bytes(operand)
    short = row * _element_bytes(operand) <= _LINE_BYTES
    for access, count in counts.items():
        read = _access(instruction, result, operand, access)
        if gathers and access != _AT_INDICES and (read == _AT_INDICES or (short and at_indices)):
            if at_indices:
                # Of a row, elements that are next to each other are in the same sectors.
                yield _AT_INDICES, min(count, result.elements) / max(1, min(row, most))
            else:
                yield _NEIGHBOURS, count
        elif read is not None:
            yield read, share * count


def _share(instruction: Instruction, position: int, operand: Shape) -> float:
    """Reads of an operand for each element of the result that is computed."""
    opcode = instruction.opcode
    share = operand.elements / max(1, instruction.shape.arrays[0].elements)
    if opcode == "dynamic-update-slice":
        return share if position == 1 else 0.0
    if opcode == "scatter":
        return 1.0 if position == len(instruction.operands) - 1 else 0.0
    if opcode in opcodes.JOINS or opcode == "reduce":
        return share if operand.elements > 1 else 0.0
    if position > 0 or opcode in ("dot", "sort"):
        return 0.0
    return elements_of_window(instruction, operand)


def elements_of_window(instruction: Instruction, operand: Shape) -> float:
    """Elements that a window of a reduce-window has, without padding, on average; else 1."""
    if instruction.opcode != "reduce-window" or instruction.contraction is None:
        return 1.0
    sizes = zip(instruction.contraction.dims, operand.dims, strict=False)
    return prod(max(1.0, w - w * (w - 1) / (2 * max(n, w))) for w, n in sizes)


def _access(
    instruction: Instruction, result: Shape, operand: Shape, access: _Access
) -> _Access | None:
    """How neighbouring threads read an operand; None if they read the same element."""
    opcode = instruction.opcode
    dims = instruction.contraction.dims if instruction.contraction is not None else ()
    if access.distance == inf or opcode in ("scatter", "dynamic-update-slice"):
        return access
    dim, steps = _place(result, access.distance)
    order = _order(operand)
    of_operand: Sequence[int] = range(len(order))
    apart = opcode in ("transpose", "broadcast", "gather")
    if opcode in ("transpose", "gather"):
        of_operand = dims
    elif opcode == "broadcast":
        of_operand = [dims.index(number) if number in dims else -1 for number in range(dim + 1)]
    elif opcode == "reduce":
        of_operand = [number for number in range(len(order)) if number not in dims]
        # A thread reads one row after another's elements, from the same lines.
        apart = not set(order[:1]) & set(dims)
    elif opcode == "slice" and dim < len(dims):
        steps *= max(1, dims[dim])
    elif opcode == "pad" and dim < len(dims):
        steps /= 1 + max(0, dims[dim])
    dim = of_operand[dim] if dim < len(of_operand) else -1
    if dim not in order:
        return {"broadcast": None, "gather": _AT_INDICES}.get(opcode, _NEIGHBOURS)
    distance = steps * prod(operand.dims[minor] for minor in order[: order.index(dim)])
    # Blocks of threads read small matrices as a whole.
    apart = apart and distance * operand.dims[dim] * _element_bytes(operand) > _L1_BYTES
    return _Access(distance, access.apart or (apart and distance > access.distance))


def _place(shape: Shape, distance: float) -> tuple[int, float]:
    """The dimension along which a distance in memory is, and its steps along it."""
    inside, place = 1, (0, 1.0)
    for dim in _order(shape):
        if shape.dims[dim] > 1 and (inside == 1 or distance >= inside):
            place = (dim, distance / inside)
        inside *= shape.dims[dim]
    return place


def _order(shape: Shape) -> tuple[int, ...]:
    """Dimensions from minor to major."""
    numbers = range(len(shape.dims))
    if shape.order is None or sorted(shape.order) != list(numbers):
        return tuple(reversed(numbers))
    return shape.order


def _reads_indices(gather: Instruction, body: Computation) -> bool:
    """Whether indices are read from memory.

    Others follow each other: they are computed, at most from some numbers for many of them, such as
    the angle of an image.
    """
    left, found = list(gather.operands[1:2]), set[str]()
    indices = gather.shape.arrays[0].elements // _row(gather, gather.shape.arrays[0])
    least = max(1, indices // _INDICES_OF_A_NUMBER)
    while left:
        instruction = body.by_name[left.pop()]
        if instruction.name in found:
            continue
        found.add(instruction.name)
        arrays = instruction.shape.arrays
        if instruction.opcode == "parameter" and arrays and arrays[0].elements > least:
            return True
        left += instruction.operands
    return False


def _row(gather: Instruction, result: Shape) -> int:
    """Elements next to each other that are read at one index."""
    dims = gather.contraction.dims if gather.contraction is not None else ()
    row = 1
    for dim in _order(result):
        if dim >= len(dims) or dims[dim] < 0:
            break
        row *= result.dims[dim]
    return row


def _element_bytes(shape: Shape) -> int:
    return max(1, (element_bits(shape.element) or 8) // 8)
