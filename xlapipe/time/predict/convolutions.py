"""Work of cuDNN's engine for a convolution, from the knobs that XLA's autotuner chose.

A convolution is a matrix product: positions by channels, summed over the elements of a window.
Engines divide it into tiles, copy arrays whose layout does not suit them, or compute each element
in one thread.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, prod

from xlapipe.plans.hlo import Computation, Instruction
from xlapipe.plans.shapes import element_bits
from xlapipe.time.predict.arrays import first_array, operand_shapes
from xlapipe.time.predict.gpu import HOPPER, Gpu

# Knobs of an engine, as cuDNN's `cudnnBackendKnobType_t` numbers them.
_TILE_SIZE, _USE_TEX, _KBLOCK, _LDGA, _MULTIPLY, _TILEK, _STAGES = 2, 3, 5, 6, 11, 13, 14
_SLICES, _IDX_MODE, _LDGC, _SPECFILT, _WORKSPACE, _TILE_CGA_M = 17, 18, 22, 23, 25, 27
# Rows and columns of a tile by the value of its knob, as names of kernels have them.
_TILES = {
    0: (128, 128),
    1: (128, 64),
    2: (128, 32),
    3: (256, 128),
    4: (256, 64),
    5: (64, 64),
    6: (128, 256),
    7: (64, 128),
    8: (64, 32),
    9: (64, 256),
    11: (32, 16),
    12: (32, 32),
    14: (16, 64),
    15: (128, 16),
    16: (256, 32),
    18: (64, 192),
    19: (128, 192),
    23: (32, 128),
}
_OTHER_TILE = (64, 64)
_ALGORITHM = re.compile(r'"algo_id":"(-?\d{1,6})"')
_KNOBS = re.compile(r'"tuning_knobs":\{([^}]*)\}')
_KNOB = re.compile(r'"(\d{1,4})":"(-?\d{1,9})"')
_WORKSPACE_SIZE = re.compile(r'"workspace_size":"(\d{1,15})"')
_DIRECT = 0  # an engine's number


class Engine(Enum):
    """How an engine computes."""

    HOPPER = "tiles of Hopper's tensor cores"
    AMPERE = "tiles of Ampere's tensor cores"
    CUTLASS = "tiles by CUTLASS"
    REGISTERS = "tiles without shared memory"
    VECTORS = "tiles without tensor cores"
    PRODUCT = "one product by cuBLAS"
    FOURIER = "Fourier transforms of parts of 32 by 32, and their products"
    SIMPLE = "few terms at a time"
    DIRECT = "one element of each thread"
    OF_CHANNELS = "each channel alone"
    OF_CHANNELS_IN_TILES = "each channel alone, one tile after another"


_IN_CHUNKS = (Engine.HOPPER, Engine.AMPERE, Engine.CUTLASS)
_IN_TILES = (*_IN_CHUNKS, Engine.REGISTERS, Engine.VECTORS)
# Shares of the tensor cores' peak that blocks reach, by bits of an element: in forward passes and
# gradients of inputs, and in gradients of weights; fitted to the calibrations' programs.
_SHARES = {
    Engine.HOPPER: {16: (0.92, 0.77), 32: (0.95, 0.4)},
    Engine.AMPERE: {16: (0.25, 0.13), 32: (0.3, 0.06)},
    Engine.CUTLASS: {16: (0.45, 0.13), 32: (0.45, 0.17)},
    Engine.REGISTERS: {16: (0.09, 0.065), 32: (0.12, 0.065)},
    Engine.VECTORS: {16: (0.02, 0.02), 32: (0.02, 0.02)},
}
# Latency per term of the only block on a multiprocessor, for 16 and 32 bits; and per indexed term
# on Ampere's tensor cores. Not for gradients of weights. Measured on an H100.
_WAITS = {
    Engine.HOPPER: (0.3e-9, 3e-9),
    Engine.AMPERE: (8e-9, 8e-9),
    Engine.CUTLASS: (3.5e-9, 3.5e-9),
    Engine.REGISTERS: (45e-9, 22e-9),
    Engine.VECTORS: (40e-9, 40e-9),
}
_INDEXED_WAIT = 10e-9
# Bytes per second of both operands that all of Hopper's blocks read together, by bits; and seconds
# that each of their waves takes in addition. Pairs as in `_SHARES`.
_READ_RATES = {16: (48e12, 11.3e12), 32: (17e12, 6.2e12)}
_ROUNDS = {16: (1.6e-6, 0.0), 32: (2.3e-6, 9.3e-6)}
# Seconds that each wave of other engines takes in addition.
_ROUND_SECONDS = 1e-6
# Terms are read in chunks of this number of bytes of one position's channels.
_CHUNK_BYTES = 64
# Tensor cores take channels of multiples of 16 bytes: others are padded.
_ALIGNED_BYTES = 16
# Gradients of weights divide their long sums among blocks, down to this number of terms.
_LEAST_TERMS = 512
# Additional kernels that pad one array's channels and unpack a copy, that reorder dimensions, that
# split groups, and that do all of it for a bias.
_TO_PAD, _AROUND_PADDING, _TO_REORDER, _FOR_GROUPS, _FOR_A_BIAS = 3.0, 1.5, 3.5, 4.0, 3.0
# Share of the bandwidth that copies of one group's channels reach, around CUTLASS and around tiles
# of Hopper's tensor cores; and that copies with another order of dimensions reach around these.
_SLICED_SHARE, _SLICED_SHARE_OF_HOPPER, _REORDERED_SHARE = 1 / 3.5, 0.2, 0.4
# Additional kernels that split a sum (split-K) and add its parts.
_TO_SPLIT = 2.0
# Additional kernels that transform both arrays, multiply them, and transform the product back, per
# group: 6 to 10, which take as long as this number that only pad; and their share of bandwidth.
_TO_TRANSFORM, _TRANSFORMING_SHARE = 12.0, 0.55
# Engines without tiles: latency per term that a thread adds; and throughput, which bounds many
# results: seconds per result, and per term of each, for 16 and 32 bits.
_TERM_SECONDS = {
    Engine.SIMPLE: (65e-9, 5e-12, (0.055e-12, 0.055e-12)),
    Engine.DIRECT: (90e-9, 30e-12, (2.5e-12, 1.5e-12)),
    Engine.OF_CHANNELS: (15e-9, 0.5e-12, (0.19e-12, 0.38e-12)),
}
# Factor by which 16-bit groups that run one after another take longer.
_SHORT_GROUPS = 2.0
# 16-bit groups with an engine that no tuner chose run concurrently: latency per term of one group,
# and seconds of throughput per term of each result; channels are padded to whole tiles.
_ALONE_BESIDE_OTHERS, _OF_A_TERM_BESIDE_OTHERS, _TILE_BESIDE_OTHERS = 50e-9, 0.083e-12, 128
# Kernels of groups run concurrently as far as multiprocessors have room for their blocks and until
# the next launch: at most this number, by resident blocks, seconds per term, and seconds between
# launches. Measured on an H100 with 60 grouped convolutions.
_MOST_AT_ONCE, _BLOCKS_AT_ONCE, _OF_A_TERM, _BETWEEN_GROUPS = 4.0, 2, 8e-9, 4.5e-6
# Latency per term of a gradient of weights, whose terms are positions of the images.
_POSITION_SECONDS = {
    Engine.SIMPLE: 0.6e-9,
    Engine.DIRECT: 6e-9,
    Engine.OF_CHANNELS_IN_TILES: 3e-9,
}
# Gradient of weights of a depthwise convolution, with partial sums in a workspace: seconds until
# those are added up, per element of the images, and per sum that it is in.
_PARTS_SECONDS, _PART_SECONDS, _PART_OF_A_SUM = 3.5e-6, 1.1e-12, 0.12e-12
# Tiles that a tuner chooses from, if the engine is unknown.
_TUNED_TILES = (0, 1, 3, 4, 5, 6, 7, 16)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution as a product of matrices, for each of its groups.

    Attributes:
      rows, columns, terms: sizes of the product. Terms of a gradient of weights are positions.
      groups: of channels; inputs, outputs: channels of all groups.
      channels: channels of a group, which are the terms of one position.
      channels_last: whether channels are the minor dimension.
      of_weights: whether it is the gradient of weights.
      element_bytes: of an operand.
    """

    rows: float
    columns: float
    terms: float
    groups: int
    inputs: int
    outputs: int
    channels: float
    channels_last: bool
    of_weights: bool
    element_bytes: int

    @property
    def of_channels(self) -> bool:
        """Whether each channel is alone in its group."""
        return self.groups == min(self.inputs, self.outputs) > 1

    @property
    def padded(self) -> int:
        """Number of arrays whose channels are not a multiple of 16 bytes."""
        return sum(
            number * self.element_bytes % _ALIGNED_BYTES > 0
            for number in (self.inputs, self.outputs)
        )


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Work of an engine for a convolution.

    Attributes:
      blocks: thread blocks, each of which computes a tile; 0 for an engine without tiles.
      block_flops: operations of each block.
      block_wait_seconds: latency of each block for its terms, however small its tile is.
      block_share: share of the peak that blocks reach.
      round_seconds: seconds per wave of blocks, in addition to what they compute.
      further_kernels: kernels in addition to the one that computes.
      workspace_bytes: bytes that these write and read; workspace_share: of the bandwidth.
      serial_seconds: seconds that a thread takes for its terms, one after another.
      at_once: concurrent kernels of groups, each of which takes longer.
      as_tuned: whether the plan names no engine, and this is one that a tuner would choose.
    """

    engine: Engine
    blocks: float = 0.0
    block_flops: float = 0.0
    block_wait_seconds: float = 0.0
    block_share: float = 1.0
    round_seconds: float = 0.0
    further_kernels: float = 0.0
    workspace_bytes: int = 0
    workspace_share: float = 1.0
    serial_seconds: float = 0.0
    at_once: float = 1.0
    as_tuned: bool = False


@dataclass(frozen=True, slots=True)
class _Configuration:
    """What a tuner chose: the engine's knobs, its workspace, and whether it adds a bias.

    Attributes:
      workspace_bytes: None if no tuner chose.
    """

    knobs: Mapping[int, int]
    workspace_bytes: int | None = None
    biased: bool = False


def convolution_of(call: Instruction, scope: Computation) -> Convolution | None:
    """The product that a call of cuDNN computes; None if its operands are unknown."""
    target = call.custom_call_target or ""
    # An operand that another call computes is a tuple of its result and its workspace.
    operands = [array for shape in operand_shapes(call, scope)[:2] for array in shape.arrays[:1]]
    if len(operands) < 2 or call.contraction is None or not call.shape.arrays:
        return None
    result = call.shape.arrays[0]
    of_weights, of_inputs = "BackwardFilter" in target, "BackwardInput" in target
    if of_weights:
        given, made, kernel = operands[0], operands[1], result
    elif of_inputs:
        given, made, kernel = result, operands[0], operands[1]
    else:
        given, made, kernel = operands[0], result, operands[1]
    sums = [kernel.dims[dim] for dim in call.contraction.dims if dim < len(kernel.dims)]
    outputs = max(1, kernel.elements // max(1, prod(sums)))
    of_given, of_made, of_kernel = (first_array(array)[1] for array in (given, made, kernel))
    if min(map(len, (of_given, of_made, of_kernel))) < 3:
        return None
    # XLA stores the channels of 3-D convolutions before their positions.
    last = of_made[-1] == outputs and not (len(of_made) == 5 and of_made[1] == outputs)
    inputs = of_given[-1 if last else 1]
    of_group = max(1, of_kernel[-1 if last else 1])
    groups = max(1, inputs // of_group)
    window = prod(sums) / of_group
    places, places_given = made.elements / outputs, given.elements / max(1, inputs)
    if of_weights:
        rows, columns, terms = outputs / groups, float(prod(sums)), places
        channels = terms
    elif of_inputs:
        rows, columns, channels = places_given, inputs / groups, outputs / groups
        terms = channels * window * places / max(1, places_given)
    else:
        rows, columns, terms, channels = places, outputs / groups, float(prod(sums)), of_group
    element_bytes = max(1, (element_bits(operands[0].element) or 32) // 8)
    return Convolution(
        *(rows, columns, terms, groups, inputs, outputs, channels, last, of_weights),
        element_bytes,
    )


def engine_work(convolution: Convolution, call: Instruction, gpu: Gpu = HOPPER) -> EngineWork:
    """The work of the engine in the call's configuration, or of one that a tuner would choose."""
    match = _ALGORITHM.search(call.backend_config)
    number = int(match[1]) if match is not None else -1
    if number < 0:
        return replace(_best(convolution, gpu), as_tuned=True)
    text = _KNOBS.search(call.backend_config)
    knobs = {int(a): int(b) for a, b in _KNOB.findall(text[1] if text is not None else "")}
    size = _WORKSPACE_SIZE.search(call.backend_config)
    workspace_bytes = int(size[1]) if size is not None else 0
    biased = "BiasActivation" in (call.custom_call_target or "")
    chosen = _Configuration(knobs, workspace_bytes, biased)
    engine = _engine(number, knobs, convolution)
    if engine in _IN_TILES:
        return _in_tiles(convolution, engine, chosen, gpu)
    if engine is Engine.PRODUCT:
        return EngineWork(engine, further_kernels=_TO_SPLIT * convolution.of_weights)
    if engine is Engine.FOURIER:
        return EngineWork(
            engine,
            further_kernels=_TO_TRANSFORM * convolution.groups,
            workspace_bytes=workspace_bytes,
            workspace_share=_TRANSFORMING_SHARE,
        )
    return _one_by_one(convolution, engine, chosen, gpu)


def _engine(number: int, knobs: Mapping[int, int], convolution: Convolution) -> Engine:
    has = knobs.keys()
    if _TILE_CGA_M in has:
        return Engine.HOPPER
    if {_LDGA, _LDGC} <= has:
        return Engine.REGISTERS
    if _SPECFILT in has or {_TILEK, _STAGES} <= has:
        return Engine.AMPERE
    if {_KBLOCK, _STAGES} <= has:
        return Engine.CUTLASS
    if has == {_TILE_SIZE, _IDX_MODE}:
        return Engine.VECTORS
    if _WORKSPACE in has:
        return Engine.PRODUCT
    if _MULTIPLY in has:
        return Engine.FOURIER
    if number == _DIRECT:
        return Engine.DIRECT
    if not convolution.of_channels or _USE_TEX in has:
        return Engine.SIMPLE
    in_tiles = convolution.of_weights and has == {_TILE_SIZE}
    return Engine.OF_CHANNELS_IN_TILES if in_tiles else Engine.OF_CHANNELS


def _one_by_one(
    convolution: Convolution, engine: Engine, chosen: _Configuration, gpu: Gpu
) -> EngineWork:
    """The work of an engine whose threads each add the terms of one element."""
    simple, short = engine is Engine.SIMPLE, convolution.element_bytes < 4
    one_by_one = simple and (not short or _USE_TEX in chosen.knobs)
    beside = simple and short and not chosen.knobs and convolution.groups > 1
    kernels = convolution.groups if one_by_one or beside else 1
    at_once = min(_MOST_AT_ONCE, kernels) if beside else 1.0
    if convolution.of_weights:
        further = 2 * kernels - 1 if simple else 1
        if engine is Engine.OF_CHANNELS:
            of_element = _PART_SECONDS + convolution.columns * _PART_OF_A_SUM
            serial = _PARTS_SECONDS + convolution.terms * convolution.groups * of_element
        else:
            serial = kernels * convolution.terms * _POSITION_SECONDS[engine]
        if engine is Engine.OF_CHANNELS_IN_TILES:
            serial *= ceil(convolution.groups / gpu.multiprocessors)
            further = 0
    else:
        alone, of_result, of_term = _TERM_SECONDS[engine]
        results = convolution.rows * convolution.columns * convolution.groups / kernels
        together = of_result + convolution.terms * of_term[convolution.element_bytes >= 4]
        serial = kernels * max(convolution.terms * alone, results * together)
        serial *= _SHORT_GROUPS if short and one_by_one and kernels > 1 else 1
        if beside:
            columns = ceil(convolution.columns / _TILE_BESIDE_OTHERS) * _TILE_BESIDE_OTHERS
            all_terms = convolution.rows * columns * convolution.terms * at_once
            alone = convolution.terms * _ALONE_BESIDE_OTHERS
            serial = kernels * max(alone, all_terms * _OF_A_TERM_BESIDE_OTHERS)
        further = kernels - 1
    return EngineWork(
        engine,
        further_kernels=further,
        workspace_bytes=chosen.workspace_bytes or 0,
        serial_seconds=serial,
        at_once=at_once,
    )


def _in_tiles(
    convolution: Convolution, engine: Engine, chosen: _Configuration, gpu: Gpu
) -> EngineWork:
    knobs = chosen.knobs
    rows, columns = _TILES.get(knobs.get(_TILE_SIZE, -1), _OTHER_TILE)
    groups, width = convolution.groups, max(1.0, convolution.columns)
    of_group = ceil(convolution.rows / rows) * ceil(width / columns)
    one_by_one = engine in (Engine.VECTORS, Engine.CUTLASS)
    tiles = of_group
    if not one_by_one:  # a tile has several narrow groups
        tiles = ceil(convolution.rows / rows) * (
            groups * ceil(width / columns) if width > columns else ceil(width * groups / columns)
        )
    terms, parts = convolution.terms, 1.0
    split = convolution.of_weights or _SLICES in knobs
    if split:
        parts = min(max(1.0, terms / _LEAST_TERMS), gpu.multiprocessors / tiles)
    elif engine in _IN_CHUNKS:
        in_chunks = _ALIGNED_BYTES if knobs.get(_IDX_MODE) else _CHUNK_BYTES
        chunk = in_chunks / convolution.element_bytes
        channels = max(1.0, convolution.channels)
        terms *= ceil(channels / chunk) * chunk / channels
    blocks, at_once = tiles * parts, 1.0
    bits, of_weights = 32 if convolution.element_bytes >= 4 else 16, convolution.of_weights
    terms /= parts
    if one_by_one and groups > 1:
        rounds = ceil(blocks / gpu.multiprocessors)
        room = _BLOCKS_AT_ONCE * gpu.multiprocessors / blocks
        room = min(room, rounds * terms * _OF_A_TERM / _BETWEEN_GROUPS, groups, _MOST_AT_ONCE)
        at_once = max(1.0, room)
        blocks = groups * rounds * gpu.multiprocessors
        if engine is Engine.CUTLASS:
            blocks *= at_once
    wait = _wait_of_a_term(convolution, engine, knobs) * terms
    round_seconds = _ROUND_SECONDS
    if engine is Engine.HOPPER:
        read_bytes = (rows + columns) * terms * convolution.element_bytes
        rate = _READ_RATES[bits][of_weights] * gpu.vector
        wait = max(wait, read_bytes * gpu.multiprocessors / rate)
        round_seconds = _ROUNDS[bits][of_weights]
    share = _SLICED_SHARE if engine is Engine.CUTLASS and groups > 1 else 1.0
    if engine is Engine.HOPPER and groups > 1:
        share = _SLICED_SHARE_OF_HOPPER
    elif engine is Engine.HOPPER and not convolution.channels_last:
        share = _REORDERED_SHARE
    return EngineWork(
        engine,
        blocks=blocks,
        block_flops=2 * rows * columns * terms,
        block_wait_seconds=wait,
        block_share=_SHARES[engine][bits][of_weights],
        round_seconds=round_seconds,
        further_kernels=_further_kernels(convolution, engine, chosen) + split,
        workspace_bytes=chosen.workspace_bytes or 0,
        workspace_share=share,
        at_once=at_once,
    )


def _wait_of_a_term(convolution: Convolution, engine: Engine, knobs: Mapping[int, int]) -> float:
    if convolution.of_weights:
        return 0.0
    if engine is Engine.AMPERE and knobs.get(_IDX_MODE):
        return _INDEXED_WAIT
    return _WAITS[engine][convolution.element_bytes >= 4]


def _further_kernels(convolution: Convolution, engine: Engine, chosen: _Configuration) -> float:
    groups = convolution.groups
    if engine is Engine.VECTORS:
        return groups * (1 + _TO_PAD * bool(chosen.workspace_bytes)) - 1
    if engine is Engine.REGISTERS:
        return _TO_PAD
    of_groups = _FOR_GROUPS * (groups - 1) if engine is Engine.CUTLASS else 0.0
    if chosen.workspace_bytes == 0 and groups == 1:
        return 0.0  # there is no place for copies
    if convolution.padded:
        more = _FOR_A_BIAS if chosen.biased else 0.0
        return _TO_PAD * convolution.padded + _AROUND_PADDING + more + of_groups
    if not convolution.channels_last:
        return _TO_REORDER
    narrow = convolution.rows if convolution.of_weights else convolution.channels
    divided = groups > 1 and narrow * convolution.element_bytes % _ALIGNED_BYTES > 0
    return _FOR_GROUPS * divided + of_groups


def _best(convolution: Convolution, gpu: Gpu) -> EngineWork:
    """The work with the tile whose waves take the fewest operations per multiprocessor."""
    if convolution.of_channels:
        return _one_by_one(convolution, Engine.OF_CHANNELS, _Configuration({}), gpu)
    candidates = (
        _in_tiles(convolution, Engine.HOPPER, _Configuration({_TILE_SIZE: tile}), gpu)
        for tile in _TUNED_TILES
    )
    rounds = gpu.multiprocessors
    return min(candidates, key=lambda work: ceil(work.blocks / rounds) * work.block_flops)
