"""Work of one launch of a Pallas kernel, from its code if that was counted."""

from math import log2

from xlapipe.plans.kernel_code import KernelCode
from xlapipe.time.cost.kernel import KernelCost
from xlapipe.time.predict.arrays import first_array, log
from xlapipe.time.predict.fusion import LaunchedKernel
from xlapipe.time.predict.gpu import HOPPER, SMALL_SECONDS, THREADS_OF_A_WARP, Gpu
from xlapipe.time.predict.program_work import ProgramWork
from xlapipe.time.predict.work import KernelWork

UNCOUNTED = "pallas"
"""The kind of Pallas kernels whose code is unknown."""


def counted_work(cost: KernelCost, code: KernelCode, gpu: Gpu = HOPPER) -> KernelWork:
    """The work of one launch of a kernel whose code was counted."""
    flops = {name: count for name, count in code.flops.items() if count}
    program = ProgramWork(code, gpu)
    beside = SMALL_SECONDS + program.seconds(gpu.operation_rate, gpu.product_rate)
    beside /= cost.touched_bytes / gpu.bytes_rate + SMALL_SECONDS
    return KernelWork(
        f"pallas product {max(flops, key=flops.__getitem__)}" if flops else "pallas code",
        (
            log(cost.touched_bytes),
            log(code.programs),
            log(code.warps),
            log(program.steps),
            max(-3.0, min(4.0, log2(beside))),
            program.registers / 64,
            log(1 + code.sequence / program.steps),
        ),
        cost.read_bytes,
        cost.written_bytes,
        program.operations,
        flops,
        code.programs * program.threads,
        f"{code.programs:,} programs of {code.warps} warps",
        program=program,
        partly_unknown=code.undecided > 0,
    )


def uncounted_work(kernel: LaunchedKernel) -> KernelWork:
    """The work of one launch of a kernel whose code is unknown: it reads and writes."""
    cost, threads, per_block = kernel.cost, kernel.threads, kernel.per_block
    elements, costs = first_array(kernel.inner.shape).elements, kernel.gpu.features.programs
    alone = per_block <= THREADS_OF_A_WARP
    of_a_byte = costs.byte_alone_operations if alone else costs.byte_operations
    return KernelWork(
        UNCOUNTED,
        (log(cost.touched_bytes), log(threads), 0.5 * log(elements), 0.5 * log(per_block)),
        cost.read_bytes,
        cost.written_bytes,
        max(float(elements), of_a_byte * cost.read_bytes * THREADS_OF_A_WARP / threads),
        cost.flops or {},
        threads,
        f"{threads:,} threads",
        partly_unknown=not cost.stated,
    )
