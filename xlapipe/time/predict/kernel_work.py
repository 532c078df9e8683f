"""Work of one kernel launch, by the kind of its instruction.

A calibration stores the kinds and points that this module and those that it calls compute: after a
change there, it has to be derived again from its record (`xlapipe calibrate --from RECORD`).
"""

import re
from dataclasses import replace
from math import prod

from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.plans.thunks import Thunk
from xlapipe.time.cost.fingerprint import signature
from xlapipe.time.cost.kernel import Kernel, KernelCost
from xlapipe.time.cost.library_calls import library_call
from xlapipe.time.cost.schedule import Site
from xlapipe.time.predict.arrays import first_array, log, operand_shapes
from xlapipe.time.predict.fusion import Fusion
from xlapipe.time.predict.fusion_work import fusion_work
from xlapipe.time.predict.gpu import HOPPER, Gpu
from xlapipe.time.predict.library_work import call_of, features_of_call
from xlapipe.time.predict.pallas_work import UNCOUNTED, counted_work, uncounted_work
from xlapipe.time.predict.product_work import library_product, triton_product
from xlapipe.time.predict.work import KernelWork

_SIZE = r"(\d{1,10})"  # CUDA's largest has ten digits; a damaged file's may have no float
_SIZES = rf"\[{_SIZE}, {_SIZE}, {_SIZE}\]"
_GRID = re.compile(rf"grid: {_SIZES} threads: {_SIZES}")
_HOST_SPACE = "S(5)"
# Work of kernels seen in this process: layers of a model often repeat the same ones.
_KNOWN: dict[tuple[object, ...], KernelWork] = {}
_MOST_KNOWN = 4096


def work_of(
    kernel: Kernel, module: HloModule, *, untuned: bool = False, gpu: Gpu = HOPPER
) -> KernelWork:
    """The work of one launch.

    Args:
      untuned: the result of `is_untuned`.
      gpu: that runs it.
    """
    site, cost, thunk = kernel.site, kernel.cost, kernel.thunk
    # The work of a gather or scatter depends on what computed its indices, in other kernels.
    if _is_indexed(site.inner, module):
        return _work_of(kernel, module, untuned, gpu)
    parts = signature(site, module)
    counted = (cost.kind, cost.read_bytes, cost.written_bytes, cost.stated, repr(cost.code))
    flops, launch = tuple((cost.flops or {}).items()), thunk and (thunk.kind, thunk.detail)
    key = (*parts, *counted, flops, launch, kernel.wire_bytes, untuned, gpu)
    work = _KNOWN.get(key)
    if work is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        work = _KNOWN[key] = _work_of(kernel, module, untuned, gpu)
    return work


def forget() -> None:
    """Forget kernels that this process has seen, after constants of features have changed."""
    _KNOWN.clear()


def _work_of(kernel: Kernel, module: HloModule, untuned: bool, gpu: Gpu) -> KernelWork:
    work = _by_kind(kernel, module, untuned, gpu)
    return work if work.gpu == gpu else replace(work, gpu=gpu)


def _by_kind(kernel: Kernel, module: HloModule, untuned: bool, gpu: Gpu) -> KernelWork:
    site, cost, thunk = kernel.site, kernel.cost, kernel.thunk
    inner = site.inner
    threads, per_block = _grid(thunk)
    opcode = inner.opcode.removesuffix("-start")
    if opcode in COLLECTIVES:
        what = f"{opcode} of {cost.written_bytes:,} B"
        return _moved(opcode, cost, what, link_bytes=kernel.wire_bytes)
    if touches_host(site):
        return _moved("host copy", cost, f"{cost.written_bytes:,} B")
    if inner.opcode in opcodes.COPIES or (thunk is not None and thunk.kind == "kCopy"):
        # Also slices, and updates in a loop, which XLA runs as copies without a kernel.
        own = thunk is not None and thunk.kind == "kCustomKernel"
        kind = "copy kernel" if own else "copy"
        return _moved(kind, cost, f"{cost.written_bytes:,} B", threads=threads)
    flops = {name: count for name, count in (cost.flops or {}).items() if count}
    call = library_call(inner, site.scope, module)
    if flops and call is not None:
        return library_product(*call, cost, flops, gpu)
    if inner.opcode == "fusion":
        body = module.computations[inner.called_computations[0]]
        if flops and "gemm" in cost.kind:
            return triton_product(inner, body, cost, flops, threads, gpu, untuned=untuned)
        if inner.fusion_kind == "kCustom" and "custom-call" in body.opcodes:
            # XLA's dynamic slice fusion: the call gets slices of the operands. The bytes that it
            # touches are as unknown as those of a call outside a fusion.
            called = next(item for item in body.instructions if item.opcode == "custom-call")
            target = called.custom_call_target or cost.kind
            cost = replace(cost, kind=target, read_bytes=0, written_bytes=0)
            return _other(called, body, cost, threads, thunk, gpu)
        within = (inner, body, site.scope, module)
        return fusion_work(Fusion(*within, cost, flops, threads, per_block, gpu))
    if flops and inner.kernel_name is None:
        return library_product(inner, site.scope, cost, flops, gpu)
    return _other(inner, site.scope, cost, threads, thunk, gpu)


def _is_indexed(instruction: Instruction, module: HloModule) -> bool:
    """Whether an instruction, or a computation that it calls, has computed indices."""
    if instruction.opcode in opcodes.INDEXED:
        return True
    called = [module.computations[name] for name in instruction.called_computations]
    return any(
        not inside.opcodes.isdisjoint(opcodes.INDEXED | opcodes.HAS_BODY)
        and any(_is_indexed(item, module) for item in inside.instructions)
        for inside in called
    )


def touches_host(site: Site) -> bool:
    """Whether a launch reads or writes the host's memory, also a slice of an array in a loop."""
    operands = operand_shapes(site.inner, site.scope)
    # Which element of a whole tuple, such as a loop's, is read is unknown.
    shapes = (site.inner.shape, *(shape for shape in operands if not shape.is_tuple))
    return any(_HOST_SPACE in shape.text for shape in shapes)


def _grid(thunk: Thunk | None) -> tuple[int, int]:
    """Threads of a launch, and threads of a block; 0 if unknown."""
    match = _GRID.search(thunk.detail) if thunk is not None else None
    if match is None:
        return 0, 0
    numbers = [int(text) for text in match.groups()]
    return prod(numbers), prod(numbers[3:])


def _other(
    inner: Instruction,
    scope: Computation,
    cost: KernelCost,
    threads: int,
    thunk: Thunk | None,
    gpu: Gpu,
) -> KernelWork:
    """A library call or an instruction that is not a fusion."""
    name = inner.custom_call_target or inner.opcode
    if cost.code is not None:
        return counted_work(cost, cost.code, gpu)
    if inner.opcode == "custom-call" and cost.kind != name:  # the kernel's own name
        if threads:
            elements = first_array(inner.shape)[2]
            return uncounted_work(cost, elements, threads, _grid(thunk)[1], gpu)
        name = UNCOUNTED
    call = call_of(name, inner, scope, cost, threads, gpu)
    features = features_of_call(call)
    work = KernelWork(
        features.kind or f"{name} {call.element}",
        features.point,
        cost.read_bytes,
        cost.written_bytes,
        features.operations,
        cost.flops or {},
        features.threads or threads,
        features.what or f"{call.element}[{','.join(map(str, call.dims))}]",
        partly_unknown=name == UNCOUNTED and not cost.stated,
    )
    if work.kind != "loop":
        return work
    return replace(work, point=(*work.point, work.beside_memory))


def _moved(
    kind: str, cost: KernelCost, what: str, *, threads: int = 0, link_bytes: int = 0
) -> KernelWork:
    """The work of a kernel that only moves bytes."""
    read, written = cost.read_bytes, cost.written_bytes
    point = (log(read + written),)
    return KernelWork(kind, point, read, written, 0.0, {}, threads, what, link_bytes)
