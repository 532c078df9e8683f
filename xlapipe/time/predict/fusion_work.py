"""Work of fusions: XLA's emitter, the operations of the body, and the reads of the threads."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, log2, prod

from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.shapes import Shape
from xlapipe.time.cost.flops import VECTOR
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.predict.arrays import (
    first_array,
    log,
    minor_to_major,
    share_of,
    updated_in_place,
)
from xlapipe.time.predict.element_operations import FREE, OPERATIONS, ThreadWork
from xlapipe.time.predict.gpu import (
    LEAST_THREADS,
    MOST_REGISTERS,
    REGISTERS,
    THREADS,
    Gpu,
)
from xlapipe.time.predict.reductions import (
    ACCESSES_OF_WRITTEN,
    CHAIN_OF_WRITTEN,
    column_tile,
    reduced,
    writes_elements,
)
from xlapipe.time.predict.triton_tiles import fusion_tile
from xlapipe.time.predict.work import TRIED_SCATTER, KernelWork, Updates

# A step of a sort in one block takes as long as this number of operations on the whole GPU.
_SORT_STEP = 3.2e6
# Least cost of an element of a sort, in operations: each short sort has its own block.
_LEAST_COMPARED = 360.0
# Elements per thread to which XLA unrolls loops over large arrays.
_ELEMENTS_OF_A_THREAD = 4
_SHORT_TYPES, _COMPLEX = ("bf16", "f16"), ("c64", "c128")
# Reads in a sum that take as long as a term of a longer product in a loop fusion, on an H100.
_READS_OF_A_TERM, _UNROLLED_TERMS = 13.0, 32
# LLVM does not unroll a loop of more operations and reads than this. Then each term waits for its
# reads: dependent accesses per term, and per read.
_NOT_UNROLLED, _LEAST_TERMS = 170, 8
_ACCESSES_OF_A_TERM, _ACCESSES_OF_A_READ = 10.0, 1.2
# Reads are issued one after another if some are in branches. Threads with many such reads need more
# registers, which lowers occupancy. Measured on an H100 with stencils that update borders.
_APART_SECONDS, _REGISTERS_OF_A_READ, _LEAST_REGISTERS = 22e-9, 0.5, 32
# Adjacent 16-bit elements per thread of a transpose.
_SHORT_ELEMENTS = 2
# Opcodes that decide how XLA emits a fusion: the first of these that its body has.
_HEROES = (
    "scatter",
    "sort",
    "reduce",
    "reduce-window",
    "gather",
    "transpose",
    "dynamic-update-slice",
    "dynamic-slice",
    "concatenate",
    "pad",
    "reverse",
)


def fusion_work(
    inner: Instruction,
    body: Computation,
    scope: Computation,
    module: HloModule,
    cost: KernelCost,
    flops: Mapping[str, int],
    threads: int,
    per_block: int,
    gpu: Gpu,
) -> KernelWork:
    once = "triton" in cost.kind
    heroes = _heroes(body, module, once=once)
    hero = next((name for name in _HEROES if name in heroes), "")
    if not hero:
        hero = next((name for name in _HEROES if f"inner {name}" in heroes), "")
        heroes = {name.removeprefix("inner "): item for name, item in heroes.items()}
    emitter = {"kLoop": "loop", "kInput": "input"}.get(inner.fusion_kind or "", "")
    if not emitter:
        emitter = "triton" if "triton" in cost.kind else "custom"
    element, _, result = first_array(inner.shape)
    scattered = 0.0
    in_place = hero == "dynamic-update-slice" and bool(updated_in_place(body))
    if in_place:
        result = first_array(body.by_name[heroes[hero].operands[1]].shape)[2]
    if emitter in ("loop", "input"):
        unrolled = _ELEMENTS_OF_A_THREAD if emitter == "loop" else 1
        if threads and emitter == "loop":
            unrolled = max(1, min(_ELEMENTS_OF_A_THREAD, round(result / threads)))
        elif emitter == "input" and hero == "transpose" and element in _SHORT_TYPES:
            unrolled = _SHORT_ELEMENTS
        # numpy takes longer to start than most commands that predict no time.
        from xlapipe.time.predict.followed_threads import followed

        of_row = 1.0
        if emitter == "input" and hero == "reduce" and threads:
            along, length, _, count = reduced(heroes[hero], body)
            of_row = length * count / threads if along == "row" else 1.0
        work = followed(
            *(inner, body, scope, module),
            tiled=emitter == "input" and hero != "scatter",
            elements_of_a_thread=unrolled,
            elements_of_a_row=of_row,
            gpu=gpu,
        )
        if emitter == "loop" and not in_place:
            scattered = _parts_of_a_sector(inner.shape, unrolled, threads, gpu)
    else:
        work = _of_tiles(body, module)
    operations, largest = work.operations + flops.get(VECTOR, 0), work.elements
    if not threads:
        threads = int(largest) // _ELEMENTS_OF_A_THREAD
        if in_place:
            threads = cost.written_bytes // 4
    touched = cost.read_bytes + cost.written_bytes
    point = [
        log(touched),
        log(threads),
        3 * share_of(cost.written_bytes, touched),
        log(operations / max(touched, 1) * 8),
        log(largest / max(threads, 1)),
    ]
    what = ""
    updates: Updates | None = None
    if hero == "reduce":
        sums = reduced(heroes["reduce"], body)
        along, length, kept, _ = sums
        hero = f"{along} reduction"
        point += [0.7 * log(length), 0.5 * log(kept), 0.5 * log(per_block)]
        what = f"{along} reduction of {length:,} elements each"
        if once:
            tile = fusion_tile(inner, body, length)
            if along == "row":
                held = (tile.separate, tile.operations_of_a_thread, tile.unaligned_rows)
                point += [log(number) for number in held]
                pieces, rows = tile.pieces, tile.rows_of_a_piece
                what += f", {pieces:,} separate pieces of {rows:,} rows in a tile"
            point += [4 * log(tile.sums), float(tile.misalignment)]
            what += f", {tile.sums:,} of them one after another" if tile.sums > 1 else ""
    elif hero in opcodes.INDEXED:
        from xlapipe.time.predict.scatter_work import rows_of, updates_of

        row, table, moved = rows_of(heroes[hero], body)
        place = [log(row), 0.5 * log(table), 0.7 * log2(max(1.0, moved / max(table, 1)))]
        if hero == "scatter":
            scatter = heroes[hero]
            count = first_array(body.by_name[scatter.operands[-1]].shape)[2]
            updates = updates_of(scatter, inner, body, scope, module, threads, gpu)
            hero = TRIED_SCATTER if updates.tried else hero
            point = [log(count), 0.5 * log(touched), 2 * share_of(cost.written_bytes, touched)]
        point += place
        what = f"rows of {row:,} elements in an array of {table:,} B"
        if updates is not None and updates.most_seconds < inf:
            what += ", at indices that follow from positions"
    elif hero == "sort":
        point, operations = sort_steps(heroes["sort"], inner.shape)
        what = f"{len(inner.shape.arrays)} arrays of {first_array(inner.shape)[2]:,} elements"
    elif hero == "transpose" and once:
        tile = fusion_tile(inner, body, 1)
        point += [float(tile.misalignment), log(tile.operations_of_a_thread)]
    elif in_place:
        hero = "update"
    elif hero in opcodes.JOINS or hero == "dynamic-update-slice":
        hero = "joining"
    elif hero in ("dynamic-slice", "reverse"):
        hero = ""
    kind = f"{emitter} {hero}".strip()
    serial = 0.0
    chain = work.longest_operations if emitter == "loop" else operations / max(threads, 1)
    if kind == "input column reduction":
        columns = column_tile(sums, threads, per_block)
        each = max(largest / max(threads, 1), columns.elements)
        serial = each * columns.accesses(len(inner.shape.arrays), len(inner.operands))
        chain *= columns.elements / columns.elements_of_all
        scattered = columns.parts_of_a_sector(inner, body, sums, threads, per_block)
        point += [float(columns.whole), 0.5 * log(columns.vector)]
    elif kind == "input row reduction" and writes_elements(inner, sums):
        serial = largest / max(threads, 1) * ACCESSES_OF_WRITTEN
        chain *= CHAIN_OF_WRITTEN
    elif kind in ("loop row reduction", "loop column reduction"):
        not_unrolled = chain + work.longest_reads > _NOT_UNROLLED
        if not_unrolled and sums.length >= _LEAST_TERMS:
            serial = sums.length * _ACCESSES_OF_A_TERM + work.longest_reads * _ACCESSES_OF_A_READ
    missing = 0
    if emitter != "triton" and per_block:
        missing = max(0, LEAST_THREADS - per_block) * (threads // per_block)
    fused = KernelWork(
        kind,
        tuple(point),
        cost.read_bytes,
        cost.written_bytes,
        operations,
        flops,
        threads,
        what,
        serial_accesses=serial,
        sector_bytes=int(work.sector_bytes),
        far_sector_bytes=int(work.far_sector_bytes),
        lines=work.lines,
        updates=updates,
        missing_threads=missing,
        chain_operations=chain,
        chain_reads=work.longest_reads + (_terms_alone(body) if emitter == "loop" else 0.0),
        scattered_bytes=int(cost.written_bytes * scattered),
        apart_seconds=_apart_seconds(work.reads_apart, threads, gpu) if emitter == "loop" else 0.0,
        gpu=gpu,
    )
    if emitter not in ("loop", "input"):
        return fused
    return replace(fused, point=(*point, fused.beside_memory))


def _apart_seconds(reads: float, threads: int, gpu: Gpu) -> float:
    """Seconds until all threads have made their dependent reads, as occupancy limits them."""
    registers = min(MOST_REGISTERS, _LEAST_REGISTERS + reads * _REGISTERS_OF_A_READ)
    at_once = gpu.multiprocessors * min(THREADS, REGISTERS / registers)
    return reads * _APART_SECONDS * max(1.0, threads / at_once)


def _parts_of_a_sector(shape: Shape, unrolled: int, threads: int, gpu: Gpu) -> float:
    """Partial writes per sector of the results: one for each element of a thread.

    0 where a thread writes its elements of one result in direct succession. XLA does not vectorize
    complex numbers, of which the L2 cache takes twice as many if it holds them. LLVM does not prove
    elements adjacent if blocks go beyond the end of the array, and steps of its most major
    dimension are not a multiple of these elements. With several results, threads then write one
    element of each in turn.
    """
    if any(array.element in _COMPLEX for array in shape.arrays):
        return unrolled if (shape.size_bytes or 0) > 2 * gpu.l2_bytes else unrolled / 2
    result = shape.arrays[0]
    sizes = [result.dims[dim] for dim in reversed(minor_to_major(result))]
    major = next((size for size in sizes if size > 1), 1)
    step = result.elements // major
    whole = result.elements == threads * unrolled or step % unrolled == 0
    at_once = len(shape.arrays) == 1 or whole or major == result.elements
    return 0.0 if at_once else unrolled


def _of_tiles(body: Computation, module: HloModule) -> ThreadWork:
    """The work of a Triton fusion, which computes each instruction's tile once."""
    operations = most = 0.0
    for instruction in body.instructions:
        opcode, own = instruction.opcode, first_array(instruction.shape)[2]
        most = max(most, own)
        if opcode in opcodes.HAS_BODY:
            called = module.computations[instruction.called_computations[0]]
            inside = _of_tiles(called, module)
            operations, most = operations + inside.operations, max(most, inside.elements)
        elif opcode not in FREE | opcodes.RESHAPES:
            size = float(own)
            if opcode in opcodes.REDUCES and instruction.operands:
                operand = body.by_name[instruction.operands[0]]
                size *= max(1.0, first_array(operand.shape)[2] / max(own, 1))
            operations += size * OPERATIONS.get(opcode, 1)
    return ThreadWork(operations=operations, elements=most)


def _terms_alone(body: Computation) -> float:
    """Reads of a thread that computes an element of a long product, one term after another.

    XLA's loop emitter computes products of complex numbers. LLVM unrolls short ones.
    """
    terms = [
        prod(body.by_name[dot.operands[0]].shape.dims[dim] for dim in dot.contraction.dims)
        for dot in body.instructions
        if dot.opcode == "dot" and dot.contraction is not None
    ]
    return _READS_OF_A_TERM * sum(count for count in terms if count > _UNROLLED_TERMS)


def _heroes(body: Computation, module: HloModule, *, once: bool) -> Mapping[str, Instruction]:
    """The largest instruction of each opcode in `_HEROES`.

    XLA chooses the emitter by an instruction at the root, or with only element-wise ones between;
    keys of others begin with `inner`. In a fusion by Triton, all count as at the root.
    """
    heroes: dict[str, Instruction] = {}
    at_root = {body.root}
    for instruction in reversed(body.instructions):
        name, opcode = instruction.name, instruction.opcode
        if opcode in opcodes.HAS_BODY:
            inside = module.computations[instruction.called_computations[0]]
            heroes = {**_heroes(inside, module, once=once), **heroes}
        key = opcode if once or name in at_root else f"inner {opcode}"
        largest, own = heroes.get(key), first_array(instruction.shape)[2]
        if opcode in _HEROES and (largest is None or first_array(largest.shape)[2] < own):
            heroes[key] = instruction
        if name in at_root and opcode not in opcodes.READS_OTHER_INDICES:
            at_root.update(instruction.operands)
    return heroes


def sort_steps(sort: Instruction, result: Shape) -> tuple[list[float], float]:
    """The point of a sort by XLA, and its cost in operations of the whole GPU."""
    operands, elements = len(result.arrays), first_array(result)[2]
    length, distance = _sorted(sort)
    # Blocks sort parts of 4,096 elements in dependent steps.
    steps = log(length) * (log(length) + 1) / 2 * max(1.0, min(length, 4096) / 1024)
    compared = max(_LEAST_COMPARED, 7 * log(length) ** 2)
    operations = compared * elements * operands + _SORT_STEP * steps
    return [log(elements), log(length), float(operands), log(min(distance, 32))], operations


def _sorted(sort: Instruction) -> tuple[int, int]:
    """Length of each sort, and the stride in memory, in elements, between two of its elements."""
    shape = sort.shape.arrays[0]
    dim = sort.contraction.dims[0] if sort.contraction is not None else len(shape.dims) - 1
    order = shape.order or tuple(reversed(range(len(shape.dims))))
    inside = order[: order.index(dim)] if dim in order else ()
    length = shape.dims[dim] if dim < len(shape.dims) else 1
    return length, prod(shape.dims[number] for number in inside)
