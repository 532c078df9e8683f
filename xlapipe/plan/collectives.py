"""Collectives: what devices exchange, how much of it, and what is computed meanwhile.

XLA:GPU writes one of them in three ways: `all-gather` alone, which waits for its end; an
`all-gather-start` with its `-done`, which waits all the same where the config says `is_sync`; and
an `async-start` that calls a computation with an `all-gather` in it, with its `async-done`. All
three are one `Collective` here. So is one that XLA combined from several: it has several results.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plan.collective_bytes import Groups, common_size, operand_bytes_of, wire_bytes
from xlapipe.plan.combined_scopes import split_scopes
from xlapipe.plan.dataflow import Dataflow, Site
from xlapipe.plan.gemms import Gemm
from xlapipe.plan.hlo import WITH_GROUPS, Computation, HloModule, Instruction, SourceLine
from xlapipe.plan.live_ranges import LiveRanges
from xlapipe.plan.loops import executions
from xlapipe.plan.shapes import arrays_of, shape_bytes

# Pairs, or devices of a group, that are listed one by one.
_SHOWN = 8
_HOLDS = WITH_GROUPS | {"async-start", "call", "fusion"}
# What takes no time on the device, or waits for what was begun before.
_NO_WORK = frozenset(
    {"after-all", "async-done", "async-update", "bitcast", "constant", "copy-done", "copy-start"}
    | {"get-tuple-element", "opt-barrier", "parameter", "partition-id", "replica-id", "tuple"}
)


@dataclass(frozen=True)
class Collective:
    """One collective of the optimised module. Bytes are those of one device, at one execution.

    Attributes:
      instruction: the scheduled instruction: the collective, or the one that starts it.
      done: the one that waits for its end; None for a synchronous spelling.
      defined_by: names of instructions that may define the values of its result.
      kind: `all-gather`, `all-reduce`, `reduce-scatter`, `all-to-all`, `collective-permute`,
        `collective-broadcast` or `ragged-all-to-all`.
      operands: names, as the scheduled instruction has them.
      results: shapes of the arrays of the result, more than one where XLA combined several.
      operand_bytes, output_bytes: of all operands, of all results; None where the dump does not
        tell. For an operand that is a part of a tuple it is taken from the result.
      replica_groups: device ids; none stands for one group of all devices.
      asynchronous: whether others may run between its start and its end.
      overlapped_by: instructions with work of their own that are scheduled between the two.
      overlapped_gemms: matrix products among them and in what they call.
      start, end: schedule positions of `instruction` and of `done`; None without live ranges.
      executions: how often it runs when the step runs once, a loop's trips counted; None where
        a loop's trips are unknown, and in a branch of a conditional.
    """

    instruction: str
    done: str | None
    defined_by: tuple[str, ...]
    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    operand_bytes: int | None
    output_bytes: int | None
    replica_groups: Groups
    source_target_pairs: tuple[tuple[int, int], ...]
    asynchronous: bool
    overlapped_by: tuple[str, ...]
    overlapped_gemms: int
    start: int | None
    end: int | None
    executions: int | None
    op_name: str | None
    source: SourceLine | None

    @property
    def group_size(self) -> int | None:
        """Devices that join; None for groups of different sizes, pairs, or all devices."""
        return common_size(self.replica_groups)

    @property
    def devices(self) -> str:
        """The groups, or the pairs, as text; of many devices how many and the first group."""
        if self.source_target_pairs:
            pairs = [f"{source}→{target}" for source, target in self.source_target_pairs]
            more = f",… {len(pairs)} pairs" if len(pairs) > _SHOWN else ""
            return ",".join(pairs[:_SHOWN]) + more
        groups, size = self.replica_groups, self.group_size
        if not groups:
            return "all"
        if size is None or len(groups) * size <= 2 * _SHOWN:
            return ",".join(f"{{{','.join(map(str, group))}}}" for group in groups)
        first = groups[0]
        if size > _SHOWN:
            first_text = f"{first[0]},{first[1]},…,{first[-1]}"
        else:
            first_text = ",".join(map(str, first))
        return f"{len(groups)} × {size}: {{{first_text}}}" + (",…" if len(groups) > 1 else "")

    @property
    def wire_bytes(self) -> int | None:
        """What a device sends at each execution, at least; see `xlapipe.plan.collective_bytes`."""
        return wire_bytes(self.kind, self.operand_bytes, self.output_bytes, self.group_size)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The op_names of what XLA combined into it."""
        return split_scopes(self.op_name)

    def of_step(self, size_bytes: int | None) -> int | None:
        """`size_bytes` times the executions of a step."""
        if size_bytes is None or self.executions is None:
            return None
        return size_bytes * self.executions

    def crosses_hosts(self, gpus_per_host: int) -> bool | None:
        """Whether devices of different hosts join; None where it joins all, however many."""
        joined = [*self.replica_groups, *self.source_target_pairs]
        if not joined:
            return None
        return any(len({device // gpus_per_host for device in group}) > 1 for group in joined)


def find_collectives(
    module: HloModule, gemms: tuple[Gemm, ...], live_ranges: LiveRanges | None
) -> tuple[Collective, ...]:
    """Every collective that the entry of a complete module leads to, in the module's order."""
    return tuple(_Finder(module, gemms, live_ranges).find())


def has_collectives(module: HloModule) -> bool:
    """Whether there is any, whoever leads to it."""
    return any(not each.opcodes.isdisjoint(WITH_GROUPS) for each in module.computations.values())


class _Finder:
    def __init__(
        self, module: HloModule, gemms: tuple[Gemm, ...], live_ranges: LiveRanges | None
    ) -> None:
        self._module = module
        self._dataflow = Dataflow(module)
        self._gemms = frozenset(gemm.instruction for gemm in gemms)
        self._times = executions(module)
        schedule = live_ranges.schedule if live_ranges is not None else ()
        self._positions = {name: position for position, name in enumerate(schedule)}

    @cached_property
    def _wrapped(self) -> frozenset[str]:
        """Computations that only an asynchronous instruction or a fusion runs."""
        return self._module.fused_computations | frozenset(
            called
            for _, instruction in self._module.instructions()
            if instruction.opcode.startswith("async-")
            for called in instruction.called_computations
        )

    def find(self) -> Iterator[Collective]:
        for computation in self._module.computations.values():
            if computation.name not in self._times or computation.name in self._wrapped:
                continue
            for position, instruction in enumerate(computation.instructions):
                for inner in self._collectives_of(computation, instruction):
                    yield self._collective(computation, position, inner)

    def _collectives_of(self, computation: Computation, instruction: Instruction) -> Iterator[Site]:
        """The collective that an instruction is, or those that it wraps."""
        if _kind(instruction) is not None:
            yield Site(computation, instruction)
        elif instruction.opcode in ("async-start", "fusion"):
            if not self._dataflow.body_has_any(instruction, _HOLDS):
                return
            for site in self._dataflow.body(instruction):
                if _kind(site.instruction) is not None:
                    yield site

    def _collective(self, computation: Computation, position: int, inner: Site) -> Collective:
        outer, instruction = computation.instructions[position], inner.instruction
        kind = _kind(instruction)
        assert kind is not None  # as `find` has seen
        done = None
        if outer.opcode.endswith("-start"):
            done = _done_of(computation, position)
        # The start of one has the operands in its shape too; what waits has the result alone.
        result = done.shape if done is not None and instruction is outer else instruction.shape
        groups = instruction.collective.replica_groups if instruction.collective else ()
        pairs = instruction.collective.source_target_pairs if instruction.collective else ()
        output_bytes = shape_bytes(result)
        own = [
            inner.computation.by_name[name].shape
            for name in instruction.operands
            if name in inner.computation.by_name
        ]
        between = () if done is None else tuple(self._work(computation, position, done))
        return Collective(
            instruction=outer.name,
            done=done.name if done is not None else None,
            defined_by=tuple(dict.fromkeys((outer.name, instruction.name))),
            kind=kind,
            operands=outer.operands,
            results=arrays_of(result),
            operand_bytes=operand_bytes_of(kind, own, output_bytes, common_size(groups)),
            output_bytes=output_bytes,
            replica_groups=groups,
            source_target_pairs=pairs,
            asynchronous=done is not None and not _waits(outer),
            overlapped_by=tuple(each.name for each in between),
            overlapped_gemms=sum(len(self._gemms_in(each)) for each in between),
            start=self._positions.get(outer.name),
            end=self._positions.get(done.name if done is not None else outer.name),
            executions=self._times[computation.name],
            op_name=instruction.op_name or outer.op_name,
            source=instruction.source or outer.source,
        )

    def _work(
        self, computation: Computation, position: int, done: Instruction
    ) -> Iterator[Instruction]:
        for instruction in computation.instructions[position + 1 :]:
            if instruction.name == done.name:
                return
            if instruction.opcode in _NO_WORK or instruction.opcode.endswith("-done"):
                continue
            if not any(True for _ in self._collectives_of(computation, instruction)):
                yield instruction

    def _gemms_in(self, instruction: Instruction) -> frozenset[str]:
        inside = {site.instruction.name for site in self._dataflow.body(instruction)}
        return self._gemms & (inside | {instruction.name})


def _kind(instruction: Instruction) -> str | None:
    opcode = instruction.opcode
    return opcode.removesuffix("-start") if opcode in WITH_GROUPS else None


def _done_of(computation: Computation, position: int) -> Instruction | None:
    """What waits for the instruction at `position`, through updates of it."""
    names = {computation.instructions[position].name}
    for instruction in computation.instructions[position + 1 :]:
        if names.isdisjoint(instruction.operands):
            continue
        if instruction.opcode == "async-update":
            names.add(instruction.name)
        elif instruction.opcode.endswith("-done"):
            return instruction
    return None


def _waits(start: Instruction) -> bool:
    """Whether the config of a `-start` says that it is synchronous all the same."""
    try:
        config = json.loads(start.backend_config or "{}")
    except (ValueError, RecursionError):
        return False  # text of another form, which no collective of XLA's has
    collective = config.get("collective_backend_config") if isinstance(config, Mapping) else None
    return isinstance(collective, Mapping) and bool(collective.get("is_sync"))
