"""Constants that were fitted to timed kernels: data of a calibration's file, without a default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xlapipe.files.typed_data import Count, Line
from xlapipe.time.predict.features import Factor, Features, Latency


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
    reach: Factor
    noise: Factor


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
      line_operations: operations of a multiprocessor while it reads a line of its L1 cache.
      overlap_power: parts of the time of kernels that XLA emits overlap, and combine as a norm of
        this power: a plain sum is 15 % further off, the longest part alone 10 %.
      least_share: of the longest part, below which another part adds nothing.
      large_copy_bytes: above which a copy takes longer if its size is not a multiple of a number of
        bytes: each number with its seconds in `rest_seconds`, of which the first counts.
      unprofiled: what of an interval of the host is left without the profiler, by its constant.
      asleep_seconds: the host sleeps in 63 % of calls that take so long.
      contention: share of a second that is lost while a kernel runs beside a collective, as they
        share memory and multiprocessors.
      in_a_step: factor by which kernels that XLA emits take longer in a step than in a probe: the
        median over the development half and the further zoos.
      uncalibrated_ratio, stated_ratio: measured time over the formula's for kinds without timed
        kernels, and for Pallas kernels whose author states the bytes.
      similar: by kind, the first that applies.
      scales: how fast times of a kind change along each coordinate and in a command buffer,
        relative to other kinds: fitted so that each program is predicted best from the others.
      features: constants of features, which all GPUs of a generation share.
    """

    start_seconds: Mapping[Line, Latency]
    product_start_seconds: Latency
    library_start_seconds: Latency
    terms_start_seconds: Latency
    further_kernel_seconds: Latency
    chain_seconds: Mapping[Line, Latency]
    chain_read_seconds: Latency
    serial_seconds: Latency
    cached_serial_seconds: Latency
    step_seconds: Latency
    staged_step_seconds: Latency
    byte_operations: Factor
    element_operations: Factor
    staged_byte_operations: Factor
    staged_element_operations: Factor
    result_operations: Factor
    peak_share: Factor
    peak_shares: Mapping[Line, Factor]
    line_operations: Factor
    overlap_power: Factor
    least_share: Factor
    large_copy_bytes: Count
    rest_seconds: tuple[tuple[Count, Latency], ...]
    unprofiled: Mapping[Line, Factor]
    asleep_seconds: Latency
    contention: Factor
    in_a_step: Factor
    uncalibrated_ratio: Factor
    stated_ratio: Factor
    similar: tuple[Similarity, ...]
    scales: Mapping[Line, Sequence[Factor]]
    features: Features

    def similarity(self, kind: str) -> Similarity:
        """How timed kernels of a kind correct the formula."""
        return next(item for item in self.similar if kind.startswith(item.kind))
