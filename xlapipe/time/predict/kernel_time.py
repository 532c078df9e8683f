"""The time of one kernel: a formula, corrected by the most similar kernels that were timed."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xlapipe.plans.short_repr import short_repr
from xlapipe.time.collectives.exchange import Exchange
from xlapipe.time.cost.flops import VECTOR
from xlapipe.time.predict.calibration import Calibration, Constants
from xlapipe.time.predict.convolutions import EngineWork
from xlapipe.time.predict.fitted import Fitted
from xlapipe.time.predict.pallas_work import UNCOUNTED
from xlapipe.time.predict.program_work import ProgramWork
from xlapipe.time.predict.triton_tiles import ProductTile
from xlapipe.time.predict.work import KernelWork

CALIBRATED, SCALED, ASSUMED = "calibrated", "scaled", "assumed"
PUBLISHED = "published"
LAUNCH = "launch"
# float16 has the peak of bfloat16, and so on, as in `Device.peak_of`.
_SAME_PEAK = {"f16": "bf16", "f32": "tf32", "u8": "s8", "c64": "tf32", "c128": "f64"}
_BY_XLA = ("loop", "input")
_FUSED = (*_BY_XLA, "triton", "custom")
_COPY = "copy"
# Bytes that no kernel reads from device memory: a few scalars.
_COLD_BYTES = 256


@dataclass(frozen=True, slots=True)
class TimePart:
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
      basis: `calibrated`, `table`, `scaled`, `datasheet` or `assumed`.
      spread: standard deviation of the logarithm of the ratio.
      launches: number of kernels that run for it.
      nearest: programs of the calibration with the most similar kernels.
      in_a_step: factor by which it takes longer in a step than alone.
      sustained: factor by which it takes longer at the GPU's limit of power.
    """

    __repr__ = short_repr

    seconds: float
    parts: tuple[TimePart, ...]
    ratio: float
    basis: str
    spread: float
    launches: float = 1.0
    nearest: tuple[str, ...] = ()
    in_a_step: float = 1.0
    sustained: float = 1.0


def parts_of(work: KernelWork, cached_bytes: float, constants: Constants) -> tuple[TimePart, ...]:
    """The parts of a launch's time by the formula alone."""
    parts = [TimePart(constants.launch_seconds, LAUNCH), *_start(work, constants.fitted)]
    uncached = work.touched_bytes - cached_bytes
    if work.read_bytes - cached_bytes > _COLD_BYTES:
        parts.append(TimePart(constants.cold_seconds, "first read from device memory"))
    memory = uncached / constants.bandwidth + cached_bytes / constants.l2_bandwidth
    text = f"{uncached / 1e6:,.2f} MB at {constants.bandwidth / 1e12:.2f} TB/s"
    if cached_bytes:
        rate = constants.l2_bandwidth / 1e12
        text += f" and {cached_bytes / 1e6:,.2f} MB of the L2 cache at {rate:.2f} TB/s"
    sides = [TimePart(memory, text), *_operation_parts(work, constants)]
    if work.sector_bytes:
        all_bytes = work.touched_bytes + work.sector_bytes
        rate = constants.l2_bandwidth
        text = f"{all_bytes / 1e6:,.2f} MB of sectors of the L2 cache at {rate / 1e12:.2f} TB/s"
        sides.append(TimePart(all_bytes / rate, text))
    if work.kind.startswith(_BY_XLA):
        sides += _thread_parts(work, cached_bytes, constants)
    if work.engine is not None:
        seconds = work.engine.serial_seconds
        text = f"{seconds * 1e6:,.1f} µs of terms that a thread adds one after another"
        sides.append(TimePart(seconds, text))
    if work.link_bytes:
        rate = constants.link_bandwidth
        text = f"{work.link_bytes / 1e6:,.2f} MB to other GPUs at {rate / 1e9:,.0f} GB/s"
        sides.append(TimePart(work.link_bytes / rate, text))
    if work.program is not None:
        updates = work.program.update_seconds
        text = f"{updates * 1e6:,.1f} µs of updates by the L2 cache"
        sides += [_program_part(work.program, constants), TimePart(updates, text)]
    if work.kind.startswith(_BY_XLA) or work.program is not None:
        parts += _together(sides, constants.fitted.overlap_power, constants.fitted)
    else:
        longest = max(sides, key=lambda part: part.seconds)
        beside = [_block_part(work, constants)] if work.blocks else []
        beside += [_tile_part(work, work.tile, constants)] if work.tile is not None else []
        # They overlap only partly: combine them as sides of a right triangle.
        parts += _together([longest, *beside], 2, constants.fitted)
    if work.engine is not None and (work.engine.further_kernels or work.engine.workspace_bytes):
        parts.append(_further_part(work.engine, constants))
    return tuple(parts)


def _operation_parts(work: KernelWork, constants: Constants) -> Iterator[TimePart]:
    flops = sum(count for name, count in work.flops.items() if name != VECTOR)
    if flops:
        seconds = sum(
            count / _peak(name, constants) for name, count in work.flops.items() if name != VECTOR
        )
        rate = flops / seconds / 1e12
        yield TimePart(seconds, f"{flops:,} operations at {rate:,.0f} TFLOP/s")
    rate = constants.operation_rate
    text = f"{work.operations:,.0f} operations on elements at {rate / 1e12:.1f} T/s"
    yield TimePart(work.operations / rate, text)
    rate = constants.thread_rate
    yield TimePart(work.threads / rate, f"{work.threads:,} threads at {rate / 1e12:.2f} T/s")


def _thread_parts(
    work: KernelWork, cached_bytes: float, constants: Constants
) -> Iterator[TimePart]:
    """Parts of XLA-emitted kernels by updates, latency, and L1 cache lines."""
    fitted = constants.fitted
    if work.updates is not None:
        seconds = work.updates.seconds
        yield TimePart(seconds, f"{seconds * 1e6:,.1f} µs of updates by the L2 cache")
    if work.serial_accesses:
        cached = min(1.0, cached_bytes / max(1, work.read_bytes))
        step_seconds = cached * fitted.cached_serial_seconds + (1 - cached) * fitted.serial_seconds
        text = f"{work.serial_accesses:,.0f} accesses of each thread, one after another"
        yield TimePart(work.serial_accesses * step_seconds, text)
    step_seconds = _by_kind(fitted.chain_seconds, work.kind) or 0.0
    chain = work.chain_operations * step_seconds + work.chain_reads * fitted.chain_read_seconds
    text = f"{work.chain_operations:,.0f} operations of a thread, one after another"
    if work.chain_reads:
        text += f", with {work.chain_reads:,.0f} reads"
    yield TimePart(chain, text)
    lines = work.lines * fitted.line_operations / constants.operation_rate
    yield TimePart(lines, f"{work.lines:,.0f} lines of the L1 caches")


def _together(sides: Sequence[TimePart], power: float, fitted: Fitted) -> Iterator[TimePart]:
    """The longest part, and what each other one adds, since parts overlap only partly."""
    ordered = sorted(sides, key=lambda part: -part.seconds)
    yield ordered[0]
    total = ordered[0].seconds
    for part in ordered[1:]:
        if part.seconds > fitted.least_share * total:
            more = (total**power + part.seconds**power) ** (1 / power) - total
            yield TimePart(more, f"more, for {part.reason}")
            total += more


def _start(work: KernelWork, fitted: Fitted) -> list[TimePart]:
    if work.kind == _COPY and work.written_bytes > fitted.large_copy_bytes:
        for number, seconds in fitted.rest_seconds:
            if work.written_bytes % number:
                return [TimePart(seconds, f"a tail that is not a multiple of {number:,} B")]
        return []
    if seconds_of_kind := _by_kind(fitted.start_seconds, work.kind):
        return [TimePart(seconds_of_kind, "first elements")]
    if work.engine is not None and work.engine.serial_seconds:
        return [TimePart(fitted.terms_start_seconds, "first terms")]
    if any(name != VECTOR for name in work.flops) and work.program is None:
        by_triton = work.kind.startswith("triton")
        seconds = fitted.product_start_seconds if by_triton else fitted.library_start_seconds
        return [TimePart(seconds, "first tiles")]
    return []


def _by_kind(figures: Mapping[str, float], kind: str) -> float | None:
    """The first figure whose kind a kernel's begins with."""
    return next((figure for name, figure in figures.items() if kind.startswith(name)), None)


def _block_part(work: KernelWork, constants: Constants) -> TimePart:
    """Time in which waves of blocks compute. In the last wave, some multiprocessors are idle."""
    rounds = math.ceil(work.blocks / work.gpu.multiprocessors)
    of = f"by each of {work.blocks:,.0f} blocks in {rounds:,} rounds"
    name = max(work.flops, key=lambda name: work.flops[name])
    share = constants.fitted.peak_shares.get(work.kind, constants.fitted.peak_share)
    between = waited = 0.0
    if work.engine is not None:
        share, between = work.engine.block_share, rounds * work.engine.round_seconds
        waited = work.engine.block_wait_seconds
    rate = share * _peak(name, constants) / work.gpu.multiprocessors
    computed = rounds * work.block_flops / rate
    text = f"{work.block_flops:,.0f} operations {of}"
    if waited > computed:
        text += f", which wait {waited * 1e6:,.1f} µs for their terms"
    return TimePart(max(computed, waited) + between, text)


def _further_part(engine: EngineWork, constants: Constants) -> TimePart:
    """Time of kernels that pad or reorder arrays: they write and read the workspace once each."""
    text = f"about {engine.further_kernels:,.0f} further kernels of the library"
    if engine.workspace_bytes:
        text += f", which move {engine.workspace_bytes / 1e6:,.2f} MB"
        if engine.workspace_share < 1:
            text += f" at {engine.workspace_share:.0%} of the bandwidth"
    moved = 2 * engine.workspace_bytes / (engine.workspace_share * constants.bandwidth)
    return TimePart(engine.further_kernels * constants.fitted.further_kernel_seconds + moved, text)


def _tile_part(work: KernelWork, tile: ProductTile, constants: Constants) -> TimePart:
    """Time of a Triton product's blocks, step after step.

    Several blocks are resident on a multiprocessor: some compute while others wait.
    """
    fitted, multiprocessors = constants.fitted, work.gpu.multiprocessors
    rounds = math.ceil(tile.blocks / multiprocessors)
    at_once = max(1.0, min(tile.resident, tile.blocks / multiprocessors))
    operation = multiprocessors / constants.operation_rate
    name = max(work.flops, key=lambda name: work.flops[name])
    rate = fitted.peak_shares.get(work.kind, 1.0) * _peak(name, constants) / multiprocessors
    latency, of_a_byte = fitted.staged_step_seconds, fitted.staged_byte_operations
    alone = fitted.staged_element_operations
    if tile.stages == 1:
        latency, of_a_byte = fitted.step_seconds, fitted.byte_operations
        alone = fitted.element_operations
    step = max(
        latency / at_once,
        tile.step_bytes * of_a_byte * operation,
        tile.step_flops / rate,
    )
    step += tile.misaligned * alone * operation
    written = tile.area * fitted.result_operations * operation
    text = f"{tile.steps:,} steps of {tile.step_bytes / 1e3:,.1f} kB of each of "
    text += f"{tile.blocks:,.0f} blocks in {rounds:,} rounds"
    if tile.misaligned:
        text += ", with rows that do not start at multiples of 16 bytes"
    return TimePart(rounds * (tile.steps * step + written), text)


def _program_part(program: ProgramWork, constants: Constants) -> TimePart:
    """Time of the programs of a Pallas kernel's grid."""
    seconds = program.seconds(constants.operation_rate, lambda name: _peak(name, constants))
    text = f"{program.code.programs:,} programs of {program.steps:,.0f} steps in "
    text += f"{program.rounds:,.1f} rounds of {program.resident:,.1f} on each multiprocessor"
    return TimePart(seconds, text)


def _least_seconds(work: KernelWork, constants: Constants) -> float:
    """The least time: of scores of attention, or of products at the rate of Triton's kernels."""
    if work.program is None:
        return work.least_seconds
    shares = constants.fitted.peak_shares
    return sum(
        flops / (shares.get(f"triton {name}", 1.0) * _peak(name, constants))
        for name, flops in work.flops.items()
        if name != VECTOR
    )


def _peak(element_type: str, constants: Constants) -> float:
    name = _SAME_PEAK.get(element_type, element_type)
    if name.startswith(("f8", "f4")):
        name = name[:2]
    return constants.peak_flops.get(name) or constants.operation_rate


def formula_seconds(work: KernelWork, cached_bytes: float, constants: Constants) -> float:
    """Sum of the parts."""
    return sum(part.seconds for part in parts_of(work, cached_bytes, constants))


def exchange_time(exchange: Exchange) -> KernelTime:
    """The time of a collective that no calibration has."""
    parts = tuple(TimePart(seconds, reason) for seconds, reason in exchange.parts)
    return KernelTime(exchange.seconds, parts, 1.0, exchange.basis, exchange.spread)


def least_time(floor_seconds: float, constants: Constants) -> KernelTime:
    """The lower bound of the time of a launch of unknown work."""
    parts = (TimePart(constants.launch_seconds, "launch"), TimePart(floor_seconds, "the floor"))
    return KernelTime(sum(part.seconds for part in parts), parts, 1.0, ASSUMED, 0.4)


def time_of(
    work: KernelWork, cached_bytes: float, in_graph: bool, calibration: Calibration
) -> KernelTime:
    """The predicted time of one launch."""
    parts = parts_of(work, cached_bytes, calibration.constants)
    seconds = sum(part.seconds for part in parts)
    fitted, timed = calibration.constants.fitted, calibration.of_kind(work.kind)
    if not timed.at or timed.coordinates != len(work.point):
        stated = work.kind.startswith(UNCOUNTED) and not work.partly_unknown
        ratio = fitted.stated_ratio if stated else fitted.uncalibrated_ratio
        seconds = max(seconds * ratio, _least_seconds(work, calibration.constants))
        return KernelTime(seconds, parts, ratio, ASSUMED, 0.4)
    # numpy takes longer to start than most commands that predict no time.
    from xlapipe.time.predict.interpolation import interpolated

    logarithm, spread, nearest = interpolated(work.point, in_graph, timed, fitted)
    lent = timed.device and timed.device[nearest[0]]
    basis = SCALED if calibration.scaled_from or lent else CALIBRATED
    if work.partly_unknown:
        basis = ASSUMED
    ratio = math.exp(logarithm)
    in_a_step = fitted.in_a_step if work.kind.startswith(_FUSED) else 1.0
    closest = nearest[:3]
    launches = math.prod(timed.launches[number] for number in closest) ** (1 / len(closest))
    names = tuple(dict.fromkeys(timed.program[number] for number in nearest))[:3]
    if work.updates is not None:
        ratio = min(ratio, work.updates.most_seconds / seconds / in_a_step)
    seconds = max(seconds * ratio * in_a_step, _least_seconds(work, calibration.constants))
    return KernelTime(seconds, parts, ratio, basis, spread, launches, names, in_a_step)
