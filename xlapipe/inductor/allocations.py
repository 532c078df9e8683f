"""Replays allocations, references and frees in order, and counts the bytes that are held.

Both readers use it: wrapper code gives its own statements, and liveness over IR gives those that
it would need. Memory is freed where its last reference goes, as in Python.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from xlapipe.inductor.inductor_plan import (
    InductorKernel,
    Lifetime,
    ResizedStorage,
    UnknownAllocation,
)
from xlapipe.inductor.layouts import Layout, Tensor
from xlapipe.inductor.wrapper.launches import Launch
from xlapipe.plans import AllocationKind, BufferAllocation, LiveRange, LogicalBuffer
from xlapipe.plans.shapes import shape_of


@dataclass(slots=True)
class Storage:
    """Memory that one allocation took.

    Attributes:
      held: whether the caller keeps it whatever the call does.
      counted: whether it is memory of the accelerator, of a known size.
      start, end: in schedule positions; `end` is None while it is held.
      began, ended: numbers of the event that allocated and freed it.
      largest_bytes: its size when it was largest; it may be resized.
      values: name, tensor, and the position from which it is there.
    """

    name: str
    size_bytes: int | None
    line: int
    argument: bool
    held: bool
    counted: bool
    start: int
    began: int
    references: int = 0
    end: int | None = None
    ended: int | None = None
    freed_line: int | None = None
    constant: bool = False
    live_out: bool = False
    mutated: bool = False
    largest_bytes: int = 0
    values: list[tuple[str, Tensor, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReplayedArgument:
    """An argument of the call; `tensor` is None for a number."""

    name: str
    layout: Layout | None
    tensor: Tensor | None
    given: bool


class Replay:
    """The state of memory while a call runs, and what was found so far.

    Args:
      on_host: whether the graph runs on the CPU alone, so that its memory is what counts.

    Attributes:
      kernels: what was launched so far; their number is the position of the next.
      own_bytes: held now beyond the arguments, freed arguments subtracted.
      peak_bytes, peak_position, peak_line: where that was largest.
      all_bytes: held now by the call and as arguments that the call has not deleted.
      all_peak_bytes: where that was largest.
      returned: each entry of the returned tuple, with its name.
    """

    def __init__(self, *, on_host: bool = False) -> None:
        self._on_host = on_host
        self.storages: list[Storage] = []
        self.kernels: list[InductorKernel] = []
        self.launches: list[Launch] = []
        self.arguments: list[ReplayedArgument] = []
        self.returned: list[tuple[str, Tensor | None]] = []
        self.unknown: list[UnknownAllocation] = []
        self.resized: list[ResizedStorage] = []
        self.notes: list[str] = []
        self.own_bytes = 0
        self.peak_bytes = 0
        self.peak_position: int | None = None
        self.peak_line: int | None = None
        self.all_bytes = 0
        self.all_peak_bytes = 0
        self._events = 0
        self._peak_event = 0
        self._names: dict[str, int] = {}

    @property
    def position(self) -> int:
        """Schedule position of the next kernel."""
        return len(self.kernels)

    def allocate(
        self,
        name: str,
        size_bytes: int | None,
        line: int,
        *,
        argument: bool = False,
        held: bool = False,
        layout: Layout | None = None,
    ) -> Tensor:
        """A tensor of a layout in a new storage without references."""
        self._events += 1
        counted = size_bytes is not None and self.counts(layout)
        began = 0 if argument else self._events
        self.storages.append(
            Storage(name, size_bytes, line, argument, held, counted, self.position, began)
        )
        self.storages[-1].largest_bytes = size_bytes or 0
        if counted and not argument:
            self._change(size_bytes or 0, line)
        elif counted:
            self._change_all(size_bytes or 0)
        return Tensor(len(self.storages) - 1, layout)

    def return_(self, name: str, tensor: Tensor | None) -> None:
        """Records what the call returns next; None for a number."""
        self.returned.append((name, tensor))
        if tensor is not None:
            self.storages[tensor.storage].live_out = True

    def note(self, text: str) -> None:
        """Records an assumption, once."""
        if text not in self.notes:
            self.notes.append(text)

    def counts(self, layout: Layout | None) -> bool:
        """Whether a tensor's memory is counted: the accelerator's, or in a CPU graph the host's."""
        return self._on_host or layout is None or layout.on_device

    def hold(self, storage: int) -> None:
        """One more reference."""
        self.storages[storage].references += 1

    def release(self, storage: int, line: int) -> None:
        """One reference less; the storage is freed with the last one."""
        released = self.storages[storage]
        released.references -= 1
        if released.references > 0 or released.ended is not None:
            return
        if released.held:
            if released.counted and not released.references:
                self._change_all(-(released.size_bytes or 0))
            return
        self._events += 1
        released.ended = self._events
        released.end = max(released.start, self.position - 1)
        released.freed_line = line
        if released.counted:
            self._change(-(released.size_bytes or 0), line)

    def resize(self, storage: int, size_bytes: int, line: int) -> None:
        """Gives a storage another size, as FSDP does to free and fill gathered weights."""
        resized = self.storages[storage]
        before, resized.size_bytes = resized.size_bytes, size_bytes
        resized.largest_bytes = max(resized.largest_bytes, size_bytes)
        if not resized.counted or before is None or resized.ended is not None:
            return
        self._events += 1
        self._change(size_bytes - before, line)

    def name_value(self, name: str, tensor: Tensor) -> None:
        """Records that `tensor` is called `name`, for the list of values in its storage.

        A name that is bound again to another storage, as in an inlined function, gets a number.
        """
        storage = self.storages[tensor.storage]
        values = storage.values
        if storage.argument and (tensor.offset_bytes or 0) > (storage.size_bytes or 0):
            return  # the caller's memory goes on beyond the argument
        if any(known == name and other == tensor for known, other, _ in values):
            return
        count = self._names.get(name, 0) + 1
        self._names[name] = count
        unique = name if count == 1 else f"{name}#{count}"
        values.append((unique, tensor, self.position))

    def _change(self, difference: int, line: int) -> None:
        self._change_all(difference)
        self.own_bytes += difference
        if self.own_bytes > self.peak_bytes:
            self.peak_bytes = self.own_bytes
            self.peak_position, self.peak_line = self.position, line
            self._peak_event = self._events

    def _change_all(self, difference: int) -> None:
        self.all_bytes += difference
        self.all_peak_bytes = max(self.all_peak_bytes, self.all_bytes)

    # What the plan is made of, once the call has returned.

    def allocations(self) -> tuple[tuple[BufferAllocation, ...], dict[int, int]]:
        """Allocations in the order in which they were made, and their index by storage."""
        index: dict[int, int] = {}
        made: list[BufferAllocation] = []
        numbers = {
            argument.tensor.storage: number
            for number, argument in reversed(list(enumerate(self.arguments)))
            if argument.tensor is not None
        }
        for number, storage in enumerate(self.storages):
            if storage.counted:
                index[number] = len(made)
                made.append(_allocation(storage, len(made), numbers.get(number)))
        return tuple(made), index

    def lifetimes(self) -> tuple[Lifetime, ...]:
        return tuple(
            Lifetime(
                storage.start,
                len(self.kernels) if storage.end is None else storage.end,
                storage.began <= self._peak_event
                and (storage.ended is None or storage.ended > self._peak_event),
                storage.ended is None,
                storage.line,
                storage.freed_line,
            )
            for storage in self.storages
            if storage.counted
        )

    def live_ranges(self) -> Iterator[LiveRange]:
        """When each value is there: until the next value at the same place, or the end."""
        for storage in self.storages:
            if not storage.counted:
                continue
            end = len(self.kernels) if storage.end is None else storage.end
            for at, (name, tensor, start) in enumerate(storage.values):
                later = (
                    begin
                    for _, other, begin in storage.values[at + 1 :]
                    if begin > start and other.offset_bytes == tensor.offset_bytes
                )
                yield LiveRange(name, start, max(start, min(next(later, end), end)))


def _allocation(storage: Storage, index: int, parameter: int | None) -> BufferAllocation:
    kinds = []
    if storage.argument:
        kinds.append(AllocationKind.PARAMETER)
    if storage.constant:
        kinds.append(AllocationKind.CONSTANT)
    if storage.live_out or (storage.argument and storage.held and storage.mutated):
        kinds.append(AllocationKind.MAYBE_LIVE_OUT)
    values = (
        LogicalBuffer(
            name,
            tensor.offset_bytes or 0,
            _size_of(tensor, storage),
            shape_of(str(tensor.layout) if tensor.layout is not None else "?"),
        )
        for name, tensor, _ in storage.values
    )
    ordered = sorted(values, key=lambda value: (value.offset_bytes, value.size_bytes, value.name))
    return BufferAllocation(
        index,
        storage.largest_bytes,
        tuple(kinds),
        parameter_number=parameter,
        values=tuple(ordered),
    )


def _size_of(tensor: Tensor, storage: Storage) -> int:
    """Bytes of a value; the rest of its storage if its layout is unknown."""
    left = storage.largest_bytes - (tensor.offset_bytes or 0)
    size = tensor.layout.storage_bytes if tensor.layout is not None else None
    if size is None or storage.argument:
        return left if size is None else min(size, left)
    return size
