"""Findings: work and memory that a graph does not need, in wrapper code or, without it, in IR."""

from collections.abc import Hashable, Iterator

from xlapipe.inductor.allocations import Replay
from xlapipe.inductor.inductor_plan import FindingKind, InductorFinding
from xlapipe.inductor.ir.graph import IrGraph
from xlapipe.inductor.wrapper.launches import Launch
from xlapipe.inductor.wrapper.triton_source import TritonKernel

# What a GPU reads at once: elements further apart each cost a whole sector.
_SECTOR_BYTES = 32


def ir_findings(graph: IrGraph) -> Iterator[InductorFinding]:
    """Memory that nothing reads, and loops that read what nothing wrote, in the order of nodes."""
    written: set[str] = set()
    for leaf in graph.leaves:
        loads = [item.name for item in leaf.reads if item.kind == "MemoryDep"]
        for name in dict.fromkeys(loads if leaf.kind == "SchedulerNode" else ()):
            memory = graph.memory_of(name)
            definer = graph.definer.get(memory)
            if definer is None or not definer.is_nop or memory in written:
                continue
            if "Concat" not in definer.inner:
                size = graph.element_bytes(memory)
                detail = f"reads {name}, which no kernel has written"
                yield InductorFinding(FindingKind.UNINITIALISED, leaf.name, size, detail, leaf.line)
        for buffer in leaf.outputs:
            if not buffer.users and buffer.layout is not None and graph.owns_memory(buffer):
                size, detail = buffer.layout.storage_bytes, f"nothing reads {buffer.name}"
                yield InductorFinding(FindingKind.NEVER_READ, leaf.name, size, detail, leaf.line)
            if not leaf.is_nop:
                written.add(graph.memory_of(buffer.name))


def wrapper_findings(replay: Replay) -> Iterator[InductorFinding]:
    """Findings, in the order of the launches."""
    return _Finder(replay).find()


class _Finder:
    def __init__(self, replay: Replay) -> None:
        self._launches = replay.launches
        self._storages = replay.storages
        # Numbers of values from 1, equal ones alike; and what a storage holds, at first its own.
        self._numbers: dict[Hashable, int] = {}
        self._states: dict[int, int] = {}
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
            value = self._numbers.setdefault((key, which), len(self._numbers) + 1)
            self._states[operand.tensor.storage] = value

    def _key(self, launch: Launch) -> Hashable:
        read = (
            (self._states.get(tensor.storage, -tensor.storage), tensor.layout, tensor.offset_bytes)
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
