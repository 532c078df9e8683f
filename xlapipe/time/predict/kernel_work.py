"""Work of one kernel launch, by the kind of its instruction.

A calibration stores the kinds and points that this module, `fusion_work` and `product_work`
compute: after a change there, a GPU has to be calibrated again.
"""

import re
from dataclasses import replace
from math import prod

from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.plans.shapes import element_bits
from xlapipe.plans.thunks import Thunk
from xlapipe.time.cost.fingerprint import signature
from xlapipe.time.cost.kernel import Kernel, KernelCost
from xlapipe.time.cost.library_calls import library_call
from xlapipe.time.cost.schedule import Site
from xlapipe.time.predict.arrays import first_array, log, operand_shapes
from xlapipe.time.predict.fusion_work import fusion_work, sort_steps
from xlapipe.time.predict.gpu import HOPPER, Gpu
from xlapipe.time.predict.pallas_work import UNCOUNTED, counted_work, uncounted_work
from xlapipe.time.predict.product_work import library_product, triton_product
from xlapipe.time.predict.work import KernelWork

# TopK, in simple operations of the whole GPU that take as long: an element that a thread compares
# with one result, and the merge of the results of 1,024 threads.
_COMPARED, _MERGED = 3.3e6, 2.6e4
# In the same unit, triangular solve: a row for one right-hand side, for several, and of a batch; an
# element of a batch's solution, and a term of a row for one right-hand side. LU: a pivot.
_ROW_ALONE, _ROW, _ROW_OF_MANY, _ELEMENT_OF_MANY, _TERM = 1.7e6, 6.1e6, 15e6, 520.0, 0.75
_PIVOT = 3e6
# In the same unit, tridiagonal solve: a right-hand side; cuSPARSE solves one after another.
_SYSTEM = 2e8
# In the same unit, CUB's radix sort. Several rows: fixed, per element, and per byte of it. One row:
# fixed, passes over 32-bit keys, per element in them, and per byte of it.
_START_OF_ROWS, _SORTED, _SORTED_BYTE = 725e6, 30e3, 20e3
_START_OF_PASSES, _PASSES, _PASSED, _PASSED_BYTE = 170e6, 960e6, 290.0, 80.0
# Most elements that one block sorts.
_SORTED_AT_ONCE = 4096
_SIZE = r"(\d{1,10})"  # CUDA's largest has ten digits; a damaged file's may have no float
_SIZES = rf"\[{_SIZE}, {_SIZE}, {_SIZE}\]"
_GRID = re.compile(rf"grid: {_SIZES} threads: {_SIZES}")
_HOST_SPACE = "S(5)"
# Work of kernels seen in this process: layers of a model often repeat the same ones.
_KNOWN: dict[tuple[object, ...], KernelWork] = {}
_MOST_KNOWN = 4096


def work_of(
    kernel: Kernel, module: HloModule, *, untuned: bool = False, gpu: Gpu = HOPPER
) -> KernelWork:
    """The work of one launch.

    Args:
      untuned: the result of `is_untuned`.
      gpu: that runs it.
    """
    site, cost, thunk = kernel.site, kernel.cost, kernel.thunk
    parts = signature(site, module)
    operands = [site.scope.by_name.get(name) for name in site.inner.operands]
    # A scatter's time depends on whether its indices are arguments.
    given = [operand is not None and operand.opcode == "parameter" for operand in operands]
    counted = (*given, cost.kind, cost.read_bytes, cost.written_bytes, cost.stated, repr(cost.code))
    flops, launch = tuple((cost.flops or {}).items()), thunk and (thunk.kind, thunk.detail)
    key = (*parts, *counted, flops, launch, kernel.wire_bytes, untuned, gpu)
    work = _KNOWN.get(key)
    if work is not None:
        return work
    work = _work_of(kernel, module, untuned, gpu)
    work = work if work.gpu == gpu else replace(work, gpu=gpu)
    # A gather's addresses depend on what computed its indices.
    if not _gathers(site.inner, module):
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = work
    return work


def _work_of(kernel: Kernel, module: HloModule, untuned: bool, gpu: Gpu) -> KernelWork:
    site, cost, thunk = kernel.site, kernel.cost, kernel.thunk
    inner = site.inner
    threads, per_block = _grid(thunk)
    opcode = inner.opcode.removesuffix("-start")
    if opcode in COLLECTIVES:
        what = f"{opcode} of {cost.written_bytes:,} B"
        return _moved(opcode, cost, what, link_bytes=kernel.wire_bytes)
    if touches_host(site):
        return _moved("host copy", cost, f"{cost.written_bytes:,} B")
    if inner.opcode in opcodes.COPIES or (thunk is not None and thunk.kind == "kCopy"):
        # Also slices, and updates in a loop, which XLA runs as copies without a kernel.
        own = thunk is not None and thunk.kind == "kCustomKernel"
        kind = "copy kernel" if own else "copy"
        return _moved(kind, cost, f"{cost.written_bytes:,} B", threads=threads)
    flops = {name: count for name, count in (cost.flops or {}).items() if count}
    call = library_call(inner, site.scope, module)
    if flops and call is not None:
        return library_product(*call, cost, flops, gpu)
    if inner.opcode == "fusion":
        body = module.computations[inner.called_computations[0]]
        if flops and "gemm" in cost.kind:
            return triton_product(inner, body, cost, flops, threads, gpu, untuned=untuned)
        if inner.fusion_kind == "kCustom" and "custom-call" in body.opcodes:
            # XLA's dynamic slice fusion: the call gets slices of the operands. The bytes that it
            # touches are as unknown as those of a call outside a fusion.
            called = next(item for item in body.instructions if item.opcode == "custom-call")
            target = called.custom_call_target or cost.kind
            cost = replace(cost, kind=target, read_bytes=0, written_bytes=0)
            return _other(called, body, cost, threads, thunk, gpu)
        return fusion_work(inner, body, site.scope, module, cost, flops, threads, per_block, gpu)
    if flops and inner.kernel_name is None:
        return library_product(inner, site.scope, cost, flops, gpu)
    return _other(inner, site.scope, cost, threads, thunk, gpu)


def _gathers(instruction: Instruction, module: HloModule) -> bool:
    """Whether an instruction, or a computation that it calls, reads at computed indices."""
    if instruction.opcode == "gather":
        return True
    for name in instruction.called_computations:
        called = module.computations[name]
        if called.opcodes.isdisjoint({"gather"} | opcodes.HAS_BODY):
            continue
        if any(_gathers(item, module) for item in called.instructions):
            return True
    return False


def touches_host(site: Site) -> bool:
    """Whether a launch reads or writes the host's memory, also a slice of an array in a loop."""
    operands = operand_shapes(site.inner, site.scope)
    # Which element of a whole tuple, such as a loop's, is read is unknown.
    shapes = (site.inner.shape, *(shape for shape in operands if not shape.is_tuple))
    return any(_HOST_SPACE in shape.text for shape in shapes)


def _grid(thunk: Thunk | None) -> tuple[int, int]:
    """Threads of a launch, and threads of a block; 0 if unknown."""
    match = _GRID.search(thunk.detail) if thunk is not None else None
    if match is None:
        return 0, 0
    numbers = [int(text) for text in match.groups()]
    return prod(numbers), prod(numbers[3:])


def _other(
    inner: Instruction,
    scope: Computation,
    cost: KernelCost,
    threads: int,
    thunk: Thunk | None,
    gpu: Gpu,
) -> KernelWork:
    """A library call or an instruction that is not a fusion."""
    name = inner.custom_call_target or inner.opcode
    if cost.code is not None:
        return counted_work(cost, cost.code, gpu)
    element, dims, elements = first_array(inner.shape)
    given = operand_shapes(inner, scope)
    operands = [first_array(shape)[1] for shape in given]
    first = operands[0] if operands else dims
    touched = cost.read_bytes + cost.written_bytes
    point: tuple[float, ...]
    what = f"{element}[{','.join(map(str, dims))}]"
    if inner.opcode == "custom-call" and cost.kind != name:  # the kernel's own name
        per_block = _grid(thunk)[1]
        if threads:
            return uncounted_work(cost, elements, threads, per_block)
        name = UNCOUNTED
    kind, operations = f"{name} {element}", float(elements)
    if name == "__cublas$triangularSolve" and len(operands) > 1:
        other = operands[1]
        size = first[-1] if first else 1
        columns = prod(other) // max(1, size * prod(first[:-2]))
        # cuBLAS divides a triangle into blocks of 32.
        batch = prod(first[:-2])
        point = (log(size), log(columns), log(batch), 3.0 * (size % 32 > 0))
        row = _ROW_OF_MANY if batch > 1 else _ROW if columns > 1 else _ROW_ALONE
        of_element = (_ELEMENT_OF_MANY if batch > 1 else 0.0) + _TERM * size
        operations = size * row + batch * size * columns * of_element
    elif name.startswith("cusolver"):
        rows, columns = (first[-2], first[-1]) if len(first) > 1 else (1, 1)
        batch = prod(first[:-2])
        # cuSOLVER runs other kernels for a batch than for one matrix.
        point = (log(rows), log(columns), log(batch), 4.0 * (batch > 1))
    elif name.startswith("cusparse_gtsv2"):
        # Systems of several columns are solved one after another.
        size, batch = (first[-1] if first else 1), prod(first[:-1])
        columns = max(1, elements // max(1, size * batch))
        point = (log(size), log(columns), log(batch))
        operations = _SYSTEM * columns * (batch if columns > 1 else 1)
    elif name == "fft":
        before = first_array(given[0])[0]
        kind = f"fft {before} to {element}"
        lengths = inner.contraction.dims if inner.contraction is not None else (1,)
        kind += f" of rank {len(lengths)}"
        rough = max(map(_roughness, lengths))
        point = (log(max(prod(first), elements)), log(lengths[-1]), 2.0 * rough)
    elif name == "cu_lu_pivots_to_permutation":
        # A thread applies the pivots of a matrix one after another.
        pivots, batch = (dims[-1] if dims else 1), prod(dims[:-1])
        point = (log(pivots), log(batch))
        operations = _PIVOT * pivots * min(5.0, batch ** (1 / 3))
    elif "TopK" in name:
        columns, rows = first[-1] if first else 1, prod(first[:-1])
        kept, operations = _largest(rows, columns, dims[-1] if dims else 1, gpu)
        point = (log(columns), log(rows), log(kept))
        what = f"{dims[-1]:,} largest of {columns:,} in each of {rows:,} rows"
    elif name == "sort":
        steps, operations = sort_steps(inner, inner.shape)
        point = tuple(steps)
        kind = "custom sort"
    elif "sort" in name:
        kind, columns = name, first[-1] if first else 1
        key_bits = element_bits(first_array(given[0])[0]) or 32 if given else 32
        operations = _radix_sorted(prod(first), columns, key_bits, touched, gpu)
        point = (log(prod(first)), log(columns), log(touched), key_bits / 8)
    else:
        point = (log(touched), log(elements))
        if inner.opcode != "custom-call":
            kind = "loop"
            threads = threads or elements
            point = (log(touched), log(threads), 1.5, 0.0, log(elements / max(threads, 1)))
    work = KernelWork(
        kind,
        point,
        cost.read_bytes,
        cost.written_bytes,
        operations,
        cost.flops or {},
        threads,
        what,
        partly_unknown=name == UNCOUNTED and not cost.stated,
    )
    return replace(work, point=(*point, work.beside_memory)) if kind == "loop" else work


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
    compared = columns / threads * min(kept, 8) ** 0.9 * _COMPARED
    merged = log(threads) ** 3 * kept**1.7 * _MERGED
    # Several blocks of few threads are resident on a multiprocessor.
    rounds = max(1.0, rows / gpu.multiprocessors * min(1.0, threads / 512) ** 0.6)
    return kept, (compared + merged) * rounds


def _radix_sorted(elements: int, columns: int, key_bits: int, touched: int, gpu: Gpu) -> float:
    """Operations of the whole GPU that take as long as CUB's radix sort, fitted to timed ones.

    With several rows, one block sorts each; a single row is sorted in passes over its keys' digits.
    """
    rows = max(1, elements // max(1, columns))
    element_bytes = touched / 2 / max(1, elements)
    if rows > 1:
        each = _SORTED + _SORTED_BYTE * element_bytes
        return _START_OF_ROWS + each * columns * max(1.0, rows / gpu.multiprocessors)
    if elements <= _SORTED_AT_ONCE:
        return _START_OF_PASSES
    each = _PASSED + _PASSED_BYTE * element_bytes
    return _START_OF_PASSES + key_bits / 32 * (_PASSES + each * elements)


def _moved(
    kind: str, cost: KernelCost, what: str, *, threads: int = 0, link_bytes: int = 0
) -> KernelWork:
    """The work of a kernel that only moves bytes."""
    read, written = cost.read_bytes, cost.written_bytes
    point = (log(read + written),)
    return KernelWork(kind, point, read, written, 0.0, {}, threads, what, link_bytes)
