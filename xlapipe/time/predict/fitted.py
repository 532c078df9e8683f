"""Constants that were fitted to timed kernels: data of a calibration's file, without a default.

`tests/gpu/calibration/fit_constants.py` prints how far each is from what fits a record best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from msgspec import Meta

from xlapipe.files.typed_data import Count, Line

# Plausible ranges: seconds of a latency, a share or a factor, a rate of any processor.
_Latency: TypeAlias = Annotated[float, Meta(ge=0, le=0.1)]
_Factor: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
_Rate: TypeAlias = Annotated[float, Meta(ge=1e6, le=1e20)]


@dataclass(frozen=True, slots=True)
class Similarity:
    """How timed kernels of a kind correct the formula for similar ones, by kriging.

    Attributes:
      kind: or the beginning of several.
      reach: length scale: how far similar kernels may be from each other. Calls of libraries whose
        time grows smoothly over orders of magnitude have a long one.
      noise: deviation of the logarithm between equal kernels. Coordinates describe kernels that XLA
        emits less completely than libraries' kernels.
    """

    kind: Line
    reach: _Factor
    noise: _Factor


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Latencies, shares and factors of the formulas; those by kind go by its beginning.

    Attributes:
      start_seconds: until threads of a kernel that XLA emits have their first elements.
      product_start_seconds, library_start_seconds, terms_start_seconds: the same of a product by
        Triton, of one by a library, and of an engine whose threads add terms one by one.
      further_kernel_seconds: of an additional kernel of a library call, which pads or reorders.
      chain_seconds: latency of an operation in a thread's dependent chain, which other warps hide
        in part.
      chain_read_seconds: of a read in a sum, which waits for the L1 cache.
      serial_seconds, cached_serial_seconds: latency of a thread's dependent access to device
        memory, and to the L2 cache.
      step_seconds, staged_step_seconds: latency of a step of a Triton product, with one pipeline
        stage and with several.
      byte_operations, element_operations, staged_byte_operations, staged_element_operations: simple
        operations of a multiprocessor that take as long as a byte that such a step reads, and as an
        element that it reads alone.
      result_operations: the same of an element of the result.
      peak_shares: of the peak that blocks of a kind of product reach; else `peak_share` of library
        calls, and all of it by Triton.
      isolated_share: of the bandwidth that isolated sectors of device memory reach.
      partial_sector_rate: bytes per second of sectors that are written in parts (uncoalesced).
      line_operations: operations of a multiprocessor while it reads a line of its L1 cache.
      overlap_power: parts of the time of kernels that XLA emits overlap, and combine as a norm of
        this power: a plain sum is 15 % further off, the longest part alone 10 %.
      least_share: of the longest part, below which another part adds nothing.
      large_copy_bytes: above which a copy takes longer if its size is not a multiple of a number of
        bytes: each number with its seconds in `rest_seconds`, of which the first counts.
      in_a_step: factor by which kernels that XLA emits take longer in a step than in a probe: the
        median over the development half and the further zoos.
      uncalibrated_ratio, stated_ratio: measured time over the formula's for kinds without timed
        kernels, and for Pallas kernels whose author states the bytes.
      similar: by kind, the first that applies.
      scales: how fast times of a kind change along each coordinate and in a command buffer,
        relative to other kinds: fitted so that each program is predicted best from the others.
    """

    start_seconds: Mapping[Line, _Latency]
    product_start_seconds: _Latency
    library_start_seconds: _Latency
    terms_start_seconds: _Latency
    further_kernel_seconds: _Latency
    chain_seconds: Mapping[Line, _Latency]
    chain_read_seconds: _Latency
    serial_seconds: _Latency
    cached_serial_seconds: _Latency
    step_seconds: _Latency
    staged_step_seconds: _Latency
    byte_operations: _Factor
    element_operations: _Factor
    staged_byte_operations: _Factor
    staged_element_operations: _Factor
    result_operations: _Factor
    peak_share: _Factor
    peak_shares: Mapping[Line, _Factor]
    isolated_share: _Factor
    partial_sector_rate: _Rate
    line_operations: _Factor
    overlap_power: _Factor
    least_share: _Factor
    large_copy_bytes: Count
    rest_seconds: tuple[tuple[Count, _Latency], ...]
    in_a_step: _Factor
    uncalibrated_ratio: _Factor
    stated_ratio: _Factor
    similar: tuple[Similarity, ...]
    scales: Mapping[Line, Sequence[_Factor]]

    def similarity(self, kind: str) -> Similarity:
        """How timed kernels of a kind correct the formula."""
        return next(item for item in self.similar if kind.startswith(item.kind))
