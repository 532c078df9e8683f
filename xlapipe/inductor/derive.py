"""From IR alone to allocations in order: liveness, and Inductor's rule for in-place reuse.

An allocation is made before the node that first writes it and freed after the last node that reads
it. Outputs stay. Buffers that only parts of one fused node use are never made. A node writes over
a buffer that it reads if all of this holds, as in `SchedulerNode.decide_inplace_update`:

- the node is a loop, the buffer it writes is neither an alias nor a mutation;
- it is the one use that is left of the other buffer, marked `can_inplace` there;
- a node that launches something made that buffer, not an empty allocation, and it is not an alias;
- both have the same dtype, device and number of bytes;
- all uses inside one fused node are at one index.

What the wrapper does beyond that (keeping a dead buffer until one of the same size is needed) and
the arguments that the caller gives away are not in the IR, so that the result is not exact.
"""

import re
from collections.abc import Iterator, Mapping

from xlapipe.inductor.allocations import Replay, ReplayedArgument
from xlapipe.inductor.inductor_plan import InductorKernel, KernelKind, UnknownAllocation
from xlapipe.inductor.ir.graph import IrGraph, read_names
from xlapipe.inductor.ir.nodes import IrBuffer, IrNode
from xlapipe.inductor.layouts import Layout, Tensor, sum_if_known
from xlapipe.inductor.operators import hides_bytes
from xlapipe.inductor.wrapper.launches import operator_kind

_NOT_REUSED = ("NoneLayout", "MultiOutputLayout", "MutationLayout", "CommBufferLayout")

# Nodes of a subgraph have its name before their own: `while_loop_body_graph_0_op1`.
_PREFIX = re.compile(r"(\w+?)_op\d+$")
_CALLS_SUBGRAPH = frozenset({"WhileLoop", "Conditional", "InvokeSubgraph"})


def derive(graph: IrGraph, layouts: Mapping[str, Layout]) -> Replay:
    """Allocations, launches and frees that the nodes of `graph` need."""
    return _Deriver(graph, layouts).run()


class _Deriver:
    def __init__(self, graph: IrGraph, layouts: Mapping[str, Layout]) -> None:
        self._graph = graph
        self._layouts = {**layouts, **graph.layouts}
        # Layouts of what only extern kernels read are not in the dump.
        products = (leaf for leaf in graph.leaves if leaf.kernel == "extern_kernels.mm")
        self._sizes = dict(size for leaf in products for size in _sizes_of_operands(graph, leaf))
        layouts_of_buffers = list(graph.layouts.values())
        on_host = bool(layouts_of_buffers) and not any(
            layout.on_device for layout in layouts_of_buffers
        )
        self._replay = Replay(on_host=on_host)
        self._tensors: dict[str, Tensor] = {}
        to_arguments = (source for node in graph.nodes for _, source in _set_storages(node))
        self._kept = {*graph.outputs, *map(graph.memory_of, to_arguments)}
        self._results = _results_of_fallbacks(graph)
        self._done: set[str] = set()
        self._last = self._last_uses()

    def run(self) -> Replay:
        for name in dict.fromkeys((*self._graph.arguments, *self._graph.mutated_arguments)):
            self._argument(name)
        for at, node in enumerate(self._graph.nodes):
            self._run_node(at, node)
        self._note_subgraph()
        for name in self._graph.outputs:
            self._replay.return_(name, self._tensors.get(name))
        return self._replay

    def _last_uses(self) -> dict[str, int]:
        """The last node that reads or writes each memory."""
        last: dict[str, int] = {}
        for at, node in enumerate(self._graph.nodes):
            for name in read_names(self._graph, node.leaves):
                last[name] = at
            for leaf in node.leaves:
                for buffer in leaf.outputs:
                    last[self._graph.memory_of(buffer.name)] = at
        return last

    def _argument(self, name: str) -> None:
        layout = self._layouts.get(name)
        size = layout.element_bytes if layout is not None else self._sizes.get(name)
        tensor = self._replay.allocate(name, size, 1, argument=True, held=True, layout=layout)
        self._hold(name, tensor)
        self._replay.arguments.append(ReplayedArgument(name, layout, tensor, False))

    def _hold(self, name: str, tensor: Tensor) -> None:
        """Gives a name to a new tensor, which holds it."""
        self._replay.hold(tensor.storage)
        self._replay.name_value(name, tensor)
        self._tensors[name] = tensor

    def _unknown(
        self, position: int, name: str, line: int, reason: str, result_bytes: int | None = None
    ) -> None:
        unknown = UnknownAllocation(position, name, line, result_bytes, reason)
        self._replay.unknown.append(unknown)

    def _run_node(self, at: int, node: IrNode) -> None:
        for leaf in node.leaves:
            for buffer in leaf.outputs:
                self._define(at, leaf, buffer)
                for result in self._results.get(buffer.name, ()):
                    self._define(at, leaf, result)
            self._done.add(leaf.name)
        for argument, source in _set_storages(node):
            self._set_storage(argument, source)
        if not node.is_nop and node.inner != "MultiOutput":
            self._replay.kernels.append(self._kernel(node))
            self._note_unknown(node)
        for name in self._dying(at, node):
            tensor = self._tensors.pop(name)
            self._replay.release(tensor.storage, node.line)

    def _define(self, at: int, leaf: IrNode, made: IrBuffer) -> None:
        graph, name = self._graph, made.name
        buffer = graph.buffers[name]
        home = graph.memory_of(name)
        if home != name:
            if buffer.mutations and home in self._tensors:
                self._replay.storages[self._tensors[home].storage].mutated = True
            elif home not in self._tensors and home in graph.buffers:
                self._allocate(graph.buffers[home], buffer.line)  # a part of a concatenation
            return
        if not graph.owns_memory(buffer) or graph.inside_one_node(buffer) or home in self._tensors:
            return
        over = self._written_over(at, leaf, buffer)
        if over is None:
            self._allocate(buffer, buffer.line)
            return
        tensor = Tensor(self._tensors.pop(over).storage, buffer.layout)
        self._replay.name_value(name, tensor)
        self._tensors[name] = tensor

    def _allocate(self, buffer: IrBuffer, line: int) -> None:
        layout = buffer.layout
        size = layout.storage_bytes if layout is not None else None
        self._hold(buffer.name, self._replay.allocate(buffer.name, size, line, layout=layout))
        if size is None:
            layout_text = "no layout" if layout is None else f"{layout}"
            reason = f"the size of {buffer.name} is not in the dump: {layout_text}"
            self._unknown(self._replay.position, buffer.name, line, reason)

    def _set_storage(self, argument: str, source: str) -> None:
        """`argument` gets the memory of `source`, and keeps it for the caller."""
        tensor = self._tensors.get(self._graph.memory_of(source))
        if tensor is not None:
            self._replay.storages[tensor.storage].live_out = True
            self._replay.notes.append(f"{argument} is given the memory of {source}")

    def _written_over(self, at: int, leaf: IrNode, buffer: IrBuffer) -> str | None:
        """The buffer that `leaf` may write over; see the module's docstring."""
        if leaf.kind != "SchedulerNode":
            return None
        for dependency in self._graph.reads_of(leaf):
            other = self._graph.buffers.get(dependency.name)
            if (
                other is not None
                and other.name in self._tensors
                and self._is_last_use(leaf, other)
                and not self._graph.definer[other.name].is_nop
                and not (other.layout_kind or "").startswith(_NOT_REUSED)
                and not (other.aliases or other.mutations)
                and _same_size(other, buffer)
                and self._one_index(at, other)
            ):
                return other.name
        return None

    def _is_last_use(self, leaf: IrNode, other: IrBuffer) -> bool:
        left = [user for user in other.users if user.node not in self._done]
        return len(left) == 1 and left[0].can_inplace and left[0].node == leaf.name

    def _one_index(self, at: int, other: IrBuffer) -> bool:
        """Whether the parts of the node at `at` use `other` at one index."""
        uses = {
            dependency
            for leaf in self._graph.nodes[at].leaves
            for dependency in (*leaf.reads, *leaf.writes)
            if dependency.name == other.name and dependency.kind != "WeakDep"
        }
        return len(uses) <= 1

    def _dying(self, at: int, node: IrNode) -> Iterator[str]:
        """Buffers that no later node uses."""
        names = read_names(self._graph, node.leaves)
        made = (buffer for leaf in node.leaves for buffer in leaf.outputs)
        names |= {self._graph.memory_of(buffer.name) for buffer in made}
        for name in sorted(names):
            held = name in self._tensors and name in self._graph.buffers
            if held and self._last.get(name) == at and name not in self._kept:
                yield name

    def _kernel(self, node: IrNode) -> InductorKernel:
        graph = self._graph
        reads = dict.fromkeys(
            dependency.name for leaf in node.leaves for dependency in graph.reads_of(leaf)
        )
        inner = {buffer.name for leaf in node.leaves for buffer in leaf.outputs}
        return InductorKernel(
            position=self._replay.position,
            kind=node_kind(node),
            name=node.kernel or node.name,
            line=node.line,
            reads=tuple(name for name in reads if name not in inner),
            writes=tuple(
                buffer.name
                for leaf in node.leaves
                for buffer in leaf.outputs
                if not graph.inside_one_node(buffer)
            ),
            node=node.name,
        )

    def _note_subgraph(self) -> None:
        """Notes that the IR is a subgraph's: torch keeps the last of a graph's subgraphs."""
        prefixes = {match[1] for leaf in self._graph.leaves if (match := _PREFIX.match(leaf.name))}
        if len(prefixes) == 1 and all(_PREFIX.match(leaf.name) for leaf in self._graph.leaves):
            line = self._graph.leaves[0].line
            self._unknown(0, prefixes.pop(), line, "the graph that calls it is missing")

    def _note_unknown(self, node: IrNode) -> None:
        position = self._replay.position - 1
        if node.inner in _CALLS_SUBGRAPH:
            reason = "the subgraph that it runs is not in the dump"
            self._unknown(position, node.name, node.line, reason)
            return
        if node_kind(node) != KernelKind.FALLBACK or not hides_bytes(node.kernel or ""):
            return
        results = [
            tensor for buffer in node.outputs for tensor in self._results.get(buffer.name, ())
        ]
        size = sum_if_known(
            tensor.layout.storage_bytes if tensor.layout is not None else None for tensor in results
        )
        reason = "what the operator allocates inside is not in the dump"
        self._unknown(position, node.kernel or node.name, node.line, reason, size)


def _sizes_of_operands(graph: IrGraph, product: IrNode) -> Iterator[tuple[str, int]]:
    """Names and bytes of the operands of a product that have no layout.

    A product [M, N] of a known operand [M, K] has another one of K × N elements. Which operand is
    which follows from the sizes; if it does not, the size stays unknown.
    """
    names = [graph.memory_of(dependency.name) for dependency in graph.reads_of(product)]
    result = graph.layouts.get(product.outputs[0].name) if product.outputs else None
    if len(names) != 2 or result is None or result.item_bytes is None or len(result.shape) != 2:
        return
    for known, unknown in (names, names[::-1]):
        operand = graph.layouts.get(known)
        if operand is None or unknown in graph.layouts or operand.dtype != result.dtype:
            continue
        count, (rows, columns) = operand.elements, result.shape
        if count and isinstance(rows, int) and isinstance(columns, int):
            possible = {
                count // size * other
                for size, other in ((rows, columns), (columns, rows))
                if size in operand.shape and size and count % size == 0
            }
            if len(possible) == 1:
                yield unknown, possible.pop() * result.item_bytes


def _set_storages(node: IrNode) -> Iterator[tuple[str, str]]:
    """Arguments whose memory `set_` replaces, and the buffer whose memory they get."""
    for leaf in node.leaves:
        for buffer in leaf.outputs:
            if buffer.kind == "SetSourceTensorKernel" and len(buffer.aliases) == 2:
                yield buffer.aliases[0], buffer.aliases[1]


def _results_of_fallbacks(graph: IrGraph) -> dict[str, list[IrBuffer]]:
    """Results by the buffer of the call that allocates them."""
    results: dict[str, list[IrBuffer]] = {}
    for leaf in graph.leaves:
        if leaf.inner == "MultiOutput" and len(leaf.unmet) == 1:
            results.setdefault(leaf.unmet[0].name, []).extend(leaf.outputs)
    return results


def node_kind(node: IrNode) -> KernelKind:
    if node.inner == "UserDefinedTritonKernel":
        return KernelKind.USER_TRITON
    if "Template" in node.inner:
        return KernelKind.TEMPLATE
    if node.inner == "MultiOutput":
        return KernelKind.OTHER
    if node.is_extern:
        has_out = node.inner in ("ExternKernelOut",)
        return operator_kind(node.kernel or "", has_out=has_out)
    return KernelKind.CPP if (node.device or "").startswith("cpu") else KernelKind.TRITON


def _same_size(one: IrBuffer, other: IrBuffer) -> bool:
    if one.layout is None or other.layout is None:
        return False
    return (
        one.layout.dtype == other.layout.dtype
        and one.layout.device == other.layout.device
        and one.layout.storage_bytes is not None
        and one.layout.storage_bytes == other.layout.storage_bytes
    )
