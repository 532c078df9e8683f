"""Findings: work and memory that a graph does not need, in the bodies of IR or in wrapper code."""

from collections.abc import Hashable, Iterator

from xlapipe.inductor.allocations import Replay
from xlapipe.inductor.inductor_plan import FindingKind, InductorFinding
from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.ir.loop_bodies import LoopBody, ValueTable, read_body
from xlapipe.inductor.ir.nodes import IrNode
from xlapipe.inductor.wrapper.launches import Launch
from xlapipe.inductor.wrapper.triton_source import TritonKernel

# What a GPU reads at once: elements further apart each cost a whole sector.
_SECTOR_BYTES = 32


class IrFinder:
    """Findings in the bodies of IR, in the order of the nodes."""

    def __init__(self, graph: IrGraph) -> None:
        self._graph = graph
        self._table = ValueTable()
        self._written: set[str] = set()

    def find(self) -> Iterator[InductorFinding]:
        for node in self._graph.nodes:
            yield from self._node(node)

    def _node(self, node: IrNode) -> Iterator[InductorFinding]:
        first: dict[tuple[object, ...], str] = {}
        for leaf in node.leaves:
            body = read_body(leaf.body, self._table) if leaf.body is not None else None
            if body is not None:
                yield from self._uninitialised(leaf, body)
                yield from self._duplicates(leaf, body, first)
            yield from self._never_read(leaf)
            self._advance(leaf, body)

    def _advance(self, leaf: IrNode, body: LoopBody | None) -> None:
        """Records what the buffers hold after a leaf."""
        for store in body.stores if body is not None else ():
            state = self._table.number("stored", store.value, store.place)
            self._table.states[self._graph.memory_of(store.buffer)] = state
        if leaf.is_nop:
            return
        for buffer in leaf.outputs:
            memory = self._graph.memory_of(buffer.name)
            self._written.add(memory)
            if buffer.mutations and body is None:
                self._table.states[memory] = self._table.number("after", buffer.name)

    def _duplicates(
        self, leaf: IrNode, body: LoopBody, first: dict[tuple[object, ...], str]
    ) -> Iterator[InductorFinding]:
        for store in body.stores:
            buffer = self._graph.buffers.get(store.buffer)
            if buffer is None or buffer.layout is None:
                continue
            key = (store.value, store.place, buffer.layout)
            if key in first and first[key] != store.buffer:
                detail = f"{store.buffer} gets the same values as {first[key]}"
                size = buffer.layout.storage_bytes
                yield _finding(FindingKind.DUPLICATE_STORE, leaf, size, detail)
            else:
                first.setdefault(key, store.buffer)

    def _never_read(self, leaf: IrNode) -> Iterator[InductorFinding]:
        for buffer in leaf.outputs:
            if buffer.users or buffer.layout is None or not self._graph.owns_memory(buffer):
                continue
            detail = f"nothing reads {buffer.name}"
            yield _finding(FindingKind.NEVER_READ, leaf, buffer.layout.storage_bytes, detail)

    def _uninitialised(self, leaf: IrNode, body: LoopBody) -> Iterator[InductorFinding]:
        """Loads of memory that was only allocated."""
        for name in dict.fromkeys(body.loads):
            memory = self._graph.memory_of(name)
            definer = self._graph.definer.get(memory)
            if definer is None or not definer.is_nop or memory in self._written:
                continue
            if "Concat" in definer.inner:
                continue
            size = self._graph.element_bytes(memory)
            detail = f"reads {name}, which no kernel has written"
            yield _finding(FindingKind.UNINITIALISED, leaf, size, detail)


def _finding(kind: FindingKind, leaf: IrNode, size: int | None, detail: str) -> InductorFinding:
    return InductorFinding(kind, leaf.name, size, detail, leaf.line)


class WrapperFinder:
    """Findings in wrapper code, in the order of the launches."""

    def __init__(self, replay: Replay) -> None:
        self._launches = replay.launches
        self._storages = replay.storages
        self._table = ValueTable()
        self._written: set[int] = set()
        self._reduced: dict[Hashable, Launch] = {}

    def find(self) -> Iterator[InductorFinding]:
        read: set[int] = set()
        for launch in self._launches:
            yield from self._uninitialised(launch)
            if launch.definition is not None:
                yield from self._inside(launch, launch.definition)
            yield from self._recomputed(launch)
            read.update(operand.tensor.storage for operand in launch.read)
            self._advance(launch)
        yield from self._never_read(read)

    def _advance(self, launch: Launch) -> None:
        """Records what storages hold after a launch."""
        key = self._key(launch)
        first = dict(launch.definition.duplicate_stores) if launch.definition is not None else {}
        for place, operand in enumerate((*launch.written, *launch.outputs)):
            self._written.add(operand.tensor.storage)
            which = first.get(operand.parameter or "", operand.parameter) or place
            self._table.states[operand.tensor.storage] = self._table.number(key, "writes", which)

    def _key(self, launch: Launch) -> Hashable:
        read = (
            (self._table.state(tensor.storage), tensor.layout, tensor.offset_bytes)
            for tensor in (operand.tensor for operand in launch.read)
        )
        return (launch.kernel.name, tuple(read), launch.scalars)

    def _inside(self, launch: Launch, definition: TritonKernel) -> Iterator[InductorFinding]:
        """What the source of a kernel shows."""
        operands = {operand.parameter: operand for operand in launch.operands}
        for pointer, first in definition.duplicate_stores:
            if pointer in operands and first in operands:
                one, other = operands[pointer], operands[first]
                detail = f"{one.name} gets the same values as {other.name}"
                yield self._finding(FindingKind.DUPLICATE_STORE, launch, one.size_bytes, detail)
        for load in definition.strided_loads:
            operand = operands.get(load.pointer)
            layout = operand.tensor.layout if operand is not None else None
            item = layout.item_bytes if layout is not None else None
            if operand is None or item is None or load.stride * item < _SECTOR_BYTES:
                continue
            where = f"reads {operand.name} at {load.index}"
            detail = f"{where}: neighbours are {load.stride} elements apart"
            yield self._finding(FindingKind.STRIDED_READ, launch, operand.size_bytes, detail)
        elements = definition.float64_elements or 0
        if elements > 1:
            detail = f"computes in float64 for each of {elements} elements"
            yield self._finding(FindingKind.FLOAT64, launch, elements * 8, detail)

    def _recomputed(self, launch: Launch) -> Iterator[InductorFinding]:
        definition = launch.definition
        if definition is None or not definition.reductions:
            return
        before = self._reduced.setdefault(self._key(launch), launch)
        if before is launch:
            return
        sizes = [size for operand in launch.read if (size := operand.size_bytes) is not None]
        detail = f"computes what the same kernel computed at position {before.kernel.position}"
        yield self._finding(
            FindingKind.RECOMPUTED_REDUCTION, launch, max(sizes, default=None), detail
        )

    def _uninitialised(self, launch: Launch) -> Iterator[InductorFinding]:
        definition = launch.definition
        if definition is None or definition.heuristic == "user_autotune":
            return
        for operand in launch.read:
            storage = self._storages[operand.tensor.storage]
            if storage.argument or operand.tensor.storage in self._written:
                continue
            if (operand.parameter or "").startswith(("in_ptr", "in_out_ptr")) and (
                operand.parameter not in definition.written
            ):
                detail = f"reads {operand.name}, which no kernel has written"
                yield self._finding(FindingKind.UNINITIALISED, launch, operand.size_bytes, detail)

    def _never_read(self, read: set[int]) -> Iterator[InductorFinding]:
        for number, storage in enumerate(self._storages):
            if storage.argument or storage.live_out or number in read or not storage.counted:
                continue
            yield InductorFinding(
                FindingKind.NEVER_READ,
                self._maker(number) or storage.name,
                storage.size_bytes,
                f"nothing reads {storage.name}",
                storage.line,
            )

    def _finding(
        self, kind: FindingKind, launch: Launch, size: int | None, detail: str
    ) -> InductorFinding:
        kernel = launch.kernel
        return InductorFinding(kind, kernel.name, size, detail, kernel.line, kernel.source)

    def _maker(self, number: int) -> str | None:
        """The kernel that writes a storage."""
        for launch in self._launches:
            if any(operand.tensor.storage == number for operand in launch.written):
                return launch.kernel.name
        return None
