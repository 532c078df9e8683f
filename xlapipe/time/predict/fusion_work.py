"""Work of fusions: XLA's emitter, the operations of the body, and the reads of the threads."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    Reduced,
    column_tile,
    reduced,
    writes_elements,
)
from xlapipe.time.predict.triton_tiles import fusion_tile
from xlapipe.time.predict.work import TRIED_SCATTER, KernelWork, Updates

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


@dataclass(frozen=True, slots=True)
class Fusion:
    """A fusion that a kernel computes, and how it is launched.

    Attributes:
      inner: the instruction, in `scope`; `body` is what it computes.
      cost: of one launch; `flops` its operations by type, without zeros.
      threads, per_block: of the launch, and of a block; 0 if unknown.
      gpu: that runs it.
    """

    inner: Instruction
    body: Computation
    scope: Computation
    module: HloModule
    cost: KernelCost
    flops: Mapping[str, int]
    threads: int
    per_block: int
    gpu: Gpu

    @property
    def by_triton(self) -> bool:
        """Whether Triton computes it, each instruction's tile once."""
        return "triton" in self.cost.kind

    @property
    def emitter(self) -> str:
        """What writes its code."""
        emitter = {"kLoop": "loop", "kInput": "input"}.get(self.inner.fusion_kind or "", "")
        return emitter or ("triton" if self.by_triton else "custom")

    @property
    def by_xla(self) -> bool:
        """Whether one of XLA's emitters writes it, whose threads are followed."""
        return self.emitter in ("loop", "input")


@dataclass(frozen=True, slots=True)
class _Hero:
    """The instruction by which XLA emits a fusion.

    Attributes:
      opcode: empty if all instructions are element-wise; `instruction` is then None.
      in_place: whether it updates an array in place.
      elements: that the fusion's threads compute: of the result, or of an update in place.
    """

    opcode: str
    instruction: Instruction | None
    in_place: bool
    elements: int


@dataclass(frozen=True, slots=True)
class _Features:
    """What the hero makes of a fusion.

    Attributes:
      name: the part of the kind after the emitter.
      operations: in place of those of the threads; None if it has no other.
      sums, updates: of a reduction, and of a scatter.
    """

    name: str
    point: list[float]
    what: str = ""
    operations: float | None = None
    sums: Reduced | None = None
    updates: Updates | None = None


@dataclass(frozen=True, slots=True)
class _Waits:
    """Dependent operations and accesses of each thread, and writes of parts of a sector.

    Attributes:
      scattered: partial writes per sector of the results.
      point: further coordinates.
    """

    chain: float
    serial: float = 0.0
    scattered: float | None = None
    point: tuple[float, ...] = ()


def fusion_work(fusion: Fusion) -> KernelWork:
    """The work of a fusion without matrix products by libraries or Triton."""
    hero = _hero_of(fusion)
    work = _of_threads(fusion, hero) if fusion.by_xla else _of_tiles(fusion.body, fusion.module)
    operations = work.operations + fusion.flops.get(VECTOR, 0)
    threads = fusion.threads or _assumed_threads(fusion, hero, work)
    cost = fusion.cost
    touched = cost.read_bytes + cost.written_bytes
    point = [
        log(touched),
        log(threads),
        3 * share_of(cost.written_bytes, touched),
        log(operations / max(touched, 1) * 8),
        log(work.elements / max(threads, 1)),
    ]
    features = _features_of(fusion, hero, point, threads)
    if features.operations is not None:
        operations = features.operations
    waits = _waits_of(fusion, features, work, operations, threads)
    scattered, loop = waits.scattered, fusion.emitter == "loop"
    if scattered is None:
        scattered = _parts_of_sectors(fusion, hero)
    missing = 0
    if fusion.emitter != "triton" and fusion.per_block:
        missing = max(0, LEAST_THREADS - fusion.per_block) * (threads // fusion.per_block)
    apart = _apart_seconds(work.reads_apart, threads, fusion.gpu) if loop else 0.0
    fused = KernelWork(
        f"{fusion.emitter} {features.name}".strip(),
        (*features.point, *waits.point),
        cost.read_bytes,
        cost.written_bytes,
        operations,
        fusion.flops,
        threads,
        features.what,
        serial_accesses=waits.serial,
        sector_bytes=int(work.sector_bytes),
        far_sector_bytes=int(work.far_sector_bytes),
        lines=work.lines,
        updates=features.updates,
        missing_threads=missing,
        chain_operations=waits.chain,
        chain_reads=work.longest_reads + (_terms_alone(fusion.body) if loop else 0.0),
        scattered_bytes=int(cost.written_bytes * scattered),
        apart_seconds=apart,
        gpu=fusion.gpu,
    )
    return replace(fused, point=(*fused.point, fused.beside_memory)) if fusion.by_xla else fused


def _hero_of(fusion: Fusion) -> _Hero:
    body = fusion.body
    heroes = _heroes(body, fusion.module, once=fusion.by_triton)
    opcode = next((name for name in _HEROES if name in heroes), "")
    if not opcode:
        opcode = next((name for name in _HEROES if f"inner {name}" in heroes), "")
        heroes = {name.removeprefix("inner "): item for name, item in heroes.items()}
    instruction = heroes.get(opcode)
    in_place = opcode == "dynamic-update-slice" and bool(updated_in_place(body))
    elements = first_array(fusion.inner.shape)[2]
    if in_place and instruction is not None:
        elements = first_array(body.by_name[instruction.operands[1]].shape)[2]
    return _Hero(opcode, instruction, in_place, elements)


def _elements_of_a_thread(fusion: Fusion, hero: _Hero) -> int:
    if fusion.emitter == "loop":
        if not fusion.threads:
            return _ELEMENTS_OF_A_THREAD
        return max(1, min(_ELEMENTS_OF_A_THREAD, round(hero.elements / fusion.threads)))
    short = first_array(fusion.inner.shape)[0] in _SHORT_TYPES
    return _SHORT_ELEMENTS if hero.opcode == "transpose" and short else 1


def _of_threads(fusion: Fusion, hero: _Hero) -> ThreadWork:
    """The work of the threads of XLA's emitters."""
    # numpy takes longer to start than most commands that predict no time.
    from xlapipe.time.predict.followed_threads import followed

    of_row, by_input = 1.0, fusion.emitter == "input"
    if by_input and hero.opcode == "reduce" and hero.instruction is not None and fusion.threads:
        sums = reduced(hero.instruction, fusion.body)
        of_row = sums.length * sums.sums / fusion.threads if sums.along == "row" else 1.0
    return followed(
        *(fusion.inner, fusion.body, fusion.scope, fusion.module),
        tiled=by_input and hero.opcode != "scatter",
        elements_of_a_thread=_elements_of_a_thread(fusion, hero),
        elements_of_a_row=of_row,
        gpu=fusion.gpu,
    )


def _assumed_threads(fusion: Fusion, hero: _Hero, work: ThreadWork) -> int:
    """Threads of a launch whose number is unknown."""
    if hero.in_place:
        return fusion.cost.written_bytes // 4
    return int(work.elements) // _ELEMENTS_OF_A_THREAD


def _parts_of_sectors(fusion: Fusion, hero: _Hero) -> float:
    if fusion.emitter != "loop" or hero.in_place:
        return 0.0
    unrolled = _elements_of_a_thread(fusion, hero)
    return _parts_of_a_sector(fusion.inner.shape, unrolled, fusion.threads, fusion.gpu)


def _features_of(fusion: Fusion, hero: _Hero, point: list[float], threads: int) -> _Features:
    """The features of a fusion, by its hero.

    Args:
      point: coordinates that every fusion has.
      threads: of its launch, also if they are assumed.
    """
    opcode, instruction = hero.opcode, hero.instruction
    if instruction is not None and opcode == "reduce":
        return _of_sums(fusion, instruction, point)
    if instruction is not None and opcode in opcodes.INDEXED:
        return _of_rows(fusion, instruction, point, threads)
    if instruction is not None and opcode == "sort":
        point, operations = sort_steps(instruction, fusion.inner.shape, fusion.gpu)
        arrays, elements = fusion.inner.shape.arrays, first_array(fusion.inner.shape)[2]
        return _Features(
            "sort", point, f"{len(arrays)} arrays of {elements:,} elements", operations
        )
    if opcode == "transpose" and fusion.by_triton:
        tile = fusion_tile(fusion.inner, fusion.body, 1)
        held = [float(tile.misalignment), log(tile.operations_of_a_thread)]
        return _Features("transpose", [*point, *held])
    if hero.in_place:
        return _Features("update", point)
    if opcode in opcodes.JOINS or opcode == "dynamic-update-slice":
        return _Features("joining", point)
    return _Features("" if opcode in ("dynamic-slice", "reverse") else opcode, point)


def _of_sums(fusion: Fusion, reduce: Instruction, point: list[float]) -> _Features:
    sums = reduced(reduce, fusion.body)
    along, length = sums.along, sums.length
    point = [*point, 0.7 * log(length), 0.5 * log(sums.kept), 0.5 * log(fusion.per_block)]
    what = f"{along} reduction of {length:,} elements each"
    if fusion.by_triton:
        tile = fusion_tile(fusion.inner, fusion.body, length)
        if along == "row":
            held = (tile.separate, tile.operations_of_a_thread, tile.unaligned_rows)
            point += [log(number) for number in held]
            pieces, rows = tile.pieces, tile.rows_of_a_piece
            what += f", {pieces:,} separate pieces of {rows:,} rows in a tile"
        point += [4 * log(tile.sums), float(tile.misalignment)]
        what += f", {tile.sums:,} of them one after another" if tile.sums > 1 else ""
    return _Features(f"{along} reduction", point, what, sums=sums)


def _of_rows(fusion: Fusion, indexed: Instruction, point: list[float], threads: int) -> _Features:
    """The features of a gather or scatter."""
    from xlapipe.time.predict.scatter_work import rows_of, updates_of

    body, name = fusion.body, indexed.opcode
    row, table, moved = rows_of(indexed, body)
    place = [log(row), 0.5 * log(table), 0.7 * log2(max(1.0, moved / max(table, 1)))]
    what = f"rows of {row:,} elements in an array of {table:,} B"
    updates: Updates | None = None
    if name == "scatter":
        count = first_array(body.by_name[indexed.operands[-1]].shape)[2]
        within = (fusion.inner, body, fusion.scope, fusion.module)
        updates = updates_of(indexed, *within, threads, fusion.gpu)
        name = TRIED_SCATTER if updates.tried else name
        cost = fusion.cost
        touched = cost.read_bytes + cost.written_bytes
        point = [log(count), 0.5 * log(touched), 2 * share_of(cost.written_bytes, touched)]
        if updates.most_seconds < inf:
            what += ", at indices that follow from positions"
    return _Features(name, [*point, *place], what, updates=updates)


def _waits_of(
    fusion: Fusion, features: _Features, work: ThreadWork, operations: float, threads: int
) -> _Waits:
    """What each thread does in dependent succession.

    Args:
      threads: of its launch, also if they are assumed.
    """
    inner, sums, each = fusion.inner, features.sums, work.elements / max(threads, 1)
    if fusion.emitter == "loop":
        chain = work.longest_operations
        not_unrolled = chain + work.longest_reads > _NOT_UNROLLED
        if sums is None or not not_unrolled or sums.length < _LEAST_TERMS:
            return _Waits(chain)
        accesses = sums.length * _ACCESSES_OF_A_TERM + work.longest_reads * _ACCESSES_OF_A_READ
        return _Waits(chain, accesses)
    chain = operations / max(threads, 1)
    if fusion.emitter != "input" or sums is None:
        return _Waits(chain)
    if sums.along == "row":
        if not writes_elements(inner, sums):
            return _Waits(chain)
        return _Waits(chain * CHAIN_OF_WRITTEN, each * ACCESSES_OF_WRITTEN)
    columns = column_tile(sums, threads, fusion.per_block)
    accesses = columns.accesses(len(inner.shape.arrays), len(inner.operands))
    return _Waits(
        chain * (columns.elements / columns.elements_of_all),
        max(each, columns.elements) * accesses,
        columns.parts_of_a_sector(inner, fusion.body, sums, threads, fusion.per_block),
        (float(columns.whole), 0.5 * log(columns.vector)),
    )


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


def sort_steps(sort: Instruction, result: Shape, gpu: Gpu) -> tuple[list[float], float]:
    """The point of a sort by XLA, and its cost in operations of the whole GPU."""
    operands, elements = len(result.arrays), first_array(result)[2]
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
    order = shape.order or tuple(reversed(range(len(shape.dims))))
    inside = order[: order.index(dim)] if dim in order else ()
    length = shape.dims[dim] if dim < len(shape.dims) else 1
    return length, prod(shape.dims[number] for number in inside)
