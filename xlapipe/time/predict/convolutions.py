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
from xlapipe.time.predict.features import Convolutions
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
# Terms are read in chunks of this number of bytes of one position's channels.
_CHUNK_BYTES = 64
# Tensor cores take channels of multiples of 16 bytes: others are padded.
_ALIGNED_BYTES = 16
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
    # Where images are as wide as they have channels, the place of the window tells.
    window_last = of_kernel[-1] == of_kernel[-2] < of_kernel[1]
    first = of_made[1] == outputs and (len(of_made) == 5 or (len(of_made) == 4 and window_last))
    last = of_made[-1] == outputs and not first
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
    costs = gpu.features.convolutions
    if engine is Engine.PRODUCT:
        return EngineWork(engine, further_kernels=costs.split_kernels * convolution.of_weights)
    if engine is Engine.FOURIER:
        return EngineWork(
            engine,
            further_kernels=costs.transform_kernels * convolution.groups,
            workspace_bytes=workspace_bytes,
            workspace_share=costs.transform_share,
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
    costs = gpu.features.convolutions
    # Both engines of single channels take equally long for each term.
    in_tiles = engine is Engine.OF_CHANNELS_IN_TILES
    engine_costs = costs.terms[(Engine.OF_CHANNELS if in_tiles else engine).name]
    simple, short = engine is Engine.SIMPLE, convolution.element_bytes < 4
    one_by_one = simple and (not short or _USE_TEX in chosen.knobs)
    beside = simple and short and not chosen.knobs and convolution.groups > 1
    kernels = convolution.groups if one_by_one or beside else 1
    at_once = min(costs.most_at_once, kernels) if beside else 1.0
    if convolution.of_weights:
        further = 2 * kernels - 1 if simple else 1
        if engine is Engine.OF_CHANNELS:
            of_element = costs.part_seconds + convolution.columns * costs.part_of_a_sum_seconds
            serial = costs.parts_seconds + convolution.terms * convolution.groups * of_element
        else:
            serial = kernels * convolution.terms * engine_costs.position_seconds
        if in_tiles:
            serial *= ceil(convolution.groups / gpu.multiprocessors)
            further = 0
    else:
        results = convolution.rows * convolution.columns * convolution.groups / kernels
        of_term = engine_costs.result_term_seconds[not short]
        together = engine_costs.result_seconds + convolution.terms * of_term
        alone = convolution.terms * engine_costs.term_seconds
        serial = kernels * max(alone, results * together)
        serial *= costs.short_groups if short and one_by_one and kernels > 1 else 1
        if beside:
            columns = ceil(convolution.columns / costs.beside_tile) * costs.beside_tile
            all_terms = convolution.rows * columns * convolution.terms * at_once
            alone = convolution.terms * costs.beside_term_seconds
            serial = kernels * max(alone, all_terms * costs.beside_result_term_seconds)
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
    knobs, costs = chosen.knobs, gpu.features.convolutions
    engine_costs = costs.tiles[engine.name]
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
        parts = min(max(1.0, terms / costs.least_terms), gpu.multiprocessors / tiles)
    elif engine in _IN_CHUNKS:
        in_chunks = _ALIGNED_BYTES if knobs.get(_IDX_MODE) else _CHUNK_BYTES
        chunk = in_chunks / convolution.element_bytes
        channels = max(1.0, convolution.channels)
        terms *= ceil(channels / chunk) * chunk / channels
    blocks, at_once = tiles * parts, 1.0
    wide, of_weights = convolution.element_bytes >= 4, convolution.of_weights
    terms /= parts
    if one_by_one and groups > 1:
        rounds = ceil(blocks / gpu.multiprocessors)
        room = costs.blocks_at_once * gpu.multiprocessors / blocks
        until_next = rounds * terms * costs.group_term_seconds / costs.group_interval_seconds
        at_once = max(1.0, min(room, until_next, groups, costs.most_at_once))
        blocks = groups * rounds * gpu.multiprocessors
        if engine is Engine.CUTLASS:
            blocks *= at_once
    wait = 0.0 if of_weights else terms * engine_costs.term_seconds[wide]
    if engine is Engine.AMPERE and knobs.get(_IDX_MODE) and not of_weights:
        wait = terms * costs.indexed_term_seconds
    rates = engine_costs.weights_read_rates if of_weights else engine_costs.read_rates
    if rates is not None:
        read_bytes = (rows + columns) * terms * convolution.element_bytes
        wait = max(wait, read_bytes * gpu.multiprocessors / (rates[wide] * gpu.clocks))
    shares, waves = engine_costs.peak_shares, engine_costs.round_seconds
    if of_weights:
        shares, waves = engine_costs.weights_peak_shares, engine_costs.weights_round_seconds
    share = engine_costs.sliced_share if groups > 1 else 1.0
    if engine is Engine.HOPPER and groups == 1 and not convolution.channels_last:
        share = costs.reordered_share
    return EngineWork(
        engine,
        blocks=blocks,
        block_flops=2 * rows * columns * terms,
        block_wait_seconds=wait,
        block_share=shares[wide],
        round_seconds=waves[wide],
        further_kernels=_further_kernels(convolution, engine, chosen, costs) + split,
        workspace_bytes=chosen.workspace_bytes or 0,
        workspace_share=share,
        at_once=at_once,
    )


def _further_kernels(
    convolution: Convolution, engine: Engine, chosen: _Configuration, costs: Convolutions
) -> float:
    groups = convolution.groups
    if engine is Engine.VECTORS:
        return groups * (1 + costs.pad_kernels * bool(chosen.workspace_bytes)) - 1
    if engine is Engine.REGISTERS:
        return costs.pad_kernels
    of_groups = costs.group_kernels * (groups - 1) if engine is Engine.CUTLASS else 0.0
    if chosen.workspace_bytes == 0 and groups == 1:
        return 0.0  # there is no place for copies
    if convolution.padded:
        more = costs.around_padding_kernels + costs.bias_kernels * chosen.biased
        return costs.pad_kernels * convolution.padded + more + of_groups
    if not convolution.channels_last:
        return costs.reorder_kernels
    narrow = convolution.rows if convolution.of_weights else convolution.channels
    divided = groups > 1 and narrow * convolution.element_bytes % _ALIGNED_BYTES > 0
    return costs.group_kernels * divided + of_groups


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
