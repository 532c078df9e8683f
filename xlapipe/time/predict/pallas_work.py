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
# In simple operations of the whole GPU that take as long: a byte that one warp reads, as the only
# warp of its block or not.
_READ_ALONE, _READ_BY_A_WARP = 8.1e3, 2.1e3
# A small array that all programs load is in the L1 caches, from which a byte takes this share.
_L1_BYTES, _SHARE_OF_L1 = 64 * 1024, 0.5
# Seconds of the L2 cache per element that is updated alone; per line of adjacent ones, and lines
# that it updates at once.
_SCATTERED_SECONDS = 9e-12
_LINE_BYTES, _LINE_SECONDS, _LINES_AT_ONCE = 128, 14e-9, 96


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
        loaded_bytes=sum(map(_as_loaded(code.programs), code.loaded_bytes, sizes)) / code.programs,
        added=code.scattered_updates / code.programs,
        operations=operations / code.programs,
        flops={name: count / code.programs for name, count in flops.items()},
        gpu=gpu,
    )
    threads = code.programs * code.warps * THREADS_OF_A_WARP
    missing = max(0, LEAST_THREADS - code.warps * THREADS_OF_A_WARP) * code.programs
    updates = sum(
        updated / _LINE_BYTES / min(max(1, size // _LINE_BYTES), _LINES_AT_ONCE)
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
        update_seconds=updates * _LINE_SECONDS + code.scattered_updates * _SCATTERED_SECONDS,
        partly_unknown=code.undecided > 0,
    )


def _as_loaded(programs: int) -> Callable[[int, int], float]:
    """Equivalent bytes: a small array that all programs load is in the L1 caches."""

    def loaded(loaded_bytes: int, size_bytes: int) -> float:
        shared = size_bytes <= _L1_BYTES and loaded_bytes >= programs * size_bytes
        return loaded_bytes * (_SHARE_OF_L1 if shared else 1.0)

    return loaded


def uncounted_work(cost: KernelCost, elements: int, threads: int, per_block: int) -> KernelWork:
    """The work of one launch of a kernel whose code is unknown: it reads and writes.

    Args:
      elements: of the first result.
      threads, per_block: of the launch, and of a block.
    """
    touched = cost.read_bytes + cost.written_bytes
    of_a_byte = _READ_ALONE if per_block <= THREADS_OF_A_WARP else _READ_BY_A_WARP
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
