"""Matrix products, convolutions and collectives among the launches of a wrapper or of IR."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set

from xlapipe.inductor.inductor_plan import InductorCollective, Kernel, KernelKind
from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.ir.nodes import OUTPUT, IrNode
from xlapipe.inductor.layouts import sum_if_known
from xlapipe.inductor.operators import (
    base_name,
    collective_kind,
    gemm_backend,
    is_template_gemm,
)
from xlapipe.inductor.wrapper.launches import Launch, group_size
from xlapipe.plans.gemms import Gemm, GemmBackend
from xlapipe.plans.shapes import shape_of

# Nodes that copy, view or wait for a collective's result without computing with it.
_COMPUTES_NOTHING = re.compile(
    r"wait_tensor|set_|resize_|split_with_sizes_copy|copy_in|as_strided|view"
)
_WORKING = (KernelKind.WAIT, KernelKind.RESIZE, KernelKind.COLLECTIVE, KernelKind.OTHER)


def wrapper_gemms(launches: Sequence[Launch]) -> Iterator[Gemm]:
    """Gemms in the order of their launches."""
    for launch in launches:
        kernel = launch.kernel
        layouts = [operand.tensor.layout for operand in launch.operands]
        device = next((layout.device for layout in layouts if layout is not None), "cuda")
        backend = gemm_backend(kernel.name, device)
        if kernel.kind == KernelKind.TEMPLATE and is_template_gemm(kernel.name):
            triton = launch.definition is not None
            backend = GemmBackend.TRITON if triton else GemmBackend.OTHER
        if backend is None:
            continue
        yield Gemm(
            instruction=next((operand.name for operand in launch.written), kernel.name),
            backend=backend,
            shapes=tuple(map(shape_of, _shapes(launch))),
            op_name=next(
                (name for name in kernel.origins if base_name(name) in kernel.name), kernel.name
            ),
            source=kernel.source,
            fast_accumulation=_fast_accumulation(launch, backend),
        )


def _shapes(launch: Launch) -> Iterator[str]:
    """Shapes of the operands and, last, of the result."""
    written = {operand.tensor.storage for operand in launch.written}
    operands = [o for o in launch.operands if o.tensor.storage not in written]
    for operand in (*operands, *launch.written[:1]):
        yield operand.type_text


def _fast_accumulation(launch: Launch, backend: GemmBackend) -> bool | None:
    if backend != GemmBackend.CUBLASLT_F8:
        return None
    return launch.keywords.get("use_fast_accum") == "True"


def ir_gemms(graph: IrGraph) -> Iterator[Gemm]:
    """Gemms of IR; operands in the order in which the dump lists what a node reads."""
    for node in graph.nodes:
        for leaf in node.leaves:
            backend = gemm_backend(leaf.kernel or "", _device(graph, leaf))
            if "Template" in leaf.inner and leaf.kernel is None:
                backend = GemmBackend.TRITON if "Triton" in leaf.inner else GemmBackend.OTHER
            if backend is None:
                continue
            result = next((buffer.name for buffer in leaf.outputs), leaf.name)
            names = [dependency.name for dependency in graph.reads_of(leaf)]
            yield Gemm(
                instruction=result,
                backend=backend,
                shapes=tuple(shape_of(_shape_of(graph, name)) for name in (*names, result)),
                op_name=leaf.kernel or leaf.inner,
                source=None,
            )


def _shape_of(graph: IrGraph, name: str) -> str:
    layout = graph.layouts.get(name) or graph.layouts.get(graph.memory_of(name))
    return layout.type_text if layout is not None else "?"


def _device(graph: IrGraph, leaf: IrNode) -> str:
    for buffer in leaf.outputs:
        layout = graph.layouts.get(buffer.name)
        if layout is not None:
            return layout.device
    return "cuda"


def wrapper_collectives(
    launches: Sequence[Launch], returned: Set[int]
) -> Iterator[InductorCollective]:
    """Collectives in the order of their launches.

    Args:
      returned: storages that the call returns.
    """
    for at, launch in enumerate(launches):
        kind = collective_kind(launch.kernel.name)
        if kind is None:
            continue
        results = launch.outputs or launch.operands[:1]
        storages = {operand.tensor.storage for operand in results}
        end = _waited(launches, at, storages)
        yield InductorCollective(
            instruction=next((operand.name for operand in results), launch.kernel.name),
            kind=kind,
            operands=tuple(operand.name for operand in launch.operands),
            results=tuple(operand.type_text for operand in results),
            operand_bytes=sum_if_known(operand.size_bytes for operand in launch.operands),
            output_bytes=sum_if_known(operand.size_bytes for operand in results),
            group_size=group_size(launch.scalars),
            start=launch.kernel.position,
            end=end,
            overlapped_by=_overlapping([launch.kernel for launch in launches], at, end),
            used=_used(launches, at, storages) or bool(storages & returned),
            source=launch.kernel.source,
        )


def _waited(launches: Sequence[Launch], at: int, storages: set[int]) -> int | None:
    for later in launches[at + 1 :]:
        waits = base_name(later.kernel.name) == "wait_tensor"
        if waits and any(operand.tensor.storage in storages for operand in later.operands):
            return later.kernel.position
    return None


def _used(launches: Sequence[Launch], at: int, storages: set[int]) -> bool:
    """Whether a launch that computes reads the collective's result."""
    holding = set(storages)
    for later in launches[at + 1 :]:
        if not any(operand.tensor.storage in holding for operand in later.read):
            continue
        if _COMPUTES_NOTHING.search(base_name(later.kernel.name)) is None:
            return True
        holding.update(operand.tensor.storage for operand in later.written)
    return False


def _overlapping(kernels: Sequence[Kernel], start: int, end: int | None) -> tuple[str, ...]:
    """Kernels that compute between a collective and its wait."""
    between = kernels[start + 1 : len(kernels) if end is None else end]
    return tuple(kernel.name for kernel in between if kernel.kind not in _WORKING)


def ir_collectives(graph: IrGraph, kernels: Sequence[Kernel]) -> Iterator[InductorCollective]:
    """Collectives of IR, which states their devices only by the sizes of their results."""
    positions = {kernel.node: kernel.position for kernel in kernels}
    for node in graph.nodes:
        kind = collective_kind(node.kernel or "")
        if kind is None or node.name not in positions:
            continue
        operands, results = _ir_operands(graph, node, kind)
        start, end = positions[node.name], _ir_wait(graph, node, positions)
        taken, made = (
            sum_if_known(graph.element_bytes(name) for name in names)
            for names in (operands, results)
        )
        yield InductorCollective(
            instruction=node.outputs[0].name if node.outputs else node.name,
            kind=kind,
            operands=operands,
            results=tuple(_shape_of(graph, name) for name in results),
            operand_bytes=taken,
            output_bytes=made,
            group_size=_ratio(kind, taken, made),
            start=start,
            end=end,
            overlapped_by=_overlapping(kernels, start, end),
            used=_ir_used(graph, node),
            source=None,
        )


def _ir_operands(
    graph: IrGraph, node: IrNode, kind: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a collective takes and makes; an `out=` operand is its result."""
    read = [graph.memory_of(dependency.name) for dependency in graph.reads_of(node)]
    own = [buffer.name for buffer in node.outputs if graph.owns_memory(buffer)]
    if own:
        return tuple(read), tuple(own)
    sized = [name for name in read if name in graph.layouts]
    if len(sized) < 2:
        return tuple(read), tuple(read)
    ordered = sorted(sized, key=lambda name: graph.layouts[name].element_bytes or 0)
    if kind == "reduce-scatter":
        ordered.reverse()
    return tuple(ordered[:1]), tuple(ordered[1:])


def _ratio(kind: str, taken: int | None, made: int | None) -> int | None:
    """The size of the group, which an all-gather and a reduce-scatter scale their operand by."""
    if not taken or not made:
        return None
    large, small = (made, taken) if kind == "all-gather" else (taken, made)
    if kind not in ("all-gather", "reduce-scatter") or large % small:
        return None
    return large // small


def _ir_wait(graph: IrGraph, node: IrNode, positions: Mapping[str | None, int]) -> int | None:
    made = {buffer.name for buffer in node.outputs}
    for other in graph.nodes:
        waits = other.inner == "_WaitKernel" or base_name(other.kernel or "") == "wait_tensor"
        if waits and any(dependency.name in made for dependency in graph.reads_of(other)):
            return positions.get(other.name)
    return None


def _ir_used(graph: IrGraph, node: IrNode) -> bool:
    """Whether a node that computes, or the caller, reads what the collective made."""
    pending = [buffer.name for buffer in node.outputs]
    memories = {graph.memory_of(name) for name in pending}
    resized = _resized(graph)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in graph.buffers:
            continue
        seen.add(name)
        for user in graph.buffers[name].users:
            if user.is_weak:
                continue
            if user.node == OUTPUT:
                if graph.memory_of(name) not in resized and not _is_set(graph, name):
                    return True
                continue
            reader = graph.nodes[graph.position[user.node]] if user.node in graph.position else None
            if reader is None:
                continue
            if _COMPUTES_NOTHING.search(base_name(reader.kernel or "compute")) is None:
                if any(buffer.name == name for buffer in reader.outputs):
                    continue  # the collective itself
                return True
            pending.extend(buffer.name for buffer in reader.outputs)
    return not memories


def _is_set(graph: IrGraph, name: str) -> bool:
    """Whether a buffer is an argument whose memory `set_` replaced."""
    return "set_" in base_name(graph.definer[name].kernel or "")


def _resized(graph: IrGraph) -> set[str]:
    return {
        graph.memory_of(name)
        for leaf in graph.leaves
        if leaf.inner == "ResizeStorageBytes"
        for buffer in leaf.outputs
        for name in buffer.mutations
    }
