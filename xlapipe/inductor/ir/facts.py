"""What Inductor's IR has and XLA's dumps do not, counted."""

from collections import Counter
from collections.abc import Iterable, Mapping

from xlapipe.inductor.inductor_plan import InductorOnly, ResizedStorage
from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.ir.nodes import IrNode


def ir_facts(graph: IrGraph) -> InductorOnly:
    """Counts and lists of one graph's IR."""
    leaves, buffers = graph.leaves, graph.buffers.values()
    weak = (
        (leaf.name, dependency.name)
        for leaf in leaves
        for dependency in leaf.reads
        if dependency.kind == "WeakDep"
    )
    return InductorOnly(
        nodes=len(leaves),
        buffers=len(graph.buffers),
        fused_nodes=sum(bool(node.parts) for node in graph.nodes),
        node_kinds=_counted(f"{leaf.kind}({leaf.inner})" for leaf in leaves),
        extern_calls=_counted(leaf.kernel for leaf in leaves if leaf.kernel is not None),
        nop_nodes=tuple(leaf.name for leaf in leaves if leaf.is_nop),
        weak_dependencies=tuple(weak),
        mutations=tuple((buffer.name, name) for buffer in buffers for name in buffer.mutations),
        mutation_buffers=sum(bool(buffer.mutations) for buffer in buffers),
        alias_lists=sum(bool(buffer.aliases) for buffer in buffers),
        can_inplace=sum(user.can_inplace for buffer in buffers for user in buffer.users),
        resized_storages=tuple(
            ResizedStorage(name, leaf.name, None, leaf.line)
            for leaf in leaves
            if leaf.inner == "ResizeStorageBytes"
            for buffer in leaf.outputs
            for name in buffer.mutations
        ),
        user_kernels=_counted(
            _user_kernel(graph, leaf) for leaf in leaves if leaf.inner == "UserDefinedTritonKernel"
        ),
    )


def _user_kernel(graph: IrGraph, leaf: IrNode) -> str:
    """Operands and results of a user-defined kernel, whose name dumps do not print."""
    written = []
    for buffer in leaf.outputs:
        layout = graph.layouts.get(graph.memory_of(buffer.name))
        written.append(layout.dtype or "?" if layout is not None else "?")
    operands = sum(1 for _ in graph.reads_of(leaf))
    return f"{operands} operands, writes {', '.join(written)}"


def _counted(names: Iterable[str]) -> Mapping[str, int]:
    counts = Counter(names)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
