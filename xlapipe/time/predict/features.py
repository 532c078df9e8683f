"""Constants of features: how long parts of a kernel take that no time of the kernel isolates.

Timed kernels keep features, so these are one set for all GPUs of a generation: that of the H200's
calibration file.
Operations are simple float32 operations of the whole GPU that take as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from msgspec import Meta

from xlapipe.files.typed_data import Line
from xlapipe.plans.short_repr import short_repr

# Plausible ranges: seconds of a latency, a factor or a number, operations, bytes per second.
Latency: TypeAlias = Annotated[float, Meta(ge=0, le=0.1)]
Factor: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
Operations: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Rate: TypeAlias = Annotated[float, Meta(ge=1e6, le=1e20)]


@dataclass(frozen=True, kw_only=True)
class TileEngine:
    """An engine of cuDNN that computes tiles. Pairs are for elements of 16 and of 32 bits.

    Attributes:
      peak_shares, weights_peak_shares: of the tensor cores' peak that blocks reach, in forward
        passes and gradients of inputs, and in gradients of weights.
      term_seconds: latency per term of the only block on a multiprocessor; none in gradients of
        weights.
      round_seconds, weights_round_seconds: that each wave of blocks takes in addition.
      read_rates, weights_read_rates: bytes per second of both operands that all blocks read
        together, where that limits them.
      sliced_share: of the bandwidth that copies of one group's channels reach.
    """

    peak_shares: tuple[Factor, Factor]
    weights_peak_shares: tuple[Factor, Factor]
    term_seconds: tuple[Latency, Latency]
    round_seconds: tuple[Latency, Latency]
    weights_round_seconds: tuple[Latency, Latency]
    read_rates: tuple[Rate, Rate] | None = None
    weights_read_rates: tuple[Rate, Rate] | None = None
    sliced_share: Factor = 1.0


@dataclass(frozen=True, kw_only=True)
class TermEngine:
    """An engine of cuDNN whose threads add terms one after another.

    Attributes:
      term_seconds: latency per term.
      result_seconds, result_term_seconds: throughput per result, and per term of each for elements
        of 16 and of 32 bits.
      position_seconds: latency per term of a gradient of weights, a position of the images.
    """

    term_seconds: Latency
    result_seconds: Latency
    result_term_seconds: tuple[Latency, Latency]
    position_seconds: Latency


@dataclass(frozen=True, kw_only=True)
class Convolutions:
    """Convolutions by cuDNN.

    Attributes:
      tiles, terms: engines with tiles and without, by the name of the engine.
      indexed_term_seconds: latency per indexed term on Ampere's tensor cores.
      least_terms: of a part of the sum of a gradient of weights, which blocks divide (split-K).
      pad_kernels, around_padding_kernels, reorder_kernels, group_kernels, bias_kernels,
        split_kernels, transform_kernels: additional kernels that pad one array's channels, unpack
        a copy, reorder dimensions, split groups, do all of it for a bias, split a sum and add its
        parts, and do Fourier transforms of one group; in kernels that only pad.
      transform_share, reordered_share: of the bandwidth that transforms reach, and copies with
        another order of dimensions around tiles of Hopper's tensor cores.
      short_groups: factor by which 16-bit groups that run one after another take longer.
      beside_term_seconds, beside_result_term_seconds, beside_tile: 16-bit groups that run
        concurrently with an engine that no tuner chose: latency per term of one, throughput per
        term of each result, and channels of a tile.
      most_at_once, blocks_at_once, group_term_seconds, group_interval_seconds: groups that run
        concurrently at most, resident blocks of a multiprocessor, seconds per term, and seconds
        between two launches. From 60 grouped convolutions on an H100.
      parts_seconds, part_seconds, part_of_a_sum_seconds: partial sums in a workspace (gradient of
        weights of a depthwise convolution): until they are added up, per element of the images,
        and per sum that it is in.
    """

    tiles: Mapping[Line, TileEngine]
    terms: Mapping[Line, TermEngine]
    indexed_term_seconds: Latency
    least_terms: Factor
    pad_kernels: Factor
    around_padding_kernels: Factor
    reorder_kernels: Factor
    group_kernels: Factor
    bias_kernels: Factor
    split_kernels: Factor
    transform_kernels: Factor
    transform_share: Factor
    reordered_share: Factor
    short_groups: Factor
    beside_term_seconds: Latency
    beside_result_term_seconds: Latency
    beside_tile: int
    most_at_once: Factor
    blocks_at_once: Factor
    group_term_seconds: Latency
    group_interval_seconds: Latency
    parts_seconds: Latency
    part_seconds: Latency
    part_of_a_sum_seconds: Latency


@dataclass(frozen=True, kw_only=True)
class Scatters:
    """Updates of scatters by the L2 cache.

    Attributes:
      added_seconds, far_added_seconds: per sector of atomic adds to an array that fits in the L2
        cache, and to one that does not: with one element of the sector updated, and with all eight.
      tried_seconds, tried_together_seconds: the same of compare-and-swap loops: one element of a
        sector, and several.
      read_seconds: the same of a maximum or minimum that leaves the stored value unchanged.
      sector_seconds, element_seconds: until a sector, and one element, can take its next update.
      meeting_seconds: per row that contends with another for one index.
      waiting_seconds, waiting_of_several_seconds, waiting_in_one_seconds: of each further update of
        a destination in a compare-and-swap loop, per competing update: threads with one update,
        with several, and if there is only one destination. Of 72 scatters on an H100, half are
        within 10 %, nine of ten within a factor of 2.
      tried_at_once: elements of threads with several updates that reach a sector together.
      word_factor: by which 16-bit elements take longer if each has its own thread.
      gradient_share: of the time of random updates that those of gradients take: they change the
        stored values less often (0.5 to 0.7 in four steps).
      position_seconds, heads: of a row of a relative-position bias at most (16 to 47 ns in two
        steps), and elements of such a row at most.
    """

    added_seconds: tuple[Latency, Latency]
    far_added_seconds: tuple[Latency, Latency]
    tried_seconds: Latency
    tried_together_seconds: Latency
    read_seconds: tuple[Latency, Latency]
    sector_seconds: Latency
    element_seconds: Latency
    meeting_seconds: Latency
    waiting_seconds: Latency
    waiting_of_several_seconds: Latency
    waiting_in_one_seconds: Latency
    tried_at_once: Factor
    word_factor: Factor
    gradient_share: Factor
    position_seconds: Latency
    heads: int


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """Calls of solvers, sorts and selections, in operations.

    Attributes:
      top_compared, top_merged: TopK: an element that a thread compares with one result, and the
        merge of the results of 1,024 threads.
      row_alone, row, row_of_many, element_of_many, term: triangular solve: a row for one right-hand
        side, for several, and of a batch; an element of a batch's solution, and a term of a row for
        one right-hand side.
      system: a right-hand side of a tridiagonal solve; cuSPARSE solves one after another.
      rows_start, sorted_element, sorted_byte: CUB's radix sort of several rows: fixed, per element,
        and per byte of it.
      passes_start, passes, passed_element, passed_byte: the same of one row: fixed, passes over
        32-bit keys, per element in them, and per byte of it.
      sort_step, compared: XLA's sort: a step in one block, and least of an element, since each
        short sort has its own block.
    """

    top_compared: Operations
    top_merged: Operations
    row_alone: Operations
    row: Operations
    row_of_many: Operations
    element_of_many: Operations
    term: Operations
    system: Operations
    rows_start: Operations
    sorted_element: Operations
    sorted_byte: Operations
    passes_start: Operations
    passes: Operations
    passed_element: Operations
    passed_byte: Operations
    sort_step: Operations
    compared: Operations


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Programs of Pallas kernels: from 573 kernels that an H100 ran.

    Attributes:
      product_seconds, unstaged_product_seconds, load_seconds, ordered_seconds: latency of a loop
        trip: products whose operands are loaded ahead (pipelined), other products, loads without
        products, and loads in loops that also store.
      reduction_seconds: latency of a reduction.
      loaded_byte_seconds, added_element_seconds: with four warps, latency per byte that the only
        resident block loads, and per element that it adds to device memory.
      fewer_warps_power: by which the latency of loads grows with fewer warps.
      alone_factor: by which operations of the only resident block take longer, since it stalls.
      byte_seconds: of a multiprocessor.
      peak_shares: that products reach, by type; all of it of others.
      thread_registers, held_registers: registers beside arrays, and beyond which words are spilled:
        stored and loaded in each trip of a loop.
      spilled_word_seconds: of such a word.
      byte_alone_operations, byte_operations: of a kernel whose code is unknown: a byte that one
        warp reads, as the only warp of its block or not.
      l1_share: of the time of a byte that the L1 cache holds, as a small array that all load.
      scattered_seconds, line_seconds, lines_at_once: of the L2 cache, per element that is updated
        alone, per line of adjacent ones, and lines that it updates at once.
    """

    product_seconds: Latency
    unstaged_product_seconds: Latency
    load_seconds: Latency
    ordered_seconds: Latency
    reduction_seconds: Latency
    loaded_byte_seconds: Latency
    added_element_seconds: Latency
    fewer_warps_power: Factor
    alone_factor: Factor
    byte_seconds: Latency
    peak_shares: Mapping[Line, Factor]
    thread_registers: Factor
    held_registers: Factor
    spilled_word_seconds: Latency
    byte_alone_operations: Operations
    byte_operations: Operations
    l1_share: Factor
    scattered_seconds: Latency
    line_seconds: Latency
    lines_at_once: int


@dataclass(frozen=True, kw_only=True)
class Features:
    """Constants of features, by library."""

    __repr__ = short_repr

    convolutions: Convolutions
    scatters: Scatters
    libraries: Libraries
    programs: Programs
