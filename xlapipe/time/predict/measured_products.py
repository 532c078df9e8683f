"""Products on GPUs without a calibration: from such products that were measured elsewhere."""

from collections.abc import Mapping

from xlapipe.plans import GemmBackend, Plan
from xlapipe.time.collectives.exchange import DATASHEET, TABLE
from xlapipe.time.cost.flops import VECTOR
from xlapipe.time.cost.step_cost import StepCost
from xlapipe.time.predict.calibration import Constants
from xlapipe.time.predict.gpu import HOPPER, gpu_of
from xlapipe.time.predict.kernel_time import KernelTime, TimePart
from xlapipe.time.predict.work import KernelWork
from xlapipe.time.products.efficiency import (
    Product,
    ProductSeconds,
    product_of,
    product_seconds,
)

_OF_A_TUNER = {
    *(GemmBackend.CUBLAS, GemmBackend.CUBLASLT, GemmBackend.CUBLASLT_F8),
    *(GemmBackend.TRITON, GemmBackend.OTHER),
}

Products = Mapping[str, tuple[Product, ProductSeconds]]


def measured_products(plan: Plan, cost: StepCost) -> Products:
    """Products of a plan with their time alone, by instruction; none for an H100 or H200."""
    device = cost.device
    if device is None or device.row is None or gpu_of(device) == HOPPER:
        return {}
    nearest: dict[str, tuple[Product, ProductSeconds]] = {}
    several = set()
    for gemm in plan.gemms or ():
        kernel = cost.kernel_of.get(gemm.instruction)
        if kernel is None or gemm.backend not in _OF_A_TUNER:
            continue
        if gemm.instruction in nearest:
            several.add(gemm.instruction)
        flops = sum(count for name, count in (kernel.cost.flops or {}).items() if name != VECTOR)
        product = product_of(gemm, flops)
        seconds = product_seconds(product, device) if product is not None else None
        if product is not None and seconds is not None:
            nearest[gemm.instruction] = product, seconds
    return {name: item for name, item in nearest.items() if name not in several}


def product_time(
    product: Product,
    measured: ProductSeconds,
    work: KernelWork,
    cached_bytes: float,
    constants: Constants,
) -> KernelTime:
    """The time of one launch, with what is fused with the product.

    A measured product ran many times in a row: its operands were in the L2 cache if they fit. Here
    what is not there is read from device memory. What is fused takes at most as long as a separate
    kernel, which moves the result once more.
    """
    batch = f"{product.batch:,} × " * (product.batch > 1)
    sizes = f"{product.m:,} × {product.n:,} × {product.k:,}"
    where = "this GPU" if measured.own else measured.measured_on
    reason = f"product of {batch}{sizes} {product.element}, as tuned products measured on {where}"
    parts = [TimePart(measured.seconds, reason)]
    memory = (work.touched_bytes - cached_bytes) / constants.bandwidth
    if memory > measured.seconds:
        uncached = f"{(work.touched_bytes - cached_bytes) / 1e6:,.2f} MB"
        parts.append(
            TimePart(memory - measured.seconds, f"more, for {uncached} from device memory")
        )
    moved = work.or_else.touched_bytes - work.touched_bytes if work.or_else is not None else 0
    if moved > 0:
        parts.append(
            TimePart(moved / constants.bandwidth, f"{moved / 1e6:,.2f} MB of what is fused")
        )
    seconds = sum(part.seconds for part in parts)
    basis = TABLE if measured.own else DATASHEET
    return KernelTime(seconds, tuple(parts), 1.0, basis, measured.spread)
