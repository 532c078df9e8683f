"""Features of calls of libraries other than products: solvers, transforms, sorts, selections.

Operations are simple ones of the whole GPU that take as long as the call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from xlapipe.plans.hlo import Computation, Instruction
from xlapipe.plans.shapes import element_bits
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.predict.arrays import first_array, log, operand_shapes
from xlapipe.time.predict.fusion_work import sort_steps
from xlapipe.time.predict.gpu import Gpu

# Most elements that one block sorts.
_SORTED_AT_ONCE = 4096
# Eigenvalues of many matrices: rows up to which a multiprocessor holds so many blocks, and the time
# of a round in operations. 512 of 16 x 16 took 60 µs and 4,096 of them 197, 128 of 24 x 24 82 µs
# and 512 of them 180.
_JACOBI_ROWS, _JACOBI_BLOCKS, _JACOBI_OPERATIONS = (16, 32), (8, 2), 1e9


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A call, or another instruction that is not a fusion.

    Attributes:
      name: of the library's function, or the opcode.
      element, dims, elements: type, dimensions and elements of its first result.
      operands: dimensions of each operand; types: their element types.
      threads: of its launch; 0 if unknown.
    """

    name: str
    instruction: Instruction
    element: str
    dims: tuple[int, ...]
    elements: int
    operands: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    touched_bytes: int
    threads: int
    gpu: Gpu

    @property
    def first(self) -> tuple[int, ...]:
        """Dimensions of the first operand, or of the result of a call without one."""
        return self.operands[0] if self.operands else self.dims

    @property
    def size(self) -> int:
        """The last dimension of the first operand."""
        return self.first[-1] if self.first else 1


@dataclass(frozen=True, slots=True)
class LibraryPoint:
    """Where a call is among those of its kind, and its work; kind and threads only if others."""

    point: tuple[float, ...]
    operations: float
    kind: str = ""
    threads: int = 0


def call_of(
    name: str, inner: Instruction, scope: Computation, cost: KernelCost, threads: int, gpu: Gpu
) -> LibraryCall:
    element, dims, elements = first_array(inner.shape)
    given = [first_array(shape) for shape in operand_shapes(inner, scope)]
    operands, types = tuple(item[1] for item in given), tuple(item[0] for item in given)
    touched = cost.touched_bytes
    return LibraryCall(name, inner, element, dims, elements, operands, types, touched, threads, gpu)


def features_of_call(call: LibraryCall) -> LibraryPoint:
    return next(features(call) for part, features in _CALLS.items() if part in call.name)


def _triangular(call: LibraryCall) -> LibraryPoint:
    if len(call.operands) < 2:
        return _unknown(call)
    size, batch = call.size, prod(call.first[:-2])
    columns = prod(call.operands[1]) // max(1, size * batch)
    costs = call.gpu.features.libraries
    row = costs.row_of_many if batch > 1 else costs.row if columns > 1 else costs.row_alone
    of_element = (costs.element_of_many if batch > 1 else 0.0) + costs.term * size
    # cuBLAS divides a triangle into blocks of 32.
    point = (log(size), log(columns), log(batch), 3.0 * (size % 32 > 0))
    return LibraryPoint(point, size * row + batch * size * columns * of_element)


def _factors(call: LibraryCall) -> LibraryPoint:
    rows, columns = (call.first[-2], call.first[-1]) if len(call.first) > 1 else (1, 1)
    batch = prod(call.first[:-2])
    # cuSOLVER runs other kernels for a batch than for one matrix.
    point = (log(rows), log(columns), log(batch), 4.0 * (batch > 1))
    if "syevd" in call.name and batch > 1 and rows <= _JACOBI_ROWS[-1]:
        # By Jacobi's method, a block for each matrix.
        resident = _JACOBI_BLOCKS[rows > _JACOBI_ROWS[0]]
        rounds = max(1.0, batch / (resident * call.gpu.multiprocessors))
        kind = f"{call.name} of many {call.element}"
        return LibraryPoint(point, rounds * _JACOBI_OPERATIONS, kind)
    return LibraryPoint(point, float(call.elements))


def _tridiagonal(call: LibraryCall) -> LibraryPoint:
    # Systems of several columns are solved one after another.
    size, batch = call.size, prod(call.first[:-1])
    columns = max(1, call.elements // max(1, size * batch))
    operations = call.gpu.features.libraries.system * columns * (batch if columns > 1 else 1)
    return LibraryPoint((log(size), log(columns), log(batch)), operations)


def _transform(call: LibraryCall) -> LibraryPoint:
    contraction = call.instruction.contraction
    lengths = contraction.dims if contraction is not None else (1,)
    rough = max(map(_roughness, lengths))
    point = (log(max(prod(call.first), call.elements)), log(lengths[-1]), 2.0 * rough)
    kind = f"fft {call.types[0]} to {call.element} of rank {len(lengths)}"
    return LibraryPoint(point, float(call.elements), kind)


def _pivots(call: LibraryCall) -> LibraryPoint:
    pivots, batch = (call.dims[-1] if call.dims else 1), prod(call.dims[:-1])
    return LibraryPoint((log(pivots), log(batch)), float(call.elements))


def _top(call: LibraryCall) -> LibraryPoint:
    columns, rows = call.size, prod(call.first[:-1])
    kept, operations = _largest(rows, columns, call.dims[-1] if call.dims else 1, call.gpu)
    return LibraryPoint((log(columns), log(rows), log(kept)), operations)


def _sorted(call: LibraryCall) -> LibraryPoint:
    if call.name == "sort":
        steps, operations = sort_steps(call.instruction, call.instruction.shape, call.gpu)
        return LibraryPoint(tuple(steps), operations, "custom sort")
    elements, columns = prod(call.first), call.size
    key_bits = element_bits(call.types[0]) or 32 if call.types else 32
    operations = _radix_sorted(elements, columns, key_bits, call.touched_bytes, call.gpu)
    point = (log(elements), log(columns), log(call.touched_bytes), key_bits / 8)
    return LibraryPoint(point, operations, call.name)


def _unknown(call: LibraryCall) -> LibraryPoint:
    elements = float(call.elements)
    if call.instruction.opcode == "custom-call":
        return LibraryPoint((log(call.touched_bytes), log(call.elements)), elements)
    threads = call.threads or call.elements
    elements_per_thread = log(call.elements / max(threads, 1))
    point = (log(call.touched_bytes), log(threads), 1.5, 0.0, elements_per_thread)
    return LibraryPoint(point, elements, "loop", threads=threads)


# By a part of the call's name, the first that it has.
_CALLS: dict[str, Callable[[LibraryCall], LibraryPoint]] = {
    "__cublas$triangularSolve": _triangular,
    "cusolver": _factors,
    "cusparse_gtsv2": _tridiagonal,
    "fft": _transform,
    "cu_lu_pivots_to_permutation": _pivots,
    "TopK": _top,
    "sort": _sorted,
    "": _unknown,
}


def _roughness(length: int) -> float:
    """How far a transform's length is from powers of two, for which cuFFT is fastest.

    NVIDIA's documentation names products of 2, 3, 5 and 7 as fast, and Bluestein's algorithm, by
    longer transforms, for others. That primes up to 127 are in between is assumed.
    """
    if length & (length - 1) == 0:
        return 0.0
    rest = length
    for largest, roughness in ((7, 1.0), (127, 2.0)):
        for factor in range(2, largest + 1):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return roughness
    return 3.5


def _largest(rows: int, columns: int, count: int, gpu: Gpu) -> tuple[int, float]:
    """Results that XLA's TopK kernel keeps per row, and its time in operations of the whole GPU.

    As in `xla/stream_executor/gpu/topk_kernel.cu.h`: one block per row, in which each thread keeps
    the largest of its own elements; then half of the threads merge with the other half.
    """
    kept = 1 << max(0, count - 1).bit_length()
    slices = max(1, int(columns / max(1.0, log(columns))))
    threads = min(1024, 8192 // max(1, min(kept, 1024)), 1 << (slices.bit_length() - 1))
    threads = max(1, threads)
    compared = columns / threads * min(kept, 8) ** 0.9 * gpu.features.libraries.top_compared
    merged = log(threads) ** 3 * kept**1.7 * gpu.features.libraries.top_merged
    # Several blocks of few threads are resident on a multiprocessor.
    rounds = max(1.0, rows / gpu.multiprocessors * min(1.0, threads / 512) ** 0.6)
    return kept, (compared + merged) * rounds


def _radix_sorted(elements: int, columns: int, key_bits: int, touched: int, gpu: Gpu) -> float:
    """Operations of the whole GPU that take as long as CUB's radix sort, fitted to timed ones.

    With several rows, one block sorts each; a single row is sorted in passes over its keys' digits.
    """
    rows = max(1, elements // max(1, columns))
    element_bytes = touched / 2 / max(1, elements)
    costs = gpu.features.libraries
    if rows > 1:
        element_seconds = costs.sorted_element + costs.sorted_byte * element_bytes
        return costs.rows_start + element_seconds * columns * max(1.0, rows / gpu.multiprocessors)
    if elements <= _SORTED_AT_ONCE:
        return costs.passes_start
    element_seconds = costs.passed_element + costs.passed_byte * element_bytes
    return costs.passes_start + key_bits / 32 * (costs.passes + element_seconds * elements)
