"""What one launch of a kernel does, as far as its time depends on it.

A calibration has kinds and points of this module: after a change here, run
`tests/gpu/time_zoo/recompute_points.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import log2, prod

from xlapipe.cost.flops import VECTOR
from xlapipe.cost.schedule import Site
from xlapipe.cost.step_cost import KernelCost
from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.plans.shapes import Shape, element_bits
from xlapipe.plans.thunks import Thunk
from xlapipe.predict.convolutions import Convolution, Engine, convolution_of, engine_work
from xlapipe.predict.fusion_reads import Reads, elements_of_window, reads_of
from xlapipe.predict.triton_tiles import (
    ProductTile,
    misaligned_share,
    product_tile,
    row_tile_of,
    tuned_tile,
)

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
# Of a selection of the largest, in simple operations of the whole GPU that take as long: an element
# that a thread compares with one result, and the results of 1,024 threads that are merged.
_COMPARED, _MERGED = 3.3e6, 2.6e4
MULTIPROCESSORS = 132
"""Of an H100 or H200."""
# Rows and columns of the tiles of products of cuBLAS, to judge by their times. It divides the terms
# of sums among this number of blocks if there are few tiles.
_TILE_OF_CUBLAS, _PARTS_OF_CUBLAS = 64, 8
# Of a convolution, each further round of tiles takes so much beside its operations.
_ROUND_SECONDS = 1e-6
# Coordinates of the engines of cuDNN, far from each other if they have little in common.
_PLACE_OF_ENGINE = {
    engine: 3.0 * number
    for number, engine in enumerate(
        (
            *(Engine.PRODUCT, Engine.HOPPER, Engine.CUTLASS, Engine.AMPERE, Engine.REGISTERS),
            *(Engine.VECTORS, Engine.SIMPLE, Engine.DIRECT, Engine.OF_CHANNELS),
        )
    )
}
_TERMS_OF_SMALL_MATRICES = 300
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
_SIZE = r"(\d{1,10})"  # CUDA's largest has ten digits; a damaged file's may have no float
_SIZES = rf"\[{_SIZE}, {_SIZE}, {_SIZE}\]"
_GRID = re.compile(rf"grid: {_SIZES} threads: {_SIZES}")
_HOST_SPACE = "S(5)"
_CONTRACTED = re.compile(r'"[lr]hs_contracting_dimensions":\["(\d+)"')
# XLA's tiles without autotune results; the second is that of the largest results. A product of more
# than a round of such tiles gets another one from a tuner: as many elements as fill a round, within
# these powers of two.
_DEFAULT_TILE = re.compile(
    r'"num_stages":[13],"num_tiles_per_pid":0,"num_warps":"[24]",'
    r'"output_tiles":\[\{"sizes":\["(?:1",")*(?:(?P<small>16","8|8","16)|64","32)"\]'
)
_TUNED_AREAS, _TUNED_THREADS = (8, 13), 128
# Element types whose products take equally long.
_SAME_PRODUCTS = {"f16": "bf16"}
# Element types whose products by cuBLAS were compared with tiles. Where rows of a matrix do not
# start at multiples of 16 bytes, which `wgmma` needs, blocks take so many times as long.
_TILED = ("bf16", "f16", "f32")
_MISALIGNED_32_BITS, _MISALIGNED_16_BITS = 4.0, 2.0


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One launch of a kernel.

    Attributes:
      kind: what kernels are compared with; a calibration has timed kernels of each kind.
      point: coordinates of the kernel among those of its kind, base-2 logarithms mostly.
      read_bytes, written_bytes: as touched.
      operations: arithmetic on elements, in simple float32 operations.
      flops: of products and convolutions by type; empty if there are none.
      threads: number of threads; 0 if unknown.
      what: the same in words, for people.
      link_bytes: that a device sends to others.
      serial_accesses: that each thread of a column reduction makes one after another: of each
        element it adds up, one for each result and a quarter for each operand.
      lines, sector_bytes: of the L1 and the L2 cache, as `Reads` has them.
      tile: of a product by Triton; None if unknown.
      blocks: of another product or a convolution that compute one tile of the result each; 0 if
        unknown.
      block_flops: operations of each, those of a tile's padding included.
      block_share: of the peak that they reach; 0 if that of products.
      round_seconds: that each further round of blocks takes beside what they compute.
      further_kernels: that a library runs beside the one that computes.
      workspace_bytes: that they write and read.
      serial_seconds: that a thread takes for terms that it adds one after another.
      as_tuned: an untuned product, of which the work is that with a tile as tuners choose it.
      partly_unknown: a Pallas kernel whose author does not state what it reads and computes.
    """

    kind: str
    point: tuple[float, ...]
    read_bytes: int
    written_bytes: int
    operations: float
    flops: Mapping[str, int]
    threads: int
    what: str
    link_bytes: int = 0
    serial_accesses: float = 0.0
    sector_bytes: int = 0
    lines: float = 0.0
    tile: ProductTile | None = None
    blocks: float = 0.0
    block_flops: float = 0.0
    block_share: float = 0.0
    round_seconds: float = 0.0
    further_kernels: float = 0.0
    workspace_bytes: int = 0
    serial_seconds: float = 0.0
    partly_unknown: bool = False
    as_tuned: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """All fields, hashable: works with equal ones take equally long."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(tuple(v.items()) if isinstance(v, Mapping) else v for v in values)

    @property
    def touched_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def rows_that_may_meet(self) -> float:
        """Updates of a scatter with several for each place, which wait for each other; else 0.

        Of 16 bits also those with fewer: there, n updates of one place try some n² times.
        """
        words = self.kind.split()
        if "scatter" not in words or (self.point[-1] <= 0 and not self.tries_again):
            return 0.0
        return float(2 ** (self.point[0] - self.point[3]))

    @property
    def tries_again(self) -> bool:
        """Whether an update reads, adds, and does so again if another one came between."""
        return self.kind.endswith("scatter of 16 bits")


@lru_cache(maxsize=1 << 14)
def _array(shape: Shape) -> tuple[str, tuple[int, ...], int]:
    """Type, dimensions from major to minor, and elements of the first array of a shape."""
    if not shape.arrays:
        return "", (), 0
    first = shape.arrays[0]
    dims = first.dims
    if first.order is not None and len(first.order) == len(dims):
        dims = tuple(dims[number] for number in reversed(first.order))
    return first.element, dims, first.elements


def _dims_of(name: str, scope: Computation) -> tuple[int, ...]:
    """Dimensions of an operand from major to minor; none if it is unknown."""
    operand = scope.by_name.get(name)
    return _array(operand.shape)[1] if operand is not None else ()


def work_of(
    site: Site,
    cost: KernelCost,
    module: HloModule,
    thunk: Thunk | None,
    link_bytes: int = 0,
    *,
    untuned: bool = False,
) -> KernelWork:
    """The work of one launch.

    Args:
      cost: of one launch.
      thunk: that launches it; None if unknown.
      link_bytes: that a device sends to others.
      untuned: the result of `is_untuned`.
    """
    inner = site.inner
    threads, per_block = _grid(thunk)
    opcode = inner.opcode.removesuffix("-start")
    if opcode in COLLECTIVES:
        return _collective(opcode, inner, cost, link_bytes)
    if touches_host(site):
        touched = cost.read_bytes + cost.written_bytes
        what = f"{cost.written_bytes:,} B"
        return KernelWork(
            "host copy", (_log(touched),), cost.read_bytes, cost.written_bytes, 0, {}, 0, what
        )
    if inner.opcode in opcodes.COPIES or (thunk is not None and thunk.kind == "kCopy"):
        # Also slices, and updates in a loop, for which XLA emits no kernel.
        own = thunk is not None and thunk.kind == "kCustomKernel"
        touched = cost.read_bytes + cost.written_bytes
        what = f"{cost.written_bytes:,} B"
        kind = "copy kernel" if own else "copy"
        return KernelWork(
            kind, (_log(touched),), cost.read_bytes, cost.written_bytes, 0, {}, threads, what
        )
    flops = {name: count for name, count in (cost.flops or {}).items() if count}
    if inner.opcode == "fusion":
        body = module.computations.get(next(iter(inner.called_computations), ""))
        if flops and "gemm" in cost.kind and body is not None:
            kind = f"triton {_peak_type(flops)}"
            return _triton_product(inner, body, cost, flops, threads, untuned=untuned)
        if body is not None:
            return _fusion(inner, body, module, cost, flops, threads, per_block)
    if flops and inner.kernel_name is None:
        return _library_product(inner, site.scope, cost, flops)
    return _other(inner, site.scope, cost, threads, thunk)


def is_untuned(module: HloModule) -> bool:
    """Whether all products by Triton have the tiles that XLA takes without autotune results."""
    tiles = [
        _DEFAULT_TILE.search(instruction.backend_config)
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "fusion" and "gemm_fusion" in instruction.backend_config
    ]
    return all(tiles) and any(tile["small"] for tile in tiles if tile is not None)


def touches_host(site: Site) -> bool:
    """Whether a launch reads or writes the host's memory, also a slice of an array in a loop."""
    names = site.scope.by_name
    operands = (names[name].shape for name in site.inner.operands if name in names)
    # Of a tuple, such as a loop's, the element that is read is unknown.
    shapes = (site.inner.shape, *(shape for shape in operands if not shape.is_tuple))
    return any(_HOST_SPACE in shape.text for shape in shapes)


def _grid(thunk: Thunk | None) -> tuple[int, int]:
    """Threads of a launch, and threads of a block; 0 if unknown."""
    match = _GRID.search(thunk.detail) if thunk is not None else None
    if match is None:
        return 0, 0
    numbers = [int(text) for text in match.groups()]
    return prod(numbers), prod(numbers[3:])


def _log(value: float) -> float:
    return log2(max(value, 1.0))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _fusion(
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
        _log(touched),
        _log(threads),
        3 * _share(cost.written_bytes, touched),
        _log(operations / max(touched, 1) * 8),
        _log(largest / max(threads, 1)),
    ]
    what = ""
    if hero == "reduce":
        along, length, kept = _reduced(heroes["reduce"], body)
        hero = f"{along} reduction"
        point += [0.7 * _log(length), 0.5 * _log(kept), 0.5 * _log(per_block)]
        what = f"{along} reduction of {length:,} elements each"
        if once and along == "row":
            tile = row_tile_of(inner, body, length)
            point += [_log(tile.separate), _log(tile.operations_of_a_thread)]
            what += f", {tile.pieces:,} separate pieces of {tile.rows_of_a_piece:,} rows in a tile"
    elif hero in opcodes.INDEXED:
        row, table, moved = _rows(heroes[hero], body)
        place = [_log(row), 0.5 * _log(table), 0.7 * log2(max(1.0, moved / max(table, 1)))]
        if hero == "scatter":
            # Of 16 bits, an update reads and compares again until no other came between.
            element, _, updates = _array(body.by_name[heroes[hero].operands[-1]].shape)
            if element in ("bf16", "f16") and not heroes[hero].unique_indices:
                hero = "scatter of 16 bits"
            point = [_log(updates), 0.5 * _log(touched), 2 * _share(cost.written_bytes, touched)]
        point += place
        what = f"rows of {row:,} elements in an array of {table:,} B"
    elif hero == "sort":
        operands = len(inner.shape.arrays)
        elements = _array(inner.shape)[2]
        length, distance = _sorted(heroes["sort"])
        # Blocks sort parts of 4,096 elements in steps that wait for each other.
        steps = _log(length) * (_log(length) + 1) / 2 * max(1.0, min(length, 4096) / 1024)
        operations = 7 * elements * _log(length) ** 2 * operands + _SORT_STEP * steps
        point = [_log(elements), _log(length), float(operands), _log(min(distance, 32))]
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
            elements_of_a_thread=max(1.0, _array(inner.shape)[2] / max(threads, 1)),
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
        own = _array(instruction.shape)[2]
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
            count = _array(body.by_name[update].shape)[2]
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
                each = max(1.0, _array(operand.shape)[2] / max(own, 1))
                size *= max(each, elements_of_window(instruction, operand.shape.arrays[0]))
            operations += size * _OPERATIONS.get(opcode, 1)
        # What the emitter is chosen by is at the root, or there are only element-wise ones between.
        key = opcode if once or name in at_root else f"inner {opcode}"
        largest = heroes.get(key)
        if opcode in _HEROES and (largest is None or _array(largest.shape)[2] < own):
            heroes[key] = instruction
        if name in at_root and opcode not in opcodes.READS_OTHER_INDICES:
            at_root.update(instruction.operands)
        for position, operand_name in enumerate(instruction.operands):
            elements = _array(body.by_name[operand_name].shape)[2]
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
    _, dims, elements = _array(index.shape)
    if len(dims) > 1 and dims[-1] <= 4:
        elements //= dims[-1]
    moved = operands[-1] if instruction.opcode == "scatter" else instruction
    if moved is None:
        return 1, 0, 0
    rows = _array(moved.shape)[2] // max(elements, 1)
    return max(1, rows), table.shape.size_bytes or 0, moved.shape.size_bytes or 0


def _sorted(sort: Instruction) -> tuple[int, int]:
    """Elements that are sorted together, and the distance between two of them in memory."""
    shape = sort.shape.arrays[0]
    dim = sort.contraction.dims[0] if sort.contraction is not None else len(shape.dims) - 1
    order = shape.order or tuple(reversed(range(len(shape.dims))))
    inside = order[: order.index(dim)] if dim in order else ()
    length = shape.dims[dim] if dim < len(shape.dims) else 1
    return length, prod(shape.dims[number] for number in inside)


def _peak_type(flops: Mapping[str, int]) -> str:
    return max(flops, key=lambda name: flops[name])


def _product(
    kind: str,
    inner: Instruction,
    cost: KernelCost,
    flops: Mapping[str, int],
    threads: int = 0,
    area: int = 0,
) -> KernelWork:
    total = sum(flops.values())
    result = _array(inner.shape)[2]
    terms = total / 2 / max(result, 1)
    point = (
        _log(total) * 0.7,
        _log(cost.read_bytes),
        _log(cost.written_bytes),
        _log(terms),
        0.7 * _log(threads),
        0.5 * _log(area),
    )
    what = f"product of {result:,} sums of {terms:,.0f}"
    return KernelWork(kind, point, cost.read_bytes, cost.written_bytes, 0.0, flops, threads, what)


def _triton_product(
    inner: Instruction,
    body: Computation,
    cost: KernelCost,
    flops: Mapping[str, int],
    threads: int,
    *,
    untuned: bool,
) -> KernelWork:
    result = _array(inner.shape)[2]
    dot = next((item for item in body.instructions if item.opcode in opcodes.DOTS), None)
    operands = [body.by_name[name].shape for name in dot.operands] if dot is not None else []
    terms = sum(flops.values()) / 2 / max(_array(dot.shape)[2] if dot is not None else result, 1)
    element = _peak_type(flops)
    element_bytes = (element_bits(element) or 32) / 8
    tile = product_tile(inner, dot, _matrices(*operands), terms, element_bytes) if threads else None
    as_tuned = untuned and tile is not None and result > tile.area * MULTIPROCESSORS
    if as_tuned and tile is not None:
        area = 1 << max(_TUNED_AREAS[0], min(_TUNED_AREAS[1], int(log2(result / MULTIPROCESSORS))))
        tile = tuned_tile(tile, area, result)
        threads = result // area * _TUNED_THREADS
    kind = f"triton {_SAME_PRODUCTS.get(element, element)}"
    work = _product(kind, inner, cost, flops, threads, tile.area if tile is not None else 0)
    given = [item.shape for item in body.instructions if item.opcode == "parameter"]
    share = misaligned_share(_matrices(inner.shape, *given))
    depth, stages = (tile.depth, tile.stages) if tile is not None else (1, 1)
    return replace(
        work,
        point=(*work.point, 4.0 * share, _log(depth), 0.5 * stages),
        what=work.what + (", in tiles as a tuner chooses them" if as_tuned else ""),
        tile=tile,
        as_tuned=as_tuned,
    )


def _across(product: Instruction, scope: Computation) -> int:
    """Operands of a product of cuBLAS whose terms are not next to each other in memory.

    Of float32, Hopper's tensor cores (`wgmma`) take only operands with adjacent terms; others are
    computed in a slower way.
    """
    across = 0
    for name, dim in zip(
        product.operands, _CONTRACTED.findall(product.backend_config), strict=False
    ):
        shape = scope.by_name[name].shape
        order = shape.arrays[0].order if shape.arrays else None
        across += order is not None and order[:1] != (int(dim),)
    return across


def _library_product(
    inner: Instruction, scope: Computation, cost: KernelCost, flops: Mapping[str, int]
) -> KernelWork:
    target = inner.custom_call_target or cost.kind
    element = _peak_type(flops)
    if target.startswith("__cublas$"):
        exact = " exact" if '"HIGHEST"' in inner.backend_config else ""
        work = _product(
            f"cublas {_SAME_PRODUCTS.get(element, element)}{exact}", inner, cost, flops
        )
        across = 4.0 * _across(inner, scope) if element == "f32" else 0.0
        work = replace(work, point=(*work.point[:5], across))
        if element not in _TILED:
            return work
        work = _in_blocks_of_cublas(work, inner)
        given = [scope.by_name[name].shape for name in inner.operands[:2]]
        misaligned = misaligned_share(_matrices(inner.shape, *given)) > 0
        if exact or not misaligned:
            return work
        slower = _MISALIGNED_32_BITS if element == "f32" else _MISALIGNED_16_BITS
        return replace(work, block_flops=slower * work.block_flops)
    work = _product(f"{target} {element}", inner, cost, flops)
    inputs, weights = (_dims_of(name, scope) or (1,) for name in (*inner.operands, "", "")[:2])
    terms = sum(flops.values()) / 2 / max(_array(inner.shape)[2], 1)
    point = (
        *work.point[:3],
        _log(terms),
        0.7 * _log(inputs[-1]),
        0.7 * _log(_array(inner.shape)[1][-1] if _array(inner.shape)[1] else 1),
        # Of a convolution in groups, each sum has fewer terms than a window has elements.
        1.5 * _log(prod(weights) / max(weights[0], 1) / max(terms, 1)),
    )
    what = f"{sum(flops.values()):,} operations"
    work = replace(work, point=point, what=what)
    convolution = convolution_of(inner, scope) if target.startswith("__cudnn$conv") else None
    return work if convolution is None else _by_engine(work, convolution, inner)


def _by_engine(work: KernelWork, convolution: Convolution, call: Instruction) -> KernelWork:
    by_engine = engine_work(convolution, call)
    engine = by_engine.engine
    point = (
        *work.point[:3],
        _log(convolution.terms),
        0.7 * _log(convolution.inputs),
        0.7 * _log(convolution.outputs),
        1.5 * _log(convolution.groups),
        _PLACE_OF_ENGINE[engine],
    )
    return replace(
        work,
        point=point,
        what=f"{work.what}, {engine.value}",
        blocks=by_engine.blocks,
        block_flops=by_engine.block_flops,
        block_share=by_engine.block_share,
        round_seconds=_ROUND_SECONDS,
        further_kernels=by_engine.further_kernels,
        workspace_bytes=by_engine.workspace_bytes,
        serial_seconds=by_engine.serial_seconds,
    )


def _matrices(*shapes: Shape) -> list[Shape]:
    """The first array of each."""
    return [array for shape in shapes for array in shape.arrays[:1]]


def _in_blocks_of_cublas(work: KernelWork, result: Instruction) -> KernelWork:
    tile = _TILE_OF_CUBLAS**2
    _, dims, results = _array(result.shape)
    matrices = prod(dims[:-2])
    tiles = max(1.0, results / tile)
    terms = sum(work.flops.values()) / 2 / max(results, 1)
    if tiles < matrices / 2:
        # Blocks of small matrices compute little else than what they wait for.
        tiles, terms = float(matrices), max(terms, _TERMS_OF_SMALL_MATRICES)
    parts = min(_PARTS_OF_CUBLAS, max(1.0, MULTIPROCESSORS / tiles))
    return replace(work, blocks=tiles * parts, block_flops=2 * tile * terms / parts)


def _other(
    inner: Instruction, scope: Computation, cost: KernelCost, threads: int, thunk: Thunk | None
) -> KernelWork:
    """A library call or an instruction that is not a fusion."""
    name = inner.custom_call_target or inner.opcode
    if inner.opcode == "custom-call" and cost.kind != name:
        name = "pallas"  # then the kind is the kernel's own name
    element, dims, elements = _array(inner.shape)
    operands = [_dims_of(name, scope) for name in inner.operands]
    first = operands[0] if operands else dims
    touched = cost.read_bytes + cost.written_bytes
    point: tuple[float, ...]
    what = f"{element}[{','.join(map(str, dims))}]"
    kind, operations = f"{name} {element}", float(elements)
    if name == "__cublas$triangularSolve" and len(operands) > 1:
        other = operands[1]
        size = first[-1] if first else 1
        columns = prod(other) // max(1, size * prod(first[:-2]))
        # cuBLAS divides a triangle into blocks of 32.
        point = (_log(size), _log(columns), _log(prod(first[:-2])), 3.0 * (size % 32 > 0))
    elif name.startswith("cusolver"):
        rows, columns = (first[-2], first[-1]) if len(first) > 1 else (1, 1)
        batch = prod(first[:-2])
        # Several matrices take other kernels than one.
        point = (_log(rows), _log(columns), _log(batch), 4.0 * (batch > 1))
    elif name == "fft":
        before = scope.by_name[inner.operands[0]].shape.arrays[0].element
        kind = f"fft {before} to {element}"
        lengths = inner.contraction.dims if inner.contraction is not None else (1,)
        kind += f" of rank {len(lengths)}"
        odd = any(length & (length - 1) for length in lengths)
        point = (_log(max(prod(first), elements)), _log(lengths[-1]), 2.0 * odd)
    elif "TopK" in name:
        columns, rows = first[-1] if first else 1, prod(first[:-1])
        kept, operations = _largest(rows, columns, dims[-1] if dims else 1)
        point = (_log(columns), _log(rows), _log(kept))
        what = f"{dims[-1]:,} largest of {columns:,} in each of {rows:,} rows"
    elif "sort" in name:
        point = (_log(prod(first)), _log(first[-1] if first else 1), _log(touched))
    elif name == "pallas" and threads:
        kind, what = name, f"{threads:,} threads"
        point = (_log(touched), _log(threads), 0.5 * _log(elements), 0.5 * _log(_grid(thunk)[1]))
    else:
        point = (_log(touched), _log(elements))
        if inner.opcode != "custom-call":
            kind = "loop"
            threads = threads or elements
            point = (_log(touched), _log(threads), 1.5, 0.0, _log(elements / max(threads, 1)))
    return KernelWork(
        kind,
        point,
        cost.read_bytes,
        cost.written_bytes,
        operations,
        cost.flops or {},
        threads,
        what,
        partly_unknown=name == "pallas" and not cost.stated,
    )


def _largest(rows: int, columns: int, count: int) -> tuple[int, float]:
    """Results that XLA's kernel keeps for each row, and operations of the whole GPU.

    As `xla/stream_executor/gpu/topk_kernel.cu.h` has it: a block for each row, of which each thread
    keeps the largest of its own elements, and then half of them merge with the other half.
    """
    kept = 1 << max(0, count - 1).bit_length()
    slices = max(1, int(columns / max(1.0, _log(columns))))
    threads = min(1024, 8192 // max(1, min(kept, 1024)), 1 << (slices.bit_length() - 1))
    threads = max(1, threads)
    compared = columns / threads * min(kept, 8) ** 0.9 * _COMPARED
    merged = _log(threads) ** 3 * kept**1.7 * _MERGED
    # Of blocks of few threads, a multiprocessor has several.
    rounds = max(1.0, rows / MULTIPROCESSORS * min(1.0, threads / 512) ** 0.6)
    return kept, (compared + merged) * rounds


def _collective(opcode: str, inner: Instruction, cost: KernelCost, link_bytes: int) -> KernelWork:
    point = (_log(cost.read_bytes + cost.written_bytes),)
    what = f"{opcode} of {cost.written_bytes:,} B"
    return KernelWork(
        opcode, point, cost.read_bytes, cost.written_bytes, 0.0, {}, 0, what, link_bytes
    )
