"""The work of products and convolutions, by Triton, cuBLAS and cuDNN."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import inf, log2, prod

from xlapipe.plans import HloModule, Instruction, opcodes
from xlapipe.plans.shapes import Shape, element_bits
from xlapipe.time.cost.flops import ATTENTION_PRODUCTS
from xlapipe.time.predict.arrays import first_array, log, operand_shapes
from xlapipe.time.predict.convolutions import Convolution, Engine, convolution_of, engine_work
from xlapipe.time.predict.fusion import LaunchedKernel
from xlapipe.time.predict.gpu import HOPPER, Gpu
from xlapipe.time.predict.triton_tiles import misaligned_share, product_tile, tuned_tile
from xlapipe.time.predict.work import KernelWork

# Rows, and columns, of cuBLAS's tiles, inferred from its times. It splits the terms of sums among
# up to this number of blocks (split-K) if there are few tiles.
_TILE_OF_CUBLAS, _PARTS_OF_CUBLAS = 64, 8
# Coordinates of the engines of cuDNN, far from each other if they have little in common.
_PLACE_OF_ENGINE = {
    engine: 3.0 * number
    for number, engine in enumerate(
        (
            *(Engine.PRODUCT, Engine.HOPPER, Engine.CUTLASS, Engine.AMPERE, Engine.REGISTERS),
            *(Engine.VECTORS, Engine.SIMPLE, Engine.DIRECT, Engine.OF_CHANNELS),
            *(Engine.FOURIER, Engine.OF_CHANNELS_IN_TILES),
        )
    )
}
# Least seconds of a score of cuDNN's attention: on an H200, heads of 16 to 64 took equally long.
_ATTENTION = "__cudnn$fmha"
_SCORE_SECONDS = {"Backward": 1.56e-12, "Bias": 0.99e-12, "": 0.57e-12}
_TERMS_OF_SMALL_MATRICES = 300
# Side of a tile, and least terms of small matrices, without tensor cores.
_EXACT_TILE, _EXACT_TERMS = 32, 85
# XLA's tiles without autotune results: 16 × 16 on B200 and GB200, 16 × 8 on other GPUs, 64 × 32 for
# the largest results, or 64 × 64 on B200 and GB200. For more than a wave of such tiles, a tuner
# would choose larger ones, whose elements, within these powers of two, make one wave.
_DEFAULT_TILE = re.compile(
    r'"num_stages":[134],"num_tiles_per_pid":0,"num_warps":"[24]",'
    r'"output_tiles":\[\{"sizes":\["(?:1",")*(?:(?P<small>16","8|8","16|16","16)|64","32|(?P<large>64","64))"\]'
)
# No tuner takes the small ones for so many elements, of which neither side is narrow.
_NEVER_SMALL_ELEMENTS, _NARROW = 1 << 20, 64
_IN_A_CALL = opcodes.DOTS | opcodes.RENAMES | opcodes.GIVEN | {"transpose", "tuple"}
_TUNED_AREAS, _TUNED_THREADS = (8, 13), 128
# Element types whose products take equally long.
_SAME_PRODUCTS = {"f16": "bf16"}
# The engines of convolutions also add a bias, and take nearly as long.
_WITH_A_BIAS, _PLACE_OF_A_BIAS = "BiasActivation", 1.5
# Element types whose products by cuBLAS were compared with tiles. Factors by which blocks slow down
# if rows of a matrix are not aligned to 16 bytes, as `wgmma` needs.
_TILED = ("bf16", "f16", "f32")
_MISALIGNED_32_BITS, _MISALIGNED_16_BITS = 4.0, 2.0


def is_untuned(module: HloModule, gpu: Gpu) -> bool:
    """Whether products by Triton have the tiles that XLA takes without autotune results.

    Either all have them, or one has a small tile that no tuner would choose. A tuner may choose the
    tiles of large results too, but 64 × 64 only for less than two waves.
    """
    waves = gpu.multiprocessors << _TUNED_AREAS[1] if gpu != HOPPER else inf
    tiles = [
        (_DEFAULT_TILE.search(instruction.backend_config), first_array(instruction.shape))
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "fusion" and "gemm_fusion" in instruction.backend_config
    ]
    default = [
        tile for tile, array in tiles if tile and not (tile["large"] and array.elements < waves)
    ]
    if len(default) == len(tiles):
        return any(tile["small"] or tile["large"] for tile in default)
    return any(
        tile["small"]
        and array.elements >= _NEVER_SMALL_ELEMENTS
        and min(array.dims[-2:]) >= _NARROW
        for tile, array in tiles
        if tile
    )


def triton_product(fusion: LaunchedKernel, *, untuned: bool) -> KernelWork:
    inner, body, flops, threads = fusion.inner, fusion.body, fusion.flops, fusion.threads
    gpu, result = fusion.gpu, first_array(fusion.inner.shape).elements
    dot = next((item for item in body.instructions if item.opcode in opcodes.DOTS), None)
    operands = [body.by_name[name].shape for name in dot.operands] if dot is not None else []
    summed = first_array(dot.shape).elements if dot is not None else result
    terms = sum(flops.values()) / 2 / max(summed, 1)
    element = _peak_type(flops)
    element_bytes = (element_bits(element) or 32) / 8
    tile = product_tile(inner, dot, _matrices(*operands), terms, element_bytes) if threads else None
    as_tuned = untuned and tile is not None and result > tile.area * gpu.multiprocessors
    # On a GPU whose tuned tiles the formulas do not know, a tuner may choose cuBLAS instead.
    tuned_anew = as_tuned or gpu != HOPPER
    if as_tuned and tile is not None:
        fills = int(log2(result / gpu.multiprocessors))
        area = 1 << max(_TUNED_AREAS[0], min(_TUNED_AREAS[1], fills))
        tile = tuned_tile(tile, area, result)
        threads = result // area * _TUNED_THREADS
    kind = f"triton {_SAME_PRODUCTS.get(element, element)}"
    work = _product(kind, fusion, threads, tile.area if tile is not None else 0)
    given = [item.shape for item in body.instructions if item.opcode == "parameter"]
    share = misaligned_share(_matrices(inner.shape, *given))
    depth, stages = (tile.depth, tile.stages) if tile is not None else (1, 1)
    return replace(
        work,
        point=(*work.point, 4.0 * share, log(depth), 0.5 * stages),
        what=work.what + (", in tiles as a tuner chooses them" if as_tuned else ""),
        tile=tile,
        as_tuned=as_tuned,
        or_else=_given_to_cublas(dot, fusion) if dot and tuned_anew else None,
    )


def library_product(call: LaunchedKernel) -> KernelWork:
    """The work of a call of cuBLAS or cuDNN."""
    inner, flops = call.inner, call.flops
    target, element = inner.custom_call_target or call.cost.kind, _peak_type(flops)
    if target.startswith("__cublas$"):
        return _by_cublas(call, exact='"HIGHEST"' in inner.backend_config)
    kind = f"{target.replace(_WITH_A_BIAS, '')} {_SAME_PRODUCTS.get(element, element)}"
    work = _product(kind, call)
    dims = [first_array(shape).dims or (1,) for shape in operand_shapes(inner, call.scope)]
    inputs, weights = (*dims, (1,), (1,))[:2]
    result = first_array(inner.shape)
    terms = sum(flops.values()) / 2 / max(result.elements, 1)
    point = (
        *work.point[:3],
        log(terms),
        0.7 * log(inputs[-1]),
        0.7 * log(result.dims[-1] if result.dims else 1),
        # In a grouped convolution, each sum has fewer terms than a window has elements.
        1.5 * log(prod(weights) / max(weights[0], 1) / max(terms, 1)),
    )
    what = f"{sum(flops.values()):,} operations"
    work = replace(work, point=point, what=what)
    if target.startswith(_ATTENTION):
        products = ATTENTION_PRODUCTS["backward" if "Backward" in target else "forward"]
        scores = sum(flops.values()) / (2 * products * max(inputs[-1], 1))
        of_a_score = next(seconds for name, seconds in _SCORE_SECONDS.items() if name in target)
        return replace(work, least_seconds=of_a_score * scores / call.gpu.clocks)
    convolution = convolution_of(inner, call.scope) if target.startswith("__cudnn$conv") else None
    return work if convolution is None else _by_engine(work, convolution, inner, call.gpu)


def _by_cublas(product: LaunchedKernel, *, exact: bool = False) -> KernelWork:
    """The work of cuBLAS for a product: a call of it, or a dot that a tuner may give to it."""
    element, result = _peak_type(product.flops), product.inner
    kind = f"cublas {_SAME_PRODUCTS.get(element, element)}" + " exact" * exact
    work = _product(kind, product)
    work = replace(work, point=work.point[:5])
    if element not in _TILED:
        return work
    work = _in_blocks_of_cublas(work, result, product.gpu, exact=exact)
    operands = operand_shapes(result, product.scope)[:2]
    if exact or not misaligned_share(_matrices(result.shape, *operands)):
        return work
    slower = _MISALIGNED_32_BITS if element == "f32" else _MISALIGNED_16_BITS
    return replace(work, block_flops=slower * work.block_flops)


def _given_to_cublas(dot: Instruction, fusion: LaunchedKernel) -> KernelWork:
    """The work of cuBLAS for a fusion's dot; a separate kernel computes what is fused with it."""
    moved_bytes, cost = 0, fusion.cost
    if any(item.opcode not in _IN_A_CALL for item in fusion.body.instructions):
        moved_bytes = dot.shape.size_bytes or 0
    read, written = cost.read_bytes + moved_bytes, cost.written_bytes + moved_bytes
    cost = replace(cost, read_bytes=read, written_bytes=written)
    work = _by_cublas(replace(fusion, inner=dot, scope=fusion.body, cost=cost))
    return replace(work, what=f"{work.what}, by cuBLAS as a tuner chooses it", as_tuned=True)


def _product(kind: str, product: LaunchedKernel, threads: int = 0, area: int = 0) -> KernelWork:
    flops, cost = product.flops, product.cost
    total, result = sum(flops.values()), first_array(product.inner.shape).elements
    terms = total / 2 / max(result, 1)
    point = (
        log(total) * 0.7,
        log(cost.read_bytes),
        log(cost.written_bytes),
        log(terms),
        0.7 * log(threads),
        0.5 * log(area),
    )
    what = f"product of {result:,} sums of {terms:,.0f}"
    return KernelWork(kind, point, cost.read_bytes, cost.written_bytes, 0.0, flops, threads, what)


def _peak_type(flops: Mapping[str, int]) -> str:
    return max(flops, key=lambda name: flops[name])


def _matrices(*shapes: Shape) -> list[Shape]:
    """The first array of each shape."""
    return [array for shape in shapes for array in shape.arrays[:1]]


def _in_blocks_of_cublas(
    work: KernelWork, result: Instruction, gpu: Gpu, *, exact: bool
) -> KernelWork:
    tile = _TILE_OF_CUBLAS**2
    _, dims, results = first_array(result.shape)
    matrices = prod(dims[:-2])
    tiles = max(1.0, results / tile)
    terms = sum(work.flops.values()) / 2 / max(results, 1)
    if tiles < matrices / 2:
        # Blocks of small matrices are latency-bound: they take as long as a least number of terms.
        tile = _EXACT_TILE**2 if exact else tile
        least = _EXACT_TERMS if exact else _TERMS_OF_SMALL_MATRICES
        tiles, terms = float(matrices), max(terms, least)
    parts = min(_PARTS_OF_CUBLAS, max(1.0, gpu.multiprocessors / tiles))
    return replace(work, blocks=tiles * parts, block_flops=2 * tile * terms / parts)


def _by_engine(
    work: KernelWork, convolution: Convolution, call: Instruction, gpu: Gpu
) -> KernelWork:
    by_engine = engine_work(convolution, call, gpu)
    engine, biased = by_engine.engine, _WITH_A_BIAS in (call.custom_call_target or "")
    point = (
        *work.point[:3],
        log(convolution.terms),
        0.7 * log(convolution.inputs),
        0.7 * log(convolution.outputs),
        1.5 * log(convolution.groups),
        _PLACE_OF_ENGINE[engine] + (_PLACE_OF_A_BIAS if biased else 0.0),
    )
    return replace(
        work,
        point=point,
        what=f"{work.what}, {engine.value}" + ", as a tuner chooses it" * by_engine.as_tuned,
        blocks=by_engine.blocks,
        block_flops=by_engine.block_flops,
        engine=by_engine,
        as_tuned=by_engine.as_tuned,
    )
