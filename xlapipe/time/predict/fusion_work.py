"""Work of fusions: XLA's emitter, the operations of the body, and the reads of the threads."""

from dataclasses import replace
from math import inf, prod

from xlapipe.plans import Computation, HloModule, Instruction, Shape, opcodes
from xlapipe.time.cost.flops import VECTOR
from xlapipe.time.predict.arrays import first_array, log, minor_to_major, share_of
from xlapipe.time.predict.element_operations import FREE, OPERATIONS, ThreadWork
from xlapipe.time.predict.fusion import Fusion
from xlapipe.time.predict.gpu import Gpu
from xlapipe.time.predict.reductions import (
    Reduced,
    column_tile,
)
from xlapipe.time.predict.triton_tiles import dependent_sums, pieces_of_a_tile
from xlapipe.time.predict.work import TRIED_SCATTER, KernelWork

# Reads in a sum that take as long as a term of a longer product in a loop fusion, on an H100.
_READS_OF_A_TERM, _UNROLLED_TERMS = 13.0, 32


def fusion_work(fusion: Fusion) -> KernelWork:
    """The work of a fusion without matrix products by libraries or Triton."""
    cost, emitter = fusion.cost, fusion.emitter
    done = _followed(fusion)
    threads = fusion.threads or fusion.assumed_threads(done.elements)
    operations, touched = done.operations + fusion.flops.get(VECTOR, 0), cost.touched_bytes
    work = KernelWork(
        emitter,
        (
            log(touched),
            log(threads),
            3 * share_of(cost.written_bytes, touched),
            log(operations / max(touched, 1) * 8),
            log(done.elements / max(threads, 1)),
        ),
        cost.read_bytes,
        cost.written_bytes,
        operations,
        fusion.flops,
        threads,
        "",
        sector_bytes=int(done.sector_bytes),
        lines=done.lines,
        gpu=fusion.gpu,
    )
    work = _hero_work(fusion, work)
    if emitter == "loop":
        # What each thread does in dependent succession.
        reads = done.longest_reads + _terms_alone(fusion.body)
        work = replace(work, chain_operations=done.longest_operations, chain_reads=reads)
    elif emitter == "input":
        work = _input_work(fusion, work, done)
    else:
        return work
    return replace(work, point=(*work.point, work.beside_memory))


def _followed(fusion: Fusion) -> ThreadWork:
    if fusion.emitter not in ("loop", "input"):
        return _tiles_work(fusion.body, fusion.module)
    # numpy takes longer to start than most commands that predict no time.
    from xlapipe.time.predict.followed_threads import followed

    return followed(
        fusion,
        tiled=fusion.emitter == "input" and fusion.opcode != "scatter",
        elements_of_a_thread=fusion.elements_of_a_thread,
    )


def _hero_work(fusion: Fusion, work: KernelWork) -> KernelWork:
    """The work with the kind, and the features, that the hero makes of it."""
    hero, opcode = fusion.hero, fusion.opcode
    if fusion.sums is not None:
        return _sums_work(fusion, fusion.sums, work)
    if hero is not None and opcode in opcodes.INDEXED:
        return _rows_work(fusion, hero, work)
    if hero is not None and opcode == "sort":
        point, operations = sort_steps(hero, fusion.inner.shape, fusion.gpu)
        arrays, elements = fusion.inner.shape.arrays, first_array(fusion.inner.shape).elements
        work = replace(work, point=tuple(point), operations=operations)
        return _named(work, "sort", f"{len(arrays)} arrays of {elements:,} elements")
    if fusion.in_place:
        return _named(work, "update")
    if opcode in opcodes.JOINS or opcode == "dynamic-update-slice":
        return _named(work, "joining")
    return _named(work, "" if opcode in ("dynamic-slice", "reverse") else opcode)


def _named(work: KernelWork, name: str, what: str = "") -> KernelWork:
    return replace(work, kind=f"{work.kind} {name}".strip(), what=what)


def _sums_work(fusion: Fusion, sums: Reduced, work: KernelWork) -> KernelWork:
    along, length = sums.along, sums.length
    point = [*work.point, 0.7 * log(length), 0.5 * log(sums.kept), 0.5 * log(fusion.per_block)]
    what = f"{along} reduction of {length:,} elements each"
    if fusion.by_triton and along == "row":
        pieces = pieces_of_a_tile(fusion.inner, fusion.body, length)
        point += [log(pieces.separate), 4 * log(dependent_sums(fusion.body))]
        what += f", {pieces.number:,} separate pieces of {pieces.rows:,} rows in a tile"
    return _named(replace(work, point=tuple(point)), f"{along} reduction", what)


def _rows_work(fusion: Fusion, indexed: Instruction, work: KernelWork) -> KernelWork:
    """The work of a gather or scatter."""
    from xlapipe.time.predict.scatter_work import rows_of, updates_of

    rows = rows_of(indexed, fusion.body)
    place = (log(rows.elements), 0.5 * log(rows.table_bytes), 0.7 * log(rows.accesses))
    what = f"rows of {rows.elements:,} elements in an array of {rows.table_bytes:,} B"
    if indexed.opcode == "gather":
        return _named(replace(work, point=(*work.point, *place)), "gather", what)
    count = first_array(fusion.body.by_name[indexed.operands[-1]].shape).elements
    updates = updates_of(indexed, fusion, work.threads)
    touched = work.touched_bytes
    share = 2 * share_of(work.written_bytes, touched)
    point = (log(count), 0.5 * log(touched), share, *place)
    if updates.most_seconds < inf:
        what += ", at indices that follow from positions"
    work = replace(work, point=point, updates=updates)
    return _named(work, TRIED_SCATTER if updates.tried else "scatter", what)


def _input_work(fusion: Fusion, work: KernelWork, done: ThreadWork) -> KernelWork:
    """The same of a thread that has a part of a tile."""
    inner, sums, threads = fusion.inner, fusion.sums, work.threads
    chain = work.operations / max(threads, 1)
    work = replace(work, chain_operations=chain, chain_reads=done.longest_reads)
    elements_per_thread = done.elements / max(threads, 1)
    if sums is None or sums.along == "row":
        return work
    tile = column_tile(sums, threads, fusion.per_block)
    accesses = tile.accesses(len(inner.shape.arrays), len(inner.operands))
    return replace(
        work,
        point=(*work.point, float(tile.whole), 0.5 * log(tile.vector)),
        chain_operations=chain * (tile.elements / tile.elements_of_all),
        serial_accesses=max(elements_per_thread, tile.elements) * accesses,
    )


def _tiles_work(body: Computation, module: HloModule) -> ThreadWork:
    """The work of a Triton fusion, which computes each instruction's tile once."""
    operations = most = 0.0
    for instruction in body.instructions:
        opcode, result_elements = instruction.opcode, first_array(instruction.shape).elements
        most = max(most, result_elements)
        if opcode in opcodes.HAS_BODY:
            called = module.computations[instruction.called_computations[0]]
            inside = _tiles_work(called, module)
            operations, most = operations + inside.operations, max(most, inside.elements)
        elif opcode not in FREE | opcodes.RESHAPES:
            size = float(result_elements)
            if opcode in opcodes.REDUCES and instruction.operands:
                operand = body.by_name[instruction.operands[0]]
                size *= max(1.0, first_array(operand.shape).elements / max(result_elements, 1))
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


def sort_steps(sort: Instruction, result: Shape, gpu: Gpu) -> tuple[list[float], float]:
    """The point of a sort by XLA, and its cost in operations of the whole GPU."""
    operands, elements = len(result.arrays), first_array(result).elements
    length, distance = _sorted(sort)
    # Blocks sort parts of 4,096 elements in dependent steps.
    steps = log(length) * (log(length) + 1) / 2 * max(1.0, min(length, 4096) / 1024)
    costs = gpu.features.libraries
    compared = max(costs.compared, 7 * log(length) ** 2)
    operations = compared * elements * operands + costs.sort_step * steps
    return [log(elements), log(length), float(operands), log(min(distance, 32))], operations


def _sorted(sort: Instruction) -> tuple[int, int]:
    """Length of each sort, and the stride in memory, in elements, between two of its elements."""
    shape = sort.shape.arrays[0]
    dim = sort.contraction.dims[0] if sort.contraction is not None else len(shape.dims) - 1
    order = minor_to_major(shape)
    inside = order[: order.index(dim)] if dim in order else ()
    length = shape.dims[dim] if dim < len(shape.dims) else 1
    return length, prod(shape.dims[number] for number in inside)
