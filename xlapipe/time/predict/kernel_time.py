"""The time of one kernel: a formula, corrected by the most similar kernels that were timed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xlapipe.time.collectives.exchange import Exchange
from xlapipe.time.cost.flops import VECTOR
from xlapipe.time.predict.calibration import Calibration, Constants
from xlapipe.time.predict.convolutions import EngineWork
from xlapipe.time.predict.pallas_work import UNCOUNTED
from xlapipe.time.predict.program_work import ProgramWork
from xlapipe.time.predict.triton_tiles import ProductTile
from xlapipe.time.predict.work import TRIED_SCATTER, KernelWork

CALIBRATED, SCALED, ASSUMED, TIMED = "calibrated", "scaled", "assumed", "timed"
# float16 has the peak of bfloat16, and so on, as in `Device.peak_of`.
_SAME_PEAK = {"f16": "bf16", "f32": "tf32", "u8": "s8", "c64": "tf32", "c128": "f64"}
# Library calls whose time grows smoothly with size, over orders of magnitude, and the length scale
# of their kriging: the calibrations' kernels predict each other best with these.
_SMOOTH_REACHES = {"__cudnn$fmha": 20.0, "cusparse": 20.0, "__gpu$TopK": 9.0, "cusolver": 9.0}
# Length scale of the kriging, and noise between equal kernels, by kind. Coordinates describe
# kernels that XLA emits less completely than libraries' kernels.
_REACH = 11.0
_NOISE, _SMOOTH_NOISE, _FUSED_NOISE = 0.2, 0.1, 0.5
_BY_XLA = ("loop", "input")
_FUSED = (*_BY_XLA, "triton", "custom")
_COPY, _COPY_REACH = "copy", 2.5
# Kernels that XLA emits take longer in a step than in the small programs of a calibration: the
# median over the programs of the development half and of the further zoos (docs/time.md).
_IN_A_STEP = 1.03
# A larger copy takes this much longer if its size is not a multiple of these bytes.
_LARGE_COPY, _RESTS = 1 << 20, ((64, 2.5e-6), (4096, 0.7e-6))
# Factor by which uncorrected formulas are too short on average; smaller for Pallas kernels whose
# author states the bytes, of which three that read 1 to 7 GB were timed.
_UNCALIBRATED_RATIO, _STATED_RATIO = 1.3, 1.1
_COLD_BYTES = 256
# Blocks of a product by cuBLAS, or of a convolution, reach this share of the peak.
_BLOCKS_SHARE = 0.8
_BLOCKS_SHARE_OF = {"cublas f32 exact": 0.12}
# Triton products, fitted to 1,891 timed ones: latency of a step; simple operations of a
# multiprocessor that take as long as a byte read, and as an element read alone, each with one
# pipeline stage or several; and as an element of the result; shares of the peak.
_STEP_SECONDS, _STEP_SECONDS_IN_STAGES = 0.09e-6, 0.32e-6
_OPERATIONS_OF_A_BYTE, _OPERATIONS_OF_A_BYTE_IN_STAGES = 5.2, 3.0
_OPERATIONS_OF_AN_ELEMENT_ALONE, _OPERATIONS_OF_ONE_ALONE_IN_STAGES = 6.0, 9.0
_OPERATIONS_OF_A_RESULT = 3.6
_STEPS_SHARE_OF = {"triton f32": 0.26, "triton bf16": 0.7}
# Latency of a thread's dependent access to device memory, and to the L2 cache.
_SERIAL_SECONDS, _CACHED_SERIAL_SECONDS = 30e-9, 18e-9
# Latency until a kernel's threads have their first elements, by prefix of its kind.
_START_SECONDS = {
    f"input {TRIED_SCATTER}": 1.5e-6,
    "input column reduction": 0.6e-6,
    "input": 0.3e-6,
    "loop": 0.2e-6,
}
_START_OF_A_PRODUCT, _START_OF_A_LIBRARY = 0.4e-6, 2.5e-6
# An additional kernel of a library call, such as one that pads an array.
_FURTHER_KERNEL_SECONDS = 1.6e-6
_START_OF_TERMS = 1e-6
# Latency of an operation in a thread's dependent chain, partly hidden by other operations, by
# prefix of the kind; and of a read in a sum, which waits for the L1 cache.
_WAITING_SECONDS = {
    "input column reduction": 2e-9,
    "input": 0.5e-9,
    "loop reduce-window": 1.5e-9,
    "loop row reduction": 2e-9,
    "loop column reduction": 2e-9,
    "loop": 3e-9,
}
_READ_SECONDS = 10e-9
# Parts of the time of XLA-emitted kernels overlap partly: they combine as a norm of this power.
# Fitted to the calibrations: a plain sum is 15 % further off, the longest part alone 10 %.
_POWER = 4.0
_LEAST_SHARE = 1 / 8  # of the longest part: less adds nothing
# Share of the bandwidth that isolated sectors of device memory reach.
_FAR_SHARE = 0.3
# Bytes per second of sectors that are written in parts (uncoalesced writes).
_SCATTERED_RATE = 3.1e12
# Operations that a multiprocessor does while it reads a line of its L1 cache, in half a cycle.
_OPERATIONS_OF_A_LINE = 64


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a kernel's time.

    Attributes:
      reason: in words, e.g. `12.4 MB at 4.2 TB/s`.
    """

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The predicted time of one launch.

    Attributes:
      parts: launch, first elements or tiles, first read from memory, the longest of bytes,
        operations and threads, and what blocks and L1 cache lines add to it.
      ratio: time of similar timed kernels as a multiple of the sum of the parts.
      basis: `timed`, `calibrated`, `table`, `scaled`, `datasheet` or `assumed`.
      spread: standard deviation of the logarithm of the ratio.
      launches: number of kernels that run for it.
      nearest: programs of the calibration with the most similar kernels.
      in_a_step: factor by which it takes longer in a step than alone.
    """

    seconds: float
    parts: tuple[Part, ...]
    ratio: float
    basis: str
    spread: float
    launches: float = 1.0
    nearest: tuple[str, ...] = ()
    in_a_step: float = 1.0


def parts_of(work: KernelWork, cached_bytes: float, constants: Constants) -> tuple[Part, ...]:
    """The parts of a launch's time by the formula alone."""
    parts = [Part(constants.launch_seconds, "launch"), *_start(work)]
    uncached = work.touched_bytes - cached_bytes
    if work.read_bytes - cached_bytes > _COLD_BYTES:
        parts.append(Part(constants.cold_seconds, "first read from device memory"))
    memory = uncached / constants.bandwidth + cached_bytes / constants.l2_bandwidth
    text = f"{uncached / 1e6:,.2f} MB at {constants.bandwidth / 1e12:.2f} TB/s"
    if cached_bytes:
        rate = constants.l2_bandwidth / 1e12
        text += f" and {cached_bytes / 1e6:,.2f} MB of the L2 cache at {rate:.2f} TB/s"
    if work.far_sector_bytes:
        memory += work.far_sector_bytes / (_FAR_SHARE * constants.bandwidth)
        text += f" and {work.far_sector_bytes / 1e6:,.2f} MB of sectors of device memory"
    sides = [Part(memory, text), *_of_operations(work, constants)]
    if work.sector_bytes:
        all_bytes = work.touched_bytes + work.sector_bytes
        rate = constants.l2_bandwidth
        text = f"{all_bytes / 1e6:,.2f} MB of sectors of the L2 cache at {rate / 1e12:.2f} TB/s"
        sides.append(Part(all_bytes / rate, text))
    if work.kind.startswith(_BY_XLA):
        sides += _of_threads(work, cached_bytes, constants)
    if work.engine is not None:
        seconds = work.engine.serial_seconds
        text = f"{seconds * 1e6:,.1f} µs of terms that a thread adds one after another"
        sides.append(Part(seconds, text))
    if work.link_bytes:
        rate = constants.link_bandwidth
        text = f"{work.link_bytes / 1e6:,.2f} MB to other GPUs at {rate / 1e9:,.0f} GB/s"
        sides.append(Part(work.link_bytes / rate, text))
    if work.program is not None:
        text = f"{work.update_seconds * 1e6:,.1f} µs of updates by the L2 cache"
        sides += [_program_part(work.program, constants), Part(work.update_seconds, text)]
    if work.kind.startswith(_BY_XLA) or work.program is not None:
        parts += _together(sides, _POWER)
    else:
        longest = max(sides, key=lambda part: part.seconds)
        beside = [_block_part(work, constants)] if work.blocks else []
        beside += [_tile_part(work, work.tile, constants)] if work.tile is not None else []
        # They overlap only partly: combine them as sides of a right triangle.
        parts += _together([longest, *beside], 2)
    if work.engine is not None and (work.engine.further_kernels or work.engine.workspace_bytes):
        parts.append(_further_part(work.engine, constants))
    return tuple(parts)


def _of_operations(work: KernelWork, constants: Constants) -> Iterator[Part]:
    flops = sum(count for name, count in work.flops.items() if name != VECTOR)
    if flops:
        seconds = sum(
            count / _peak(name, constants) for name, count in work.flops.items() if name != VECTOR
        )
        rate = flops / seconds / 1e12
        yield Part(seconds, f"{flops:,} operations at {rate:,.0f} TFLOP/s")
    rate = constants.operation_rate
    text = f"{work.operations:,.0f} operations on elements at {rate / 1e12:.1f} T/s"
    yield Part(work.operations / rate, text)
    rate = constants.thread_rate
    started = work.threads + work.missing_threads
    yield Part(started / rate, f"{work.threads:,} threads at {rate / 1e12:.2f} T/s")


def _of_threads(work: KernelWork, cached_bytes: float, constants: Constants) -> Iterator[Part]:
    """Parts of XLA-emitted kernels by scattered writes, updates, latency, and L1 cache lines."""
    if work.scattered_bytes:
        text = f"{work.scattered_bytes / 1e6:,.2f} MB of sectors that are written in parts"
        yield Part(work.scattered_bytes / (_SCATTERED_RATE * work.gpu.vector), text)
    if work.updates is not None:
        seconds = work.updates.seconds
        yield Part(seconds, f"{seconds * 1e6:,.1f} µs of updates by the L2 cache")
    if work.serial_accesses:
        cached = min(1.0, cached_bytes / max(1, work.read_bytes))
        each = cached * _CACHED_SERIAL_SECONDS + (1 - cached) * _SERIAL_SECONDS
        text = f"{work.serial_accesses:,.0f} accesses of each thread, one after another"
        yield Part(work.serial_accesses * each, text)
    each = next(seconds for kind, seconds in _WAITING_SECONDS.items() if work.kind.startswith(kind))
    chain = work.chain_operations * each + work.chain_reads * _READ_SECONDS
    text = f"{work.chain_operations:,.0f} operations of a thread, one after another"
    if work.chain_reads:
        text += f", with {work.chain_reads:,.0f} reads"
    yield Part(chain, text)
    if work.apart_seconds:
        text = f"{work.apart_seconds * 1e6:,.1f} µs of reads in branches, one after another"
        yield Part(work.apart_seconds, text)
    lines = work.lines * _OPERATIONS_OF_A_LINE / constants.operation_rate
    yield Part(lines, f"{work.lines:,.0f} lines of the L1 caches")


def _together(sides: Sequence[Part], power: float) -> Iterator[Part]:
    """The longest part, and what each other one adds, since parts overlap only partly."""
    ordered = sorted(sides, key=lambda part: -part.seconds)
    yield ordered[0]
    total = ordered[0].seconds
    for part in ordered[1:]:
        if part.seconds > _LEAST_SHARE * total:
            more = (total**power + part.seconds**power) ** (1 / power) - total
            yield Part(more, f"more, for {part.reason}")
            total += more


def _start(work: KernelWork) -> list[Part]:
    if work.kind == _COPY and work.written_bytes > _LARGE_COPY:
        for number, seconds in _RESTS:
            if work.written_bytes % number:
                return [Part(seconds, f"a rest that is no multiple of {number:,} B")]
        return []
    for kind, seconds in _START_SECONDS.items():
        if work.kind.startswith(kind):
            return [Part(seconds, "first elements")]
    if work.engine is not None and work.engine.serial_seconds:
        return [Part(_START_OF_TERMS, "first terms")]
    if any(name != VECTOR for name in work.flops) and work.program is None:
        by_triton = work.kind.startswith("triton")
        return [Part(_START_OF_A_PRODUCT if by_triton else _START_OF_A_LIBRARY, "first tiles")]
    return []


def _block_part(work: KernelWork, constants: Constants) -> Part:
    """Time in which waves of blocks compute. In the last wave, some multiprocessors are idle."""
    rounds = math.ceil(work.blocks / work.gpu.multiprocessors)
    of = f"by each of {work.blocks:,.0f} blocks in {rounds:,} rounds"
    name = max(work.flops, key=lambda name: work.flops[name])
    share = _BLOCKS_SHARE_OF.get(work.kind, _BLOCKS_SHARE)
    between = waited = 0.0
    if work.engine is not None:
        share, between = work.engine.block_share, rounds * work.engine.round_seconds
        waited = work.engine.block_wait_seconds
    rate = share * _peak(name, constants) / work.gpu.multiprocessors
    computed = rounds * work.block_flops / rate
    text = f"{work.block_flops:,.0f} operations {of}"
    if waited > computed:
        text += f", which wait {waited * 1e6:,.1f} µs for their terms"
    return Part(max(computed, waited) + between, text)


def _further_part(engine: EngineWork, constants: Constants) -> Part:
    """Time of kernels that pad or reorder arrays: they write and read the workspace once each."""
    text = f"about {engine.further_kernels:,.0f} further kernels of the library"
    if engine.workspace_bytes:
        text += f", which move {engine.workspace_bytes / 1e6:,.2f} MB"
        if engine.workspace_share < 1:
            text += f" at {engine.workspace_share:.0%} of the bandwidth"
    moved = 2 * engine.workspace_bytes / (engine.workspace_share * constants.bandwidth)
    return Part(engine.further_kernels * _FURTHER_KERNEL_SECONDS + moved, text)


def _tile_part(work: KernelWork, tile: ProductTile, constants: Constants) -> Part:
    """Time of a Triton product's blocks, step after step.

    Several blocks are resident on a multiprocessor: some compute while others wait.
    """
    multiprocessors = work.gpu.multiprocessors
    rounds = math.ceil(tile.blocks / multiprocessors)
    at_once = max(1.0, min(tile.resident, tile.blocks / multiprocessors))
    operation = multiprocessors / constants.operation_rate
    name = max(work.flops, key=lambda name: work.flops[name])
    rate = _STEPS_SHARE_OF.get(work.kind, 1.0) * _peak(name, constants) / multiprocessors
    latency, of_a_byte = _STEP_SECONDS_IN_STAGES, _OPERATIONS_OF_A_BYTE_IN_STAGES
    alone = _OPERATIONS_OF_ONE_ALONE_IN_STAGES
    if tile.stages == 1:
        latency, of_a_byte = _STEP_SECONDS, _OPERATIONS_OF_A_BYTE
        alone = _OPERATIONS_OF_AN_ELEMENT_ALONE
    step = max(
        latency / at_once,
        tile.step_bytes * of_a_byte * operation,
        tile.step_flops / rate,
    )
    step += tile.misaligned * alone * operation
    written = tile.area * _OPERATIONS_OF_A_RESULT * operation
    text = f"{tile.steps:,} steps of {tile.step_bytes / 1e3:,.1f} kB of each of "
    text += f"{tile.blocks:,.0f} blocks in {rounds:,} rounds"
    if tile.misaligned:
        text += ", with rows that do not start at multiples of 16 bytes"
    return Part(rounds * (tile.steps * step + written), text)


def _program_part(program: ProgramWork, constants: Constants) -> Part:
    """Time of the programs of a Pallas kernel's grid."""
    seconds = program.seconds(constants.operation_rate, lambda name: _peak(name, constants))
    text = f"{program.programs:,} programs of {program.steps:,.0f} steps in "
    text += f"{program.rounds:,.1f} rounds of {program.resident:,.1f} on each multiprocessor"
    return Part(seconds, text)


def _peak(element_type: str, constants: Constants) -> float:
    name = _SAME_PEAK.get(element_type, element_type)
    if name.startswith(("f8", "f4")):
        name = name[:2]
    return constants.peak_flops.get(name) or constants.operation_rate


def formula_seconds(work: KernelWork, cached_bytes: float, constants: Constants) -> float:
    """Sum of the parts."""
    return sum(part.seconds for part in parts_of(work, cached_bytes, constants))


def measured_time(seconds: float) -> KernelTime:
    """The time of a kernel that was timed before."""
    # The median difference of equal kernels of two sessions is 1 %, and some differ by more.
    return KernelTime(seconds, (Part(seconds, "timed before"),), 1.0, TIMED, 0.03)


def exchange_time(exchange: Exchange) -> KernelTime:
    """The time of a collective that no calibration has."""
    parts = tuple(Part(seconds, reason) for seconds, reason in exchange.parts)
    return KernelTime(exchange.seconds, parts, 1.0, exchange.basis, exchange.spread)


def least_time(floor_seconds: float, constants: Constants) -> KernelTime:
    """The lower bound of the time of a launch of unknown work."""
    parts = (Part(constants.launch_seconds, "launch"), Part(floor_seconds, "the floor"))
    return KernelTime(sum(part.seconds for part in parts), parts, 1.0, ASSUMED, 0.4)


def time_of(
    work: KernelWork, cached_bytes: float, in_graph: bool, calibration: Calibration
) -> KernelTime:
    """The predicted time of one launch."""
    parts = parts_of(work, cached_bytes, calibration.constants)
    seconds = sum(part.seconds for part in parts)
    timed = calibration.of_kind(work.kind)
    if not timed.lines or timed.coordinates != len(work.point):
        stated = work.kind.startswith(UNCOUNTED) and not work.partly_unknown
        ratio = _STATED_RATIO if stated else _UNCALIBRATED_RATIO
        return KernelTime(seconds * ratio, parts, ratio, ASSUMED, 0.4)
    # numpy takes longer to start than most commands that predict no time.
    from xlapipe.time.predict.interpolation import interpolated

    reach, noise = _reach_and_noise(work.kind)
    logarithm, spread, nearest = interpolated(work.point, in_graph, timed, reach, noise)
    basis = SCALED if calibration.scaled_from or nearest[0].device else CALIBRATED
    if work.partly_unknown:
        basis = ASSUMED
    ratio = math.exp(logarithm)
    in_a_step = _IN_A_STEP if work.kind.startswith(_FUSED) else 1.0
    closest = nearest[:3]
    launches = math.prod(kernel.launches for kernel in closest) ** (1 / len(closest))
    names = tuple(dict.fromkeys(kernel.program for kernel in nearest))[:3]
    if work.updates is not None:
        ratio = min(ratio, work.updates.most_seconds / seconds / in_a_step)
    seconds *= ratio * in_a_step
    return KernelTime(seconds, parts, ratio, basis, spread, launches, names, in_a_step)


def _reach_and_noise(kind: str) -> tuple[float, float]:
    if kind.startswith(_COPY):
        return _COPY_REACH, _FUSED_NOISE
    if kind.startswith(_FUSED):
        return _REACH, _FUSED_NOISE
    for smooth, reach in _SMOOTH_REACHES.items():
        if kind.startswith(smooth):
            return reach, _SMOOTH_NOISE
    return _REACH, _NOISE
