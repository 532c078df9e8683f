"""Work of one kernel launch, by the kind of its instruction.

Each kind goes the same way: features, from the plan; parts of a roofline, from the features and the
GPU's constants; the correction by similar timed kernels; their spread. Sizes are base-2 logarithms
in `KernelWork.point`, some of them weighted.

A calibration stores the kinds and points that this module and those that it calls compute: after a
change there, it has to be derived again from its record (`tests/gpu/records.py`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from xlapipe.plans import HloModule, Instruction, Thunk, opcodes
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.time.cost.kernel import Kernel
from xlapipe.time.cost.library_calls import library_call
from xlapipe.time.cost.schedule import Site
from xlapipe.time.predict.arrays import log, operand_shapes
from xlapipe.time.predict.fusion import Fusion, LaunchedKernel
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


def _work_of(kernel: Kernel, module: HloModule, untuned: bool, gpu: Gpu) -> KernelWork:
    work = _by_kind(kernel, module, untuned, gpu)
    return work if work.gpu == gpu else replace(work, gpu=gpu)


def _by_kind(kernel: Kernel, module: HloModule, untuned: bool, gpu: Gpu) -> KernelWork:
    site, cost, thunk = kernel.site, kernel.cost, kernel.thunk
    inner = site.inner
    launched = LaunchedKernel(inner, site.scope, module, cost, *_grid(thunk), gpu)
    opcode = inner.opcode.removesuffix("-start")
    if opcode in COLLECTIVES:
        what = f"{opcode} of {cost.written_bytes:,} B"
        return replace(_moved(opcode, launched, what), threads=0, link_bytes=kernel.wire_bytes)
    if touches_host(site):
        return replace(_moved("host copy", launched), threads=0)
    if inner.opcode in opcodes.COPIES or (thunk is not None and thunk.kind == "kCopy"):
        # Also slices, and updates in a loop, which XLA runs as copies without a kernel.
        is_custom = thunk is not None and thunk.kind == "kCustomKernel"
        return _moved("copy kernel" if is_custom else "copy", launched)
    call = library_call(inner, site.scope, module)
    if launched.flops and call is not None:
        return library_product(replace(launched, inner=call[0], scope=call[1]))
    if inner.opcode == "fusion":
        if launched.flops and "gemm" in cost.kind:
            return triton_product(launched, untuned=untuned)
        body = launched.body
        if inner.fusion_kind == "kCustom" and "custom-call" in body.opcodes:
            # XLA's dynamic slice fusion: the call gets slices of the operands. The bytes that it
            # touches are as unknown as those of a call outside a fusion.
            called = next(item for item in body.instructions if item.opcode == "custom-call")
            target = called.custom_call_target or cost.kind
            cost = replace(cost, kind=target, read_bytes=0, written_bytes=0)
            return _other(replace(launched, inner=called, scope=body, cost=cost))
        return fusion_work(Fusion(inner, site.scope, module, cost, *_grid(thunk), gpu))
    if launched.flops and inner.kernel_name is None:
        return library_product(launched)
    return _other(launched)


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


def _other(kernel: LaunchedKernel) -> KernelWork:
    """A library call or an instruction that is not a fusion."""
    inner, cost = kernel.inner, kernel.cost
    name = inner.custom_call_target or inner.opcode
    if cost.code is not None:
        return counted_work(cost, cost.code, kernel.gpu)
    if inner.opcode == "custom-call" and cost.kind != name:  # the kernel's own name
        if kernel.threads:
            return uncounted_work(kernel)
        name = UNCOUNTED
    call = call_of(name, inner, kernel.scope, cost, kernel.threads, kernel.gpu)
    features = features_of_call(call)
    work = KernelWork(
        features.kind or f"{name} {call.element}",
        features.point,
        cost.read_bytes,
        cost.written_bytes,
        features.operations,
        cost.flops or {},
        features.threads or kernel.threads,
        f"{call.element}[{','.join(map(str, call.dims))}]",
        partly_unknown=name == UNCOUNTED and not cost.stated,
    )
    if work.kind != "loop":
        return work
    return replace(work, point=(*work.point, work.beside_memory))


def _moved(kind: str, kernel: LaunchedKernel, what: str = "") -> KernelWork:
    """The work of a kernel that only moves bytes."""
    read, written = kernel.cost.read_bytes, kernel.cost.written_bytes
    what = what or f"{written:,} B"
    return KernelWork(kind, (log(read + written),), read, written, 0.0, {}, kernel.threads, what)


def signature(site: Site, module: HloModule) -> tuple[object, ...]:
    """Opcodes, shapes with layouts and XLA's own decisions of a kernel and what it calls.

    Tiles and algorithms are in the backend config, so a kernel that was tuned otherwise differs.
    """
    by_name = site.scope.by_name
    shapes = [by_name[name].shape.text for name in site.inner.operands if name in by_name]
    return (*shapes, *_parts([site.inner], site.inner.name, module))


def _parts(instructions: Sequence[Instruction], root: str, module: HloModule) -> Iterator[object]:
    """Instructions with operands by number, and the computations that they call."""
    numbers = {item.name: number for number, item in enumerate(instructions)}
    yield numbers.get(root)
    for item in instructions:
        yield (
            item.opcode,
            item.custom_call_target,
            item.fusion_kind,
            item.shape.text,
            item.operand_indices,
            item.parameter_number,
            item.integer,
            item.comparison,
            item.unique_indices,
            item.contraction,
            item.backend_config,
            *[numbers.get(name) for name in item.operands],
        )
        for name in item.called_computations:
            called = module.computations.get(name)
            if called is not None:
                yield from _parts(called.instructions, called.root, module)
