"""Work of one launch of a Pallas kernel, from its code if that was counted."""

from collections.abc import Callable
from math import log2

from xlapipe.plans.kernel_code import KernelCode
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.predict.arrays import log
from xlapipe.time.predict.element_operations import OPERATIONS
from xlapipe.time.predict.gpu import HOPPER, LEAST_THREADS, SMALL_SECONDS, THREADS_OF_A_WARP, Gpu
from xlapipe.time.predict.program_work import ProgramWork
from xlapipe.time.predict.work import KernelWork

UNCOUNTED = "pallas"
"""The kind of Pallas kernels whose code is unknown."""
_L1_BYTES = 64 * 1024  # of a small array
_LINE_BYTES = 128


def counted_work(cost: KernelCost, code: KernelCode, gpu: Gpu = HOPPER) -> KernelWork:
    """The work of one launch of a kernel whose code was counted."""
    touched = cost.read_bytes + cost.written_bytes
    flops = {name: count for name, count in code.flops.items() if count}
    operations = sum(count * OPERATIONS.get(name, 1) for name, count in code.operations.items())
    steps = max(1.0, code.steps)
    sizes = (*code.operand_bytes, *code.result_bytes)
    program = ProgramWork(
        programs=code.programs,
        warps=code.warps,
        stages=code.stages,
        steps=steps,
        ordered_steps=code.ordered_steps,
        longest=max(1.0, code.longest_steps / steps),
        reductions=code.reductions,
        live_words=code.live_words,
        loaded_bytes=sum(map(_as_loaded(code.programs, gpu), code.loaded_bytes, sizes))
        / code.programs,
        added=code.scattered_updates / code.programs,
        operations=operations / code.programs,
        flops={name: count / code.programs for name, count in flops.items()},
        gpu=gpu,
    )
    threads = code.programs * code.warps * THREADS_OF_A_WARP
    missing = max(0, LEAST_THREADS - code.warps * THREADS_OF_A_WARP) * code.programs
    costs = gpu.features.programs
    updates = sum(
        updated / _LINE_BYTES / min(max(1, size // _LINE_BYTES), costs.lines_at_once)
        for updated, size in zip(code.updated_bytes, sizes, strict=True)
    )
    beside = SMALL_SECONDS + program.seconds(gpu.operation_rate, gpu.product_rate)
    beside /= touched / gpu.bytes_rate + SMALL_SECONDS
    return KernelWork(
        f"pallas product {max(flops, key=flops.__getitem__)}" if flops else "pallas code",
        (
            log(touched),
            log(code.programs),
            log(code.warps),
            log(steps),
            max(-3.0, min(4.0, log2(beside))),
            program.registers / 64,
            log(1 + code.sequence / steps),
        ),
        cost.read_bytes,
        cost.written_bytes,
        operations,
        flops,
        threads,
        f"{code.programs:,} programs of {code.warps} warps",
        missing_threads=missing,
        program=program,
        update_seconds=updates * costs.line_seconds
        + code.scattered_updates * costs.scattered_seconds,
        partly_unknown=code.undecided > 0,
    )


def _as_loaded(programs: int, gpu: Gpu) -> Callable[[int, int], float]:
    """Equivalent bytes: a small array that all programs load is in the L1 caches."""

    def loaded(loaded_bytes: int, size_bytes: int) -> float:
        shared = size_bytes <= _L1_BYTES and loaded_bytes >= programs * size_bytes
        return loaded_bytes * (gpu.features.programs.l1_share if shared else 1.0)

    return loaded


def uncounted_work(
    cost: KernelCost, elements: int, threads: int, per_block: int, gpu: Gpu
) -> KernelWork:
    """The work of one launch of a kernel whose code is unknown: it reads and writes.

    Args:
      elements: of the first result.
      threads, per_block: of the launch, and of a block.
    """
    touched = cost.read_bytes + cost.written_bytes
    costs = gpu.features.programs
    alone = per_block <= THREADS_OF_A_WARP
    of_a_byte = costs.byte_alone_operations if alone else costs.byte_operations
    return KernelWork(
        UNCOUNTED,
        (log(touched), log(threads), 0.5 * log(elements), 0.5 * log(per_block)),
        cost.read_bytes,
        cost.written_bytes,
        max(float(elements), of_a_byte * cost.read_bytes * THREADS_OF_A_WARP / threads),
        cost.flops or {},
        threads,
        f"{threads:,} threads",
        missing_threads=max(0, LEAST_THREADS - per_block) * (threads // per_block),
        partly_unknown=not cost.stated,
    )
