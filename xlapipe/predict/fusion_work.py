"""The work of fusions: how XLA emits them, what their bodies compute, and how threads read."""

from collections.abc import Mapping
from math import log2, prod

from xlapipe.cost.flops import VECTOR
from xlapipe.cost.step_cost import KernelCost
from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.predict.arrays import first_array, log, share_of
from xlapipe.predict.fusion_reads import Reads, elements_of_window, reads_of
from xlapipe.predict.triton_tiles import row_tile_of
from xlapipe.predict.work import KernelWork

# Simple float32 operations that take as long as one of these, measured on an H200 by chains of 16.
_OPERATIONS = {
    "exponential": 9,
    "exponential-minus-one": 14,
    "log": 27,
    "log-plus-one": 30,
    "tanh": 21,
    "erf": 22,
    "logistic": 16,
    "sine": 25,
    "cosine": 25,
    "tan": 40,
    "power": 55,
    "atan2": 40,
    "cbrt": 20,
    "sqrt": 8,
    "rsqrt": 6,
    "divide": 9,
    "remainder": 14,
    "convert": 3,
    # Whether an index is within an operand is computed for each element.
    **dict.fromkeys(("pad", "concatenate"), 8),
    # Shifts to both sides are one instruction, and so is logic of three operands.
    **dict.fromkeys(("shift-left", "shift-right-logical", "and", "or", "xor", "not"), 0.5),
}
# A step of a sort in one block takes as long as this number of operations on the whole GPU.
_SORT_STEP = 3.2e6
# As XLA unrolls loops over large arrays.
_ELEMENTS_OF_A_THREAD = 4
# Threads of column reductions wait for what they write, and less for what they read.
_SHARE_OF_AN_OPERAND = 0.25
# Instructions of a fusion's body that compute nothing for each element.
_FREE = opcodes.RENAMES | opcodes.RESHAPES | opcodes.GIVEN | opcodes.FILLS
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
    module: HloModule,
    cost: KernelCost,
    flops: Mapping[str, int],
    threads: int,
    per_block: int,
) -> KernelWork:
    once = "triton" in cost.kind
    operations, heroes, largest = _body_work(body, module, once=once)
    operations += flops.get(VECTOR, 0)
    hero = next((name for name in _HEROES if name in heroes), "")
    if not hero:
        hero = next((name for name in _HEROES if f"inner {name}" in heroes), "")
        heroes = {name.removeprefix("inner "): item for name, item in heroes.items()}
    emitter = {"kLoop": "loop", "kInput": "input"}.get(inner.fusion_kind or "", "")
    if not emitter:
        emitter = "triton" if "triton" in cost.kind else "custom"
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
    what = ""
    if hero == "reduce":
        along, length, kept = _reduced(heroes["reduce"], body)
        hero = f"{along} reduction"
        point += [0.7 * log(length), 0.5 * log(kept), 0.5 * log(per_block)]
        what = f"{along} reduction of {length:,} elements each"
        if once and along == "row":
            tile = row_tile_of(inner, body, length)
            point += [log(tile.separate), log(tile.operations_of_a_thread)]
            what += f", {tile.pieces:,} separate pieces of {tile.rows_of_a_piece:,} rows in a tile"
    elif hero in opcodes.INDEXED:
        row, table, moved = _rows(heroes[hero], body)
        place = [log(row), 0.5 * log(table), 0.7 * log2(max(1.0, moved / max(table, 1)))]
        if hero == "scatter":
            # Of 16 bits, an update reads and compares again until no other came between.
            element, _, updates = first_array(body.by_name[heroes[hero].operands[-1]].shape)
            if element in ("bf16", "f16") and not heroes[hero].unique_indices:
                hero = "scatter of 16 bits"
            point = [log(updates), 0.5 * log(touched), 2 * share_of(cost.written_bytes, touched)]
        point += place
        what = f"rows of {row:,} elements in an array of {table:,} B"
    elif hero == "sort":
        operands = len(inner.shape.arrays)
        elements = first_array(inner.shape)[2]
        length, distance = _sorted(heroes["sort"])
        # Blocks sort parts of 4,096 elements in steps that wait for each other.
        steps = log(length) * (log(length) + 1) / 2 * max(1.0, min(length, 4096) / 1024)
        operations = 7 * elements * log(length) ** 2 * operands + _SORT_STEP * steps
        point = [log(elements), log(length), float(operands), log(min(distance, 32))]
        what = f"{operands} arrays of {elements:,} elements"
    elif hero in opcodes.JOINS:
        hero = "joining"
    elif hero == "dynamic-update-slice":
        hero = "update"
    elif hero in ("dynamic-slice", "reverse"):
        hero = ""
    kind = f"{emitter} {hero}".strip()
    reads = Reads()
    if emitter in ("loop", "input"):
        reads = reads_of(
            body,
            module,
            tiled=emitter == "input",
            elements_of_a_thread=max(1.0, first_array(inner.shape)[2] / max(threads, 1)),
        )
    serial = 0.0
    if kind == "input column reduction":
        accesses = len(inner.shape.arrays) + _SHARE_OF_AN_OPERAND * len(inner.operands)
        serial = largest / max(threads, 1) * accesses
    return KernelWork(
        kind,
        tuple(point),
        cost.read_bytes,
        cost.written_bytes,
        operations,
        flops,
        threads,
        what,
        serial_accesses=serial,
        sector_bytes=reads.sector_bytes,
        lines=reads.lines,
    )


def _body_work(
    body: Computation, module: HloModule, needed: float | None = None, *, once: bool = False
) -> tuple[float, Mapping[str, Instruction], float]:
    """Operations of a fusion's body, its heroes, and how many elements it has and reads.

    An element that several others need at other indices is computed for each of them, as XLA's
    emitters do.

    Args:
      needed: elements of the result; None for all.

    Returns:
      Operations; an instruction of each kind in `_HEROES`, the largest; the most elements that an
      instruction has, of which only those that are needed count.
    """
    operations = most = 0.0
    heroes: dict[str, Instruction] = {}
    at_same: dict[str, float] = {body.root: -1.0 if needed is None else needed}
    at_other: dict[str, float] = {}
    at_root = {body.root}
    for instruction in reversed(body.instructions):
        name, opcode = instruction.name, instruction.opcode
        own = first_array(instruction.shape)[2]
        count = at_same.get(name, 0.0)
        count = (own if count < 0 else count) + at_other.get(name, 0.0)
        if once and count:
            count = own
        most = max(most, own if once else min(count, own))
        if not count or opcode in ("parameter", "constant"):
            continue
        if opcode == "tuple":
            at_same.update(dict.fromkeys(instruction.operands, -1.0))
            at_root.update(instruction.operands)
            continue
        # An update is made in place.
        if opcode in opcodes.UPDATES and name in at_root and len(instruction.operands) > 2:
            update = instruction.operands[-1 if opcode == "scatter" else 1]
            count = first_array(body.by_name[update].shape)[2]
        inner = None
        if opcode in opcodes.HAS_BODY and instruction.called_computations:
            inner = module.computations.get(instruction.called_computations[0])
        if inner is not None:
            more, others, inside = _body_work(inner, module, count, once=once)
            operations, most = operations + more, max(most, inside)
            heroes = {**others, **heroes}
        elif opcode not in _FREE:
            size = count
            if opcode in opcodes.REDUCES and instruction.operands:
                operand = body.by_name[instruction.operands[0]]
                each = max(1.0, first_array(operand.shape)[2] / max(own, 1))
                size *= max(each, elements_of_window(instruction, operand.shape.arrays[0]))
            operations += size * _OPERATIONS.get(opcode, 1)
        # What the emitter is chosen by is at the root, or there are only element-wise ones between.
        key = opcode if once or name in at_root else f"inner {opcode}"
        largest = heroes.get(key)
        if opcode in _HEROES and (largest is None or first_array(largest.shape)[2] < own):
            heroes[key] = instruction
        if name in at_root and opcode not in opcodes.READS_OTHER_INDICES:
            at_root.update(instruction.operands)
        for position, operand_name in enumerate(instruction.operands):
            elements = first_array(body.by_name[operand_name].shape)[2]
            if opcode not in opcodes.READS_OTHER_INDICES:
                at_same[operand_name] = max(at_same.get(operand_name, 0.0), count)
                continue
            if opcode == "reduce" and name in at_root and elements > own:
                # What else the fusion writes of these elements is computed in the same pass.
                at_same[operand_name] = max(at_same.get(operand_name, 0.0), float(elements))
                continue
            needs = count
            if opcode in opcodes.REDUCES or opcode in ("dot", "sort"):
                needs = count * max(1.0, elements / max(own, 1))
                if opcode == "reduce-window":
                    window = body.by_name[operand_name].shape.arrays[0]
                    needs = count * elements_of_window(instruction, window)
            elif opcode == "pad":
                # Threads between two elements wait for their neighbours.
                dims = instruction.contraction.dims if instruction.contraction is not None else ()
                between = prod(1 + number for number in dims)
                needs = min(1.0, between * elements / max(own, 1)) * count
            elif opcode in opcodes.JOINS:
                needs = count * elements / max(own, 1)
            elif opcode == "dynamic-update-slice":
                needs = float(elements) if position == 1 else 0.0
            elif opcode in opcodes.INDEXED and position > 0:
                needs = float(elements)
            at_other[operand_name] = at_other.get(operand_name, 0.0) + min(needs, 64 * elements)
    return operations, heroes, most


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


def _sorted(sort: Instruction) -> tuple[int, int]:
    """Elements that are sorted together, and the distance between two of them in memory."""
    shape = sort.shape.arrays[0]
    dim = sort.contraction.dims[0] if sort.contraction is not None else len(shape.dims) - 1
    order = shape.order or tuple(reversed(range(len(shape.dims))))
    inside = order[: order.index(dim)] if dim in order else ()
    length = shape.dims[dim] if dim < len(shape.dims) else 1
    return length, prod(shape.dims[number] for number in inside)
