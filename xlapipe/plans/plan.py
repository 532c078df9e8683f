"""A Plan: everything that the dump of one module contains about memory and execution."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xlapipe.devices.platforms import platform_named
from xlapipe.plans.buffers import (
    AllocationKind,
    BufferAllocation,
    InputOutputAlias,
    LogicalBuffer,
    Totals,
    split_value_name,
)
from xlapipe.plans.collectives import Collective, find_collectives, has_collectives
from xlapipe.plans.dataflow import Dataflow, Path, Value, dataflow_of
from xlapipe.plans.gemms import Gemm, GemmBackend, find_gemms
from xlapipe.plans.hlo import Computation, HloModule, Instruction, SourceLine
from xlapipe.plans.kernel_code import KernelCode, StatedCost
from xlapipe.plans.live_ranges import LiveRanges
from xlapipe.plans.memory_spaces import MemorySpace, space_of
from xlapipe.plans.missing_memory import (
    MissingKind,
    MissingMemory,
    scratch_estimate_bytes,
    sorts_for_cub,
)
from xlapipe.plans.opcodes import RUNS_ONCE
from xlapipe.plans.shapes import Shape
from xlapipe.plans.thunks import Thunk

Placed = tuple[BufferAllocation, LogicalBuffer]
"""A value, and the allocation that it is in."""


@dataclass(frozen=True)
class Plan:
    """What a reader read. A part that the files do not contain is None, never empty or zero.

    Attributes:
      total_bytes_used: the total that XLA printed; `verify` checks the allocations against it.
      header_aliases: input_output_alias of the module header; None without a header.
      notes: parts of the dump that could not be read, each with file and line.
      platform: jax's name of the platform; it determines the meaning of memory space numbers.
      sorts_undecided: whether XLA takes another decision about CUB for sorts on the device, which
        the compile could not take.
      stated_costs: costs of Pallas kernels, by the author; see `StatedCost`.
      kernel_codes: codes of Pallas kernels; see `KernelCode`.
      rematerialised_bytes: XLA's estimates of the peak before and after it added instructions that
        compute values again; None if it added none, or if they are unknown.
      stated_trips: trips of each loop whose number the plan does not have, by the author.
      topology: hosts and GPUs of each, `8x8`; None for one device, or if it is unknown.
      buffer_donors: (parameter number, shape index) of donated parameters without an alias.
    """

    allocations: tuple[BufferAllocation, ...]
    total_bytes_used: int | None = None
    module: HloModule | None = None
    header_aliases: tuple[InputOutputAlias, ...] | None = None
    buffer_donors: tuple[tuple[int, tuple[int, ...]], ...] | None = None
    live_ranges: LiveRanges | None = None
    thunks: tuple[Thunk, ...] | None = None
    notes: tuple[str, ...] = ()
    sorts_undecided: bool = False
    stated_costs: tuple[StatedCost, ...] = ()
    stated_trips: int | None = None
    topology: str | None = None
    kernel_codes: tuple[KernelCode, ...] = ()
    rematerialised_bytes: tuple[int, int] | None = None
    platform: str = "cuda"

    def __repr__(self) -> str:
        """A line: all fields of a real plan are megabytes of text."""
        count = len(self.allocations)
        total = self.totals.total_allocation_bytes
        return f"<Plan of {count:,} allocations, {total:,} B, on {self.platform}>"

    @cached_property
    def totals(self) -> Totals:
        """Bytes in device memory; those in other memories are in `spaces`."""
        return Totals.of(self.device_allocations)

    @cached_property
    def device_allocations(self) -> tuple[BufferAllocation, ...]:
        """The allocations in the device's own memory."""
        return self.allocations_in(MemorySpace.HBM)

    def allocations_in(self, space: MemorySpace) -> tuple[BufferAllocation, ...]:
        """The allocations in one memory space, in the order of their indices."""
        platform = platform_named(self.platform)
        return tuple(
            allocation
            for allocation in self.allocations
            if space_of(allocation.color, platform) is space
        )

    @cached_property
    def spaces(self) -> Mapping[MemorySpace, Totals]:
        """Bytes by memory space: HBM and host always, others if the plan uses them."""
        allocations = {space: self.allocations_in(space) for space in MemorySpace}
        always = (MemorySpace.HBM, MemorySpace.HOST)
        return {
            space: Totals.of(inside)
            for space, inside in allocations.items()
            if inside or space in always
        }

    @cached_property
    def host_callbacks(self) -> tuple[Instruction, ...]:
        """Custom calls into the host's Python, such as `jax.debug.print` and `io_callback`."""
        return tuple(self._calls(platform_named(self.platform).callback_calls))

    @cached_property
    def calls_finished_on_device(self) -> tuple[Instruction, ...]:
        """Custom calls that XLA compiles with a library on the device, such as cuDNN's."""
        return tuple(self._calls(platform_named(self.platform).calls_finished_on_device))

    def _calls(self, targets: str | tuple[str, ...] = "") -> Iterator[Instruction]:
        """The custom calls whose targets begin so."""
        for instruction in self.instructions.values():
            target = instruction.custom_call_target
            if target is not None and target.startswith(targets):
                yield instruction

    @cached_property
    def unfinished_calls(self) -> tuple[Instruction, ...]:
        """Custom calls whose workspace is not in the plan, since no GPU has stated its size.

        Such a call ends in a workspace of no bytes.
        """
        return tuple(
            call
            for call in self.calls_finished_on_device
            if call.shape.is_tuple and call.shape.arrays[-1].text == "u8[0]{0}"
        )

    @cached_property
    def untuned_calls(self) -> tuple[Instruction, ...]:
        """Custom calls without an algorithm and its workspace: no autotune result names one."""
        pattern = platform_named(self.platform).untuned_call
        return tuple(
            call
            for call in self._calls()
            if pattern is not None and pattern.search(call.backend_config)
        )

    @cached_property
    def convolutions_by_xla(self) -> tuple[Instruction, ...]:
        """Convolutions in XLA's own kernels that a library of the device computes there."""
        if self.module is None or not platform_named(self.platform).convolution_options:
            return ()
        instructions = (item for _, item in self.module.instructions())
        return tuple(item for item in instructions if item.opcode == "convolution")

    @cached_property
    def missing_memory(self) -> tuple[MissingMemory, ...]:
        """What the step may need more on the device than in the plan."""
        calls = (
            MissingMemory(MissingKind.CUDNN_CALL, call.name, None, call.source)
            for call in self.unfinished_calls
        )
        sorts = (
            MissingMemory(MissingKind.SORT, sort.name, scratch_estimate_bytes(sort), sort.source)
            for sort in (sorts_for_cub(self.module) if self.sorts_undecided else ())
        )
        convolutions = (
            MissingMemory(MissingKind.CONVOLUTION, item.name, None, item.source)
            for item in self.convolutions_by_xla
        )
        return (*calls, *sorts, *convolutions)

    @cached_property
    def aliases(self) -> tuple[InputOutputAlias, ...]:
        """Aliases of the header; without a header, the parameters in maybe-live-out allocations."""
        if self.header_aliases is not None:
            return self.header_aliases
        return tuple(
            InputOutputAlias(allocation.parameter_number, None, allocation.parameter_shape_index)
            for allocation in self.allocations
            if allocation.parameter_number is not None
            and allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
        )

    @cached_property
    def gemms(self) -> tuple[Gemm, ...]:
        """Every matrix product; empty if the dump has no HLO."""
        if self.module is None:
            return ()
        names = platform_named(self.platform).library_names
        gemms = find_gemms(self.module)
        return tuple(
            replace(gemm, backend=GemmBackend(names.get(gemm.backend, gemm.backend)))
            for gemm in gemms
        )

    @cached_property
    def collectives(self) -> tuple[Collective, ...] | None:
        """Every collective; None if the dump has no complete HLO module."""
        if self.module is None or not self.module.complete:
            return None
        if not has_collectives(self.module):
            return ()  # saves the search for gemms in programs of one device
        collectives = find_collectives(self.module, self.gemms, self.live_ranges)
        return tuple(
            collective
            if collective.source
            else replace(collective, source=self.nearest_source(collective.instruction))
            for collective in collectives
        )

    @cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        """Instructions outside fusion bodies, by name."""
        if self.module is None:
            return {}
        return {instruction.name: instruction for _, instruction in self.module.scheduled()}

    @cached_property
    def allocation_of_value(self) -> Mapping[str, BufferAllocation]:
        """The allocation of each value, by the value's name (`name` or `name{index}`)."""
        return {value.name: allocation for allocation, value in self._placed_values.values()}

    @cached_property
    def thunk_counts(self) -> Mapping[str, int] | None:
        """Number of thunks of each kind, including nested ones; None if the dump has no thunks."""
        if self.thunks is None:
            return None
        return dict(sorted(Counter(thunk.kind for thunk in self.thunks).items()))

    def nearest_source(self, name: str) -> SourceLine | None:
        """Source line of an instruction, or of the nearest instruction that uses or feeds it.

        Parameters and the copies that XLA inserts have no source line.

        Args:
          name: of an instruction or a value; each of several results of a fusion has its own line.
        """
        instruction, index = split_value_name(name)
        nearest = self.nearest_traced(instruction)
        traced = self.instructions[nearest].source if nearest is not None else None
        fused = self._source_in_fusion(instruction, index) if index or traced is None else None
        return fused or traced

    def nearest_traced(self, name: str) -> str | None:
        """The instruction that `nearest_source` has its line from; None if it is none."""
        return self._nearest_traced.get(name)

    def _source_in_fusion(self, name: str, index: tuple[int, ...]) -> SourceLine | None:
        """Line of the nearest operation of a fusion's body that feeds one of its results.

        XLA's fusion of a softmax has no line of its own.
        """
        fusion = self.instructions.get(name)
        if fusion is None or fusion.opcode != "fusion" or self.module is None:
            return None
        body = self.module.computations.get(fusion.called_computations[0])
        root = body.by_name[body.root] if body is not None else None
        if body is None or root is None or bool(index) != (root.opcode == "tuple"):
            return None
        pending = list(root.operands[index[0] : index[0] + 1]) if index else [root.name]
        for operand in pending:  # nearest first: operands are added at the end
            source = body.by_name[operand].source
            if source is not None:
                return source
            pending.extend(item for item in body.by_name[operand].operands if item not in pending)
        return None

    @cached_property
    def _nearest_traced(self) -> Mapping[str, str]:
        """By a search over users, else over operands."""
        sources = [
            name
            for name, instruction in self.instructions.items()
            if instruction.source is not None and instruction.opcode != "parameter"
        ]
        # A tuple's other elements are unrelated.
        tuples = {name for name, ins in self.instructions.items() if ins.opcode == "tuple"}
        operands = self._reached_operands()
        users = _users_of(operands)
        before = nearest_sources(sources, operands, users, ends=tuples)
        return before | nearest_sources(sources, users, operands)

    def _reached_operands(self) -> Mapping[str, tuple[str, ...]]:
        """Operands, also from what an asynchronous or plain call runs to what it is given."""
        operands = {name: item.operands for name, item in self.instructions.items()}
        if self.module is None:
            return operands
        for name, instruction in self.instructions.items():
            if instruction.opcode not in RUNS_ONCE:
                continue
            for callee in self.module.called(instruction.called_computations, through=()):
                operands[name] = (*operands[name], callee.root)
                for parameter in callee.parameters.values():
                    number = parameter.parameter_number or 0
                    given = instruction.operands[number : number + 1]
                    operands[parameter.name] = (*operands.get(parameter.name, ()), *given)
        return operands

    def users_of(self, name: str) -> tuple[str, ...]:
        """Instructions outside fusion bodies that have `name` as an operand."""
        return self._users.get(name, ())

    def source_in(self, allocation: BufferAllocation) -> SourceLine | None:
        """Source line of the largest value in `allocation` that has one."""
        for value in sorted(allocation.values, key=lambda value: -value.size_bytes):
            source = self.nearest_source(value.name)
            if source is not None:
                return source
        return None

    @cached_property
    def _users(self) -> Mapping[str, tuple[str, ...]]:
        return _users_of({name: item.operands for name, item in self.instructions.items()})

    def parameter(self, number: int | None) -> Instruction | None:
        """The entry's parameter `number`; None without HLO."""
        return self.entry.parameters.get(number) if self.entry and number is not None else None

    def parameter_allocation(self, number: int | None) -> BufferAllocation | None:
        """The allocation of entry parameter `number`, or None."""
        return self._parameter_allocations.get(number) if number is not None else None

    @cached_property
    def _parameter_allocations(self) -> Mapping[int, BufferAllocation]:
        return {
            allocation.parameter_number: allocation
            for allocation in reversed(self.allocations)  # the first of several
            if allocation.parameter_number is not None
        }

    def output_allocation(self, index: int, *, of: int) -> BufferAllocation | None:
        """The allocation of output `index` of `of` outputs; None if the HLO does not show it."""
        alias = self._alias_of_output.get((index,) if of != 1 or self._root_is_tuple else ())
        if alias is not None:
            return self.parameter_allocation(alias.parameter_number)
        if self.entry is None:
            return None
        path = (index,) if self._root_is_tuple else ()
        place = self.place_of(Value(self.entry, self.entry.by_name[self.entry.root], path))
        return place[0] if place is not None else None

    @cached_property
    def _alias_of_output(self) -> Mapping[tuple[int, ...] | None, InputOutputAlias]:
        return {alias.output_index: alias for alias in reversed(self.aliases)}

    @cached_property
    def alias_of_parameter(self) -> Mapping[int, InputOutputAlias]:
        """The first alias of each parameter number."""
        return {alias.parameter_number: alias for alias in reversed(self.aliases)}

    @property
    def entry(self) -> Computation | None:
        """The entry computation; None without HLO."""
        return self.module.entry_computation if self.module is not None else None

    @property
    def result_shape(self) -> Shape | None:
        """Shape of the entry computation's root, on one device."""
        entry = self.entry
        return entry.by_name[entry.root].shape if entry is not None else None

    @property
    def _root_is_tuple(self) -> bool:
        return self.result_shape is not None and self.result_shape.is_tuple

    def place_of(self, value: Value) -> Placed | None:
        """The allocation of a value and what XLA lists at its place in it.

        The place is that of the nearest value of the same memory (`Dataflow.same_memory`) that
        XLA lists.

        Returns:
          None without one, e.g. in the body of a fusion, or in a dump without HLO.
        """
        passed: list[tuple[str, str, Path]] = []
        place: Placed | None = None
        for other in self._dataflow.same_memory(value):
            key = other.instruction.name, other.path
            place = self._places.get(other.key) or self._placed_values.get(key)
            if place is not None:
                break
            passed.append(other.key)
        if place is not None:
            self._places.update(dict.fromkeys(passed, place))
        return place

    @cached_property
    def _places(self) -> dict[tuple[str, str, Path], Placed]:
        """Places that were found, so that long chains of names are followed once."""
        return {}

    @cached_property
    def _placed_values(self) -> Mapping[tuple[str, Path], Placed]:
        return {
            (value.instruction, value.index): (allocation, value)
            for allocation in self.allocations
            for value in allocation.values
        }

    @cached_property
    def _dataflow(self) -> Dataflow:
        assert self.module is not None
        return dataflow_of(self.module)

    @cached_property
    def values_of_instruction(self) -> Mapping[str, list[Placed]]:
        """The values that each instruction defines, with their allocations, by its name."""
        values: dict[str, list[Placed]] = {}
        for allocation in self.allocations:
            for value in allocation.values:
                values.setdefault(value.instruction, []).append((allocation, value))
        return values


def _users_of(operands: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    users: dict[str, list[str]] = {}
    for name, names in operands.items():
        for operand in names:
            users.setdefault(operand, []).append(name)
    return {name: tuple(names) for name, names in users.items()}


def nearest_sources(
    own: Iterable[str],
    neighbours: Mapping[str, Sequence[str]],
    neighbour_of: Mapping[str, Sequence[str]],
    *,
    ends: Collection[str] = (),
) -> dict[str, str]:
    """The instruction with a source line that a breadth-first search from each one finds first.

    One search from all of them at once, in time linear in instructions and operands: an instruction
    at distance d takes that of its first neighbour at distance d - 1.

    Args:
      own: the instructions that have a source line.
      neighbours: where a search goes from each instruction.
      neighbour_of: the same edges in the other direction.
      ends: instructions from which a search does not go on.

    Returns:
      The nearest instruction by name; no entry for an instruction that reaches none.
    """
    sources = {name: name for name in own}
    latest = list(sources)
    while latest:
        reached = {
            name: None
            for neighbour in latest
            for name in neighbour_of.get(neighbour, ())
            if name not in sources and name not in ends
        }
        nearest = {
            name: next(sources[other] for other in neighbours[name] if other in sources)
            for name in reached
        }
        sources.update(nearest)
        latest = list(nearest)
    return sources
