"""Matrix products, convolutions and collectives among the launches of a wrapper or of IR."""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from xlapipe.inductor.derive import node_kind
from xlapipe.inductor.inductor_plan import (
    InductorCollective,
    InductorKernel,
    KernelKind,
    ResizedStorage,
)
from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.ir.nodes import OUTPUT, IrNode
from xlapipe.inductor.layouts import Tensor, sum_if_known
from xlapipe.inductor.operators import (
    base_name,
    collective_kind,
    gemm_backend,
    is_template_gemm,
)
from xlapipe.inductor.wrapper.launches import Launch, Operand, group_size
from xlapipe.plans.gemms import Gemm, GemmBackend
from xlapipe.plans.shapes import shape_of

# Kernels that copy, view or wait for a collective's result without computing with it.
_COMPUTES_NOTHING = re.compile(
    r"wait_tensor|set_|resize_|split_with_sizes_copy|copy_in|as_strided|view"
)
_WORKING = (KernelKind.WAIT, KernelKind.RESIZE, KernelKind.COLLECTIVE, KernelKind.OTHER)


def gemms(launches: Sequence[Launch]) -> Iterator[Gemm]:
    """Gemms in the order of their launches."""
    for launch in launches:
        kernel = launch.kernel
        layouts = [operand.tensor.layout for operand in (*launch.outputs, *launch.operands)]
        device = next((layout.device for layout in layouts if layout is not None), "cuda")
        backend = gemm_backend(kernel.name, device)
        if kernel.kind == KernelKind.TEMPLATE and is_template_gemm(kernel.name):
            triton = launch.definition is not None or "Triton" in kernel.name
            backend = GemmBackend.TRITON if triton else GemmBackend.OTHER
        if backend is None:
            continue
        fast: bool | None = None
        if backend == GemmBackend.CUBLASLT_F8 and launch.keywords is not None:
            fast = launch.keywords.get("use_fast_accum") == "True"
        yield Gemm(
            instruction=next((operand.name for operand in launch.written), kernel.name),
            backend=backend,
            shapes=tuple(map(shape_of, _shapes(launch))),
            op_name=next(
                (name for name in kernel.origins if base_name(name) in kernel.name), kernel.name
            ),
            source=kernel.source,
            fast_accumulation=fast,
        )


def _shapes(launch: Launch) -> Iterator[str]:
    """Shapes of the operands and, last, of the result."""
    written = {operand.tensor.storage for operand in launch.written}
    operands = [o for o in launch.operands if o.tensor.storage not in written]
    for operand in (*operands, *launch.written[:1]):
        yield operand.type_text


def collectives(
    launches: Sequence[Launch], kernels: Sequence[InductorKernel], returned: Set[int]
) -> Iterator[InductorCollective]:
    """Collectives in the order of their launches."""
    for at, launch in enumerate(launches):
        kind, start = collective_kind(launch.kernel.name), launch.kernel.position
        if kind is None:
            continue
        results, later = launch.outputs or launch.operands[:1], launches[at + 1 :]
        storages = {operand.tensor.storage for operand in results}
        end = _waited(later, storages)
        taken, made = (
            sum_if_known(operand.size_bytes for operand in part)
            for part in (launch.operands, results)
        )
        yield InductorCollective(
            instruction=(*launch.kernel.writes, *(o.name for o in results), "?")[0],
            kind=kind,
            operands=tuple(operand.name for operand in launch.operands),
            results=tuple(operand.type_text for operand in results),
            operand_bytes=taken,
            output_bytes=made,
            group_size=group_size(launch.scalars) or _ratio(kind, taken, made),
            start=start,
            end=end,
            overlapped_by=tuple(
                kernel.name for kernel in kernels[start + 1 : end] if kernel.kind not in _WORKING
            ),
            used=_used(later, storages, returned),
            source=launch.kernel.source,
        )


def _waited(launches: Sequence[Launch], storages: set[int]) -> int | None:
    for later in launches:
        waits = base_name(later.kernel.name) == "wait_tensor"
        if waits and any(operand.tensor.storage in storages for operand in later.operands):
            return later.kernel.position
    return None


def _used(launches: Sequence[Launch], storages: set[int], returned: Set[int]) -> bool:
    """Whether a kernel that computes, or the caller, reads a collective's result."""
    holding = set(storages)
    for later in launches:
        if not any(operand.tensor.storage in holding for operand in later.read):
            continue
        if _COMPUTES_NOTHING.search(base_name(later.kernel.name)) is None:
            return True
        holding.update(operand.tensor.storage for operand in later.written)
    return bool(holding & returned)


def _ratio(kind: str, taken: int | None, made: int | None) -> int | None:
    """The size of the group, which an all-gather and a reduce-scatter scale their operand by."""
    if not taken or not made:
        return None
    large, small = (made, taken) if kind == "all-gather" else (taken, made)
    if kind not in ("all-gather", "reduce-scatter") or large % small:
        return None
    return large // small


def ir_launches(graph: IrGraph, kernels: Sequence[InductorKernel]) -> Iterator[Launch]:
    """The leaves of IR that run, each with the position of the kernel that it is part of."""
    by_node, storages = {kernel.node: kernel for kernel in kernels}, _storages(graph)

    def tensor(name: str) -> Tensor:
        memory = graph.memory_of(name)
        return Tensor(storages[memory], graph.layouts.get(name) or graph.layouts.get(memory))

    for node in graph.nodes:
        for leaf in node.leaves if node.name in by_node else ():
            name = "wait_tensor" if leaf.inner == "_WaitKernel" else leaf.kernel or leaf.inner
            kernel = replace(by_node[node.name], kind=node_kind(leaf), name=name)
            read, made = _ir_operands(graph, leaf)
            operands = tuple(Operand(graph.memory_of(of), tensor(of)) for of in read)
            outputs = tuple(Operand(of, tensor(of)) for of in made)
            yield Launch(kernel, None, operands, outputs, (), None)


def _storages(graph: IrGraph) -> dict[str, int]:
    names = dict.fromkeys((*graph.arguments, *graph.mutated_arguments, *graph.buffers))
    return {name: number for number, name in enumerate(names)}


def ir_resized(graph: IrGraph) -> tuple[ResizedStorage, ...]:
    return tuple(
        ResizedStorage(name, leaf.name, None, leaf.line)
        for leaf in graph.leaves
        if leaf.inner == "ResizeStorageBytes"
        for buffer in leaf.outputs
        for name in buffer.mutations
    )


def ir_returned(graph: IrGraph) -> set[int]:
    """Numbers of the storages that the caller reads, without those that the graph frees.

    An argument whose memory `set_` replaced is not read.
    """
    storages = _storages(graph)
    resized = {graph.memory_of(storage.buffer) for storage in ir_resized(graph)}
    returned = {
        graph.memory_of(buffer.name)
        for buffer in graph.buffers.values()
        if any(user.node == OUTPUT for user in buffer.users)
        and "set_" not in base_name(graph.definer[buffer.name].kernel or "")
    }
    return {storages[name] for name in returned - resized}


def _ir_operands(graph: IrGraph, leaf: IrNode) -> tuple[Sequence[str], Sequence[str]]:
    """What a leaf takes and makes; of a collective without own result, `out=` is the result."""
    read = [dependency.name for dependency in graph.reads_of(leaf)]
    made = [buffer.name for buffer in leaf.outputs]
    kind = collective_kind(leaf.kernel or "")
    if kind is None or any(graph.owns_memory(graph.buffers[name]) for name in made):
        return read, made
    read = [graph.memory_of(name) for name in read]
    sized = [name for name in read if name in graph.layouts]
    if len(sized) < 2:
        return read, read
    ordered = sorted(sized, key=lambda name: graph.element_bytes(name) or 0)
    if kind == "reduce-scatter":
        ordered.reverse()
    return ordered[:1], ordered[1:]
