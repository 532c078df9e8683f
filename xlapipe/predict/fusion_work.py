"""The work of fusions: how XLA emits them, what their bodies compute, and how threads read."""

from collections.abc import Mapping
from dataclasses import replace
from math import log as ln
from math import log2, prod, sqrt

from xlapipe.cost.flops import VECTOR
from xlapipe.cost.step_cost import KernelCost
from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.shapes import Shape
from xlapipe.predict.arrays import first_array, log, minor_to_major, share_of
from xlapipe.predict.element_operations import FREE, OPERATIONS, ThreadWork
from xlapipe.predict.gpu import L2_BYTES
from xlapipe.predict.triton_tiles import fusion_tile
from xlapipe.predict.work import MEETING_SECONDS, KernelWork

# Seconds for the updates of one element, and of eight that are next to each other: by the L2 cache,
# of an array that it does not hold, and where threads try again.
_SECTOR_ELEMENTS = 8
_ADDED_SECTOR, _FAR_SECTOR, _TRIED_SECTOR = (10e-12, 13e-12), (56e-12, 26e-12), (25e-12, 64e-12)
# Of an update that is no larger than what is there.
_READ_SECTOR, _EULER = (5e-12, 20e-12), 0.5772
# Of 16 bits, n updates of one place take n^1.5 times so many seconds, alone or next to others.
_TRIED_AGAIN = (900e-9, 250e-9)
# The same, of those that meet among others that do not. The calibration, whose rows all meet, then
# takes some off.
_TRIED_AMONG_OTHERS = 600e-9
# Blocks of fewer threads start as slowly.
_LEAST_THREADS = 128
# A step of a sort in one block takes as long as this number of operations on the whole GPU.
_SORT_STEP = 3.2e6
# An element of a short sort, each of which has a block, takes as long as so many operations.
_LEAST_COMPARED = 360.0
# As XLA unrolls loops over large arrays.
_ELEMENTS_OF_A_THREAD = 4
_SHORT_TYPES = ("bf16", "f16")
# Of 16 bits, a thread of a transpose has so many elements that are next to each other.
_SHORT_ELEMENTS = 2
# Threads of column reductions wait for what they write, and less for what they read.
_SHARE_OF_AN_OPERAND = 0.25
# The instruction that decides how a fusion runs, the first that its body has.
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
    scattered = 0
    if hero == "dynamic-update-slice":
        result = first_array(body.by_name[heroes[hero].operands[1]].shape)[2]
    if emitter in ("loop", "input"):
        unrolled = _ELEMENTS_OF_A_THREAD if emitter == "loop" else 1
        if threads and emitter == "loop":
            unrolled = max(1, min(_ELEMENTS_OF_A_THREAD, round(result / threads)))
        elif emitter == "input" and hero == "transpose" and element in _SHORT_TYPES:
            unrolled = _SHORT_ELEMENTS
        # numpy takes longer to start than most commands that predict no time.
        from xlapipe.predict.followed_threads import followed

        tiled = emitter == "input"
        work = followed(inner, body, scope, module, tiled=tiled, elements_of_a_thread=unrolled)
        if emitter == "loop" and hero != "dynamic-update-slice":
            scattered = 0 if _written_at_once(inner.shape, unrolled, threads) else unrolled
    else:
        work = _of_tiles(body, module)
    operations, largest = work.operations + flops.get(VECTOR, 0), work.elements
    if not threads:
        threads = int(largest) // _ELEMENTS_OF_A_THREAD
        if hero == "dynamic-update-slice":
            threads = cost.written_bytes // 4
    touched = cost.read_bytes + cost.written_bytes
    point = [
        log(touched),
        log(threads),
        3 * share_of(cost.written_bytes, touched),
        log(operations / max(touched, 1) * 8),
        log(largest / max(threads, 1)),
    ]
    what, update_seconds, chosen = "", 0.0, 0.0
    if hero == "reduce":
        along, length, kept = _reduced(heroes["reduce"], body)
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
        row, table, moved = _rows(heroes[hero], body)
        place = [log(row), 0.5 * log(table), 0.7 * log2(max(1.0, moved / max(table, 1)))]
        if hero == "scatter":
            # Of 16 bits, an update reads and compares again until no other came between.
            scatter = heroes[hero]
            element, _, updates = first_array(body.by_name[scatter.operands[-1]].shape)
            chosen = _rows_of_a_constant(scatter, inner, body, scope)
            update_seconds = _seconds_of_updates(scatter, body, module, chosen)
            if element in _SHORT_TYPES and not scatter.unique_indices:
                hero = "scatter of 16 bits"
            point = [log(updates), 0.5 * log(touched), 2 * share_of(cost.written_bytes, touched)]
        point += place
        what = f"rows of {row:,} elements in an array of {table:,} B"
    elif hero == "sort":
        point, operations = sort_steps(heroes["sort"], inner.shape)
        what = f"{len(inner.shape.arrays)} arrays of {first_array(inner.shape)[2]:,} elements"
    elif hero == "transpose" and once:
        tile = fusion_tile(inner, body, 1)
        point += [float(tile.misalignment), log(tile.operations_of_a_thread)]
    elif hero in opcodes.JOINS:
        hero = "joining"
    elif hero == "dynamic-update-slice":
        hero = "update"
    elif hero in ("dynamic-slice", "reverse"):
        hero = ""
    kind = f"{emitter} {hero}".strip()
    serial = 0.0
    if kind == "input column reduction":
        accesses = len(inner.shape.arrays) + _SHARE_OF_AN_OPERAND * len(inner.operands)
        serial = largest / max(threads, 1) * accesses
    chain = work.longest_operations if emitter == "loop" else operations / max(threads, 1)
    missing = 0
    if emitter != "triton" and per_block:
        missing = max(0, _LEAST_THREADS - per_block) * (threads // per_block)
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
        update_seconds=update_seconds,
        rows_of_a_constant=chosen,
        missing_threads=missing,
        chain_operations=chain,
        chain_reads=work.longest_reads,
        scattered_bytes=cost.written_bytes * scattered,
    )
    if emitter not in ("loop", "input"):
        return fused
    return replace(fused, point=(*point, fused.beside_memory))


def _rows_of_a_constant(
    scatter: Instruction, inner: Instruction, body: Computation, scope: Computation
) -> float:
    """Half of a scatter's rows, if a select chooses between a constant and an argument for each.

    So does the gradient of an embedding of which some tokens are replaced with a mask's. Where
    indices are computed, as those of tokens that experts take, few are replaced.
    """
    count = len(scatter.operands) // 2
    operands = [body.by_name[name].shape for name in (scatter.operands[0], scatter.operands[count])]
    (_, table, _), (_, index, rows) = map(first_array, operands)
    if scatter.unique_indices or not table or (len(index) > 1 and index[-1] > 1):
        return 0.0
    names, seen = [scatter.operands[count]], set[str]()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        instruction = body.by_name[name]
        if instruction.opcode in opcodes.RESHAPES:
            names += instruction.operands
        elif instruction.opcode == "select":
            chosen = [body.by_name[name] for name in instruction.operands[1:]]
            if any(0 <= _constant(item, body) < table[0] for item in chosen):
                return rows / 2 if any(_is_argument(item, inner, scope) for item in chosen) else 0.0
            names += instruction.operands[1:]
    return 0.0


def _constant(instruction: Instruction, body: Computation) -> int:
    """An integer that all elements are; -1 if they are not."""
    if instruction.opcode == "broadcast" and instruction.operands:
        instruction = body.by_name[instruction.operands[0]]
    return -1 if instruction.integer is None else instruction.integer


def _is_argument(item: Instruction, inner: Instruction, scope: Computation) -> bool:
    """Whether a value of a fusion's body is an argument of what calls the fusion."""
    number = item.parameter_number
    if number is None or number >= len(inner.operands):
        return False
    return scope.by_name[inner.operands[number]].opcode == "parameter"


def _seconds_of_updates(
    scatter: Instruction, body: Computation, module: HloModule, chosen: float
) -> float:
    """Seconds that the L2 cache takes for the updates of a scatter, if they are spread evenly.

    It adds to a sector at once. Of 16 bits, and of a largest float, a thread reads, compares and
    tries again until no other one came between.

    Args:
      chosen: rows of one place beside those that are spread.
    """
    element, _, updates = first_array(body.by_name[scatter.operands[-1]].shape)
    row, table, moved = _rows(scatter, body)
    of_place = moved / max(table, 1)
    together = min(_adjacent(row, body.by_name[scatter.operands[0]].shape), _SECTOR_ELEMENTS)
    combiner = module.computations.get(next(iter(scatter.called_computations), ""))
    largest = combiner is not None and not combiner.opcodes.isdisjoint({"maximum", "minimum"})
    short = element in _SHORT_TYPES
    if short or (element == "f32" and largest):
        alone, whole = _TRIED_SECTOR
    else:
        alone, whole = _FAR_SECTOR if table > L2_BYTES else _ADDED_SECTOR
    share = log2(together) / log2(_SECTOR_ELEMENTS)
    sectors = updates / together
    spread = sectors * (alone + (whole - alone) * share)
    if largest and of_place > 1:
        # Of n in random order, about ln n and Euler's constant are larger than all before.
        larger = min(1.0, (ln(of_place) + _EULER) / of_place)
        alone, whole = _READ_SECTOR
        spread = larger * spread + (1 - larger) * sectors * (alone + (whole - alone) * share)
    if not short or scatter.unique_indices:
        adds = combiner is not None and "add" in combiner.opcodes
        return max(spread, adds * chosen * MEETING_SECONDS)
    alone, whole = _TRIED_AGAIN
    tried = max(0.0, of_place - 1) * sqrt(max(0.0, of_place - 1))
    evenly = spread + tried * (alone + (whole - alone) * share)
    return max(evenly, chosen * sqrt(chosen) * _TRIED_AMONG_OTHERS)


def _adjacent(row: int, table: Shape) -> int:
    """Elements of a scatter's row that are next to each other in memory."""
    if not table.arrays or not table.arrays[0].dims:
        return row
    array = table.arrays[0]
    minor = array.dims[minor_to_major(array)[0]]
    # Of a row that has all but the minor dimension, each element is alone.
    return 1 if row != minor and row * minor == array.elements else row


def _written_at_once(shape: Shape, unrolled: int, threads: int) -> bool:
    """Whether a thread writes its elements of a result one after another.

    LLVM does not see that they are adjacent if blocks go beyond the end of the array, and its
    largest dimension has steps of no multiple of these elements. Of several results, threads then
    write an element of each in turn, and the L2 cache gets every sector in parts.
    """
    result = shape.arrays[0]
    sizes = [result.dims[dim] for dim in reversed(minor_to_major(result))]
    major = next((size for size in sizes if size > 1), 1)
    step = result.elements // major
    whole = result.elements == threads * unrolled or step % unrolled == 0
    return len(shape.arrays) == 1 or whole or major == result.elements


def _of_tiles(body: Computation, module: HloModule) -> ThreadWork:
    """The work of a fusion by Triton, of which each tile of an instruction is computed once."""
    operations = most = 0.0
    for instruction in body.instructions:
        opcode, own = instruction.opcode, first_array(instruction.shape)[2]
        most = max(most, own)
        if opcode in opcodes.HAS_BODY:
            for name in instruction.called_computations[:1]:
                if name in module.computations:
                    inside = _of_tiles(module.computations[name], module)
                    operations, most = operations + inside.operations, max(most, inside.elements)
        elif opcode not in FREE | opcodes.RESHAPES:
            size = float(own)
            if opcode in opcodes.REDUCES and instruction.operands:
                operand = body.by_name[instruction.operands[0]]
                size *= max(1.0, first_array(operand.shape)[2] / max(own, 1))
            operations += size * OPERATIONS.get(opcode, 1)
    return ThreadWork(operations=operations, elements=most)


def _heroes(body: Computation, module: HloModule, *, once: bool) -> Mapping[str, Instruction]:
    """An instruction of each kind in `_HEROES`, the largest.

    What the emitter is chosen by is at the root, or there are only element-wise ones between;
    others have `inner` before their kind. Of a fusion by Triton, all are at the root.
    """
    heroes: dict[str, Instruction] = {}
    at_root = {body.root}
    for instruction in reversed(body.instructions):
        name, opcode = instruction.name, instruction.opcode
        if opcode in opcodes.HAS_BODY and instruction.called_computations:
            inside = module.computations.get(instruction.called_computations[0])
            if inside is not None:
                heroes = {**_heroes(inside, module, once=once), **heroes}
        key = opcode if once or name in at_root else f"inner {opcode}"
        largest, own = heroes.get(key), first_array(instruction.shape)[2]
        if opcode in _HEROES and (largest is None or first_array(largest.shape)[2] < own):
            heroes[key] = instruction
        if name in at_root and opcode not in opcodes.READS_OTHER_INDICES:
            at_root.update(instruction.operands)
    return heroes


def _reduced(reduce: Instruction, body: Computation) -> tuple[str, int, int]:
    """Whether rows or columns are summed, the elements of each sum, and those of a row that stay.

    Rows are what is contiguous in memory.
    """
    operand = body.by_name.get(reduce.operands[0]) if reduce.operands else None
    if operand is None or not operand.shape.arrays:
        return "row", 1, 1
    shape = operand.shape.arrays[0]
    along = set(reduce.contraction.dims if reduce.contraction is not None else ())
    length = prod(shape.dims[dim] for dim in along if dim < len(shape.dims))
    order = shape.order or tuple(reversed(range(len(shape.dims))))
    kept = 1
    for dim in order:
        if dim in along:
            if shape.dims[dim] > 1:
                break
        else:
            kept *= shape.dims[dim]
    return ("column", length, kept) if kept > 1 else ("row", length, 1)


def _rows(instruction: Instruction, body: Computation) -> tuple[int, int, int]:
    """Elements of each row, bytes of the array addressed, and bytes gathered or scattered."""
    count = len(instruction.operands) // 2 if instruction.opcode == "scatter" else 1
    operands = [body.by_name.get(name) for name in instruction.operands]
    if len(operands) <= count or operands[0] is None or operands[count] is None:
        return 1, 0, 0
    index, table = operands[count], operands[0]
    assert index is not None
    assert table is not None
    _, dims, elements = first_array(index.shape)
    if len(dims) > 1 and dims[-1] <= 4:
        elements //= dims[-1]
    moved = operands[-1] if instruction.opcode == "scatter" else instruction
    if moved is None:
        return 1, 0, 0
    rows = first_array(moved.shape)[2] // max(elements, 1)
    return max(1, rows), table.shape.size_bytes or 0, moved.shape.size_bytes or 0


def sort_steps(sort: Instruction, result: Shape) -> tuple[list[float], float]:
    """The point of a sort by XLA, and operations of the whole GPU that take as long."""
    operands, elements = len(result.arrays), first_array(result)[2]
    length, distance = _sorted(sort)
    # Blocks sort parts of 4,096 elements in steps that wait for each other.
    steps = log(length) * (log(length) + 1) / 2 * max(1.0, min(length, 4096) / 1024)
    compared = max(_LEAST_COMPARED, 7 * log(length) ** 2)
    operations = compared * elements * operands + _SORT_STEP * steps
    return [log(elements), log(length), float(operands), log(min(distance, 32))], operations


def _sorted(sort: Instruction) -> tuple[int, int]:
    """Elements that are sorted together, and the distance between two of them in memory."""
    shape = sort.shape.arrays[0]
    dim = sort.contraction.dims[0] if sort.contraction is not None else len(shape.dims) - 1
    order = shape.order or tuple(reversed(range(len(shape.dims))))
    inside = order[: order.index(dim)] if dim in order else ()
    length = shape.dims[dim] if dim < len(shape.dims) else 1
    return length, prod(shape.dims[number] for number in inside)
