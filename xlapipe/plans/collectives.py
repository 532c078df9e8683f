"""Collectives: what devices exchange, how many bytes, and what is computed meanwhile.

XLA:GPU writes a collective in three ways:

- a single `all-gather`, which is synchronous;
- an `all-gather-start` with an `all-gather-done`, which is synchronous too if its config has
  `is_sync`;
- an `async-start`, which calls a computation that contains an `all-gather`, with an `async-done`.

XLA for TPUs also writes:

- a reduce-scatter as a fusion of an all-reduce and the slice that is kept;
- an asynchronous collective as three fusions, each with a copy of it: its start, a matrix product
  during which it runs, and its end;
- a collective between slices as a `send` of the operand and a `recv` of the result;
- a collective on the sparse cores of a TPU7x as an `async-start` without operands, an
  `async-update` that hands them over, and an `async-done`.

Each of these is one `Collective`. A collective that XLA combined from several is also one
`Collective`, with several results and op_names: `jit(f)/(a/psum:b/psum)` is two.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.plans.gemms import Gemm
from xlapipe.plans.hlo import Computation, HloModule, Instruction, SourceLine
from xlapipe.plans.live_ranges import LiveRanges
from xlapipe.plans.loops import executions
from xlapipe.plans.opcodes import (
    DEVICE_NUMBERS,
    HAS_BODY,
    NO_KERNEL,
    POINT_TO_POINT,
    WITH_GROUPS,
    WRAPS,
)
from xlapipe.plans.shapes import Shape, split_bracket

# XLA combines hundreds at most; a damaged name could expand to any number.
_MAX_OP_NAMES = 4096


def split_scopes(op_name: str | None) -> tuple[str, ...]:
    """The op_names that XLA's combiner joined into one; empty for no op_name.

    >>> split_scopes("jit(f)/(a/psum:jvp(b)/psum)")
    ('jit(f)/a/psum', 'jit(f)/jvp(b)/psum')
    """
    if not op_name:
        return ()
    return tuple(_expanded(op_name) or [op_name])


def _expanded(text: str) -> list[str] | None:
    """All expansions of a text with alternatives; None if there are too many to be XLA's."""
    expansions, begin, position = [""], 0, 0
    while position < len(text):
        if text[position] == "(" and (position == 0 or text[position - 1] == "/"):
            parts, end = split_bracket(text, position, ":", ("(", ")"))
            if len(parts) > 1:
                alternatives: list[str] = []
                for part in parts:
                    expanded_part = _expanded(part)
                    if expanded_part is None:
                        return None
                    alternatives += expanded_part
                if len(expansions) * len(alternatives) > _MAX_OP_NAMES:
                    return None
                literal = text[begin:position]
                expansions = [
                    prefix + literal + alternative
                    for prefix in expansions
                    for alternative in alternatives
                ]
                begin = position = end
                continue
        position += 1
    return [prefix + text[begin:] for prefix in expansions]


# Longest list of pairs, or of the devices of a group, that is shown in full.
_MAX_SHOWN = 8
# Opcodes of which one may be, or may call, a collective.
_MAY_CONTAIN_COLLECTIVE = WITH_GROUPS | HAS_BODY
# Memory space of the numbers that the fusions of one asynchronous collective hand on, on TPUs.
_COLLECTIVE_COLOR = 4
# Opcodes that take no time between other kernels, or that only start an operation.
_NO_WORK = NO_KERNEL | DEVICE_NUMBERS | POINT_TO_POINT | {"copy-start"}

Groups = tuple[tuple[int, ...], ...]


def wire_bytes(
    kind: str, operand_bytes: int | None, output_bytes: int | None, group_size: int | None
) -> int | None:
    """Least number of bytes that a device sends, without reduction in the network.

    For an array of S bytes (the result of an all-gather, the operand of others) on n devices:
    S (n - 1) / n for all-gather, reduce-scatter and all-to-all; twice that for all-reduce; S for
    a broadcast and for a permutation (on a device that has a target). A ring sends exactly this,
    and nccl-tests uses the same factors to convert a time into a bus bandwidth (its
    doc/PERFORMANCE.md).

    Returns:
      The bytes, rounded up; None for ragged collectives, and if S or n is unknown.
    """
    whole_bytes = output_bytes if kind == "all-gather" else operand_bytes
    if whole_bytes is None or kind == "ragged-all-to-all":
        return None
    if kind in ("collective-broadcast", "collective-permute"):
        return whole_bytes
    if group_size is None:
        return None
    scaled_bytes = whole_bytes * (group_size - 1) * (2 if kind == "all-reduce" else 1)
    return -(-scaled_bytes // group_size)


@dataclass(frozen=True)
class Collective:
    """One collective of the optimised module. Bytes are per device and per execution.

    Attributes:
      instruction: the scheduled instruction: the collective itself, or the one that starts it.
      done: the instruction that waits for its end; None for a single synchronous instruction.
      defined_by: names of instructions that may define the values of its result.
      kind: `all-gather`, `all-reduce`, `reduce-scatter`, `all-to-all`, `collective-permute`,
        `collective-broadcast` or `ragged-all-to-all`.
      operands: names of the scheduled instruction's operands.
      results: shapes of the arrays of the result; several if XLA combined collectives.
      operand_bytes, output_bytes: bytes of all operands and of all results; None if unknown.
      replica_groups: device ids of each group; empty means one group of all devices.
      between_slices: whether it is one between slices of TPUs, over the network. Its devices are
        numbered SLICE × 100,000 + number in the slice.
      asynchronous: whether other instructions may run between its start and its end.
      overlapped_by: instructions that do work and are scheduled between start and end.
      overlapped_gemms: number of matrix products among them and in computations they call.
      start, end: schedule positions of `instruction` and of `done`; None without live ranges.
      executions: how often it runs per step, counting the trips of loops; None in a loop with an
        unknown trip count and in a branch of a conditional.
    """

    instruction: str
    done: str | None
    defined_by: tuple[str, ...]
    kind: str
    operands: tuple[str, ...]
    results: tuple[Shape, ...]
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
    between_slices: bool

    @property
    def group_size(self) -> int | None:
        """Devices per group; None for groups of different sizes, for pairs, and for all devices."""
        sizes = {len(group) for group in self.replica_groups}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def devices(self) -> str:
        """The groups or pairs as text; for many devices their number and the first group."""
        if self.source_target_pairs:
            pairs = [f"{source}→{target}" for source, target in self.source_target_pairs]
            total = f",… {len(pairs)} pairs" if len(pairs) > _MAX_SHOWN else ""
            return ",".join(pairs[:_MAX_SHOWN]) + total
        groups, size = self.replica_groups, self.group_size
        if not groups:
            return "all"
        if size is None or len(groups) * size <= 2 * _MAX_SHOWN:
            return ",".join(f"{{{','.join(map(str, group))}}}" for group in groups)
        first = groups[0]
        if size > _MAX_SHOWN:
            first_text = f"{first[0]},{first[1]},…,{first[-1]}"
        else:
            first_text = ",".join(map(str, first))
        return f"{len(groups)} × {size}: {{{first_text}}}" + (",…" if len(groups) > 1 else "")

    @property
    def wire_bytes(self) -> int | None:
        """Least bytes that a device sends per execution; see `wire_bytes`."""
        return wire_bytes(self.kind, self.operand_bytes, self.output_bytes, self.group_size)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The op_names of the collectives that XLA combined into this one."""
        return split_scopes(self.op_name)

    def of_step(self, size_bytes: int | None) -> int | None:
        """`size_bytes` times the executions per step; None if either is unknown."""
        if size_bytes is None or self.executions is None:
            return None
        return size_bytes * self.executions

    def crosses_hosts(self, gpus_per_host: int) -> bool | None:
        """Whether a group spans hosts; None for one group of all devices (their number unknown)."""
        device_sets = [*self.replica_groups, *self.source_target_pairs]
        if not device_sets:
            return None
        return any(
            len({device // gpus_per_host for device in devices}) > 1 for devices in device_sets
        )


def find_collectives(
    module: HloModule, gemms: tuple[Gemm, ...], live_ranges: LiveRanges | None
) -> tuple[Collective, ...]:
    """Every collective of a complete module that its entry can reach, in the module's order."""
    return tuple(_CollectiveFinder(module, gemms, live_ranges).find())


def has_collectives(module: HloModule) -> bool:
    """Whether any computation of the module, reachable or not, contains a collective."""
    return any(
        not computation.opcodes.isdisjoint(WITH_GROUPS)
        or ("send" in computation.opcodes and any(map(_kind, computation.instructions)))
        for computation in module.computations.values()
    )


class _CollectiveFinder:
    def __init__(
        self, module: HloModule, gemms: tuple[Gemm, ...], live_ranges: LiveRanges | None
    ) -> None:
        self._module = module
        self._dataflow = dataflow_of(module)
        self._gemms = frozenset(gemm.instruction for gemm in gemms)
        self._executions = executions(module)
        self._positions = live_ranges.positions if live_ranges is not None else {}

    @cached_property
    def _wrapped(self) -> frozenset[str]:
        """Computations that asynchronous instructions or fusions run, directly or not."""
        wrapped = (
            name
            for _, instruction in self._module.instructions()
            if instruction.opcode.startswith("async-")
            for name in instruction.called_computations
        )
        called = self._module.called(wrapped)
        return self._module.fused_computations | {computation.name for computation in called}

    def find(self) -> Iterator[Collective]:
        for computation in self._module.computations.values():
            if computation.name not in self._executions or computation.name in self._wrapped:
                continue
            for position, instruction in enumerate(computation.instructions):
                for inner in self._collectives_of(computation, instruction):
                    yield self._collective(computation, position, inner)

    def _collectives_of(
        self, computation: Computation, instruction: Instruction
    ) -> Iterator[Value]:
        """The collective that `instruction` is, or the collectives that it wraps."""
        if _kind(instruction) is not None:
            yield Value(computation, instruction)
        elif instruction.opcode in WRAPS:
            if not self._dataflow.body_has_any(instruction, _MAY_CONTAIN_COLLECTIVE):
                return
            if self._continues_another(instruction):
                return
            for site in self._dataflow.body(instruction):
                if _kind(site.instruction) is not None:
                    yield site

    def _collective(self, computation: Computation, position: int, inner: Value) -> Collective:
        outer, instruction = computation.instructions[position], inner.instruction
        kind = _kind(instruction)
        assert kind is not None  # `_collectives_of` yields only collectives
        position = _begin(computation, position)
        begin = computation.instructions[position]
        done, received = None, None
        if outer.opcode == "send":
            received = _received(computation, outer)
            done = _done_of(computation, 0, received or outer)
        elif outer.opcode.endswith("-start"):
            done = _done_of(computation, position, outer)
        elif outer.opcode == "fusion" and outer.shape.is_tiled:
            done = self._last_continuation(computation, position)
        # The shape of a start contains the operands too; the shape of its done is the result.
        result = done.shape if done is not None and instruction is outer else instruction.shape
        operands = [*self._dataflow.operands(inner)]
        if outer.opcode == "send":
            # The other operand is a token, and the others of the result are four bytes and a token.
            operands = operands[:1]
            result = (received or outer).shape.arrays[0]
        if _keeps_a_slice(outer, inner):
            kind, result = "reduce-scatter", outer.shape
            operands = [*self._dataflow.operands(Value(computation, outer))]
        groups = instruction.collective.replica_groups if instruction.collective else ()
        pairs = instruction.collective.source_target_pairs if instruction.collective else ()
        sizes = [operand.shape.size_bytes for operand in operands]
        overlapped = () if done is None else tuple(self._work(computation, position, done))
        return Collective(
            instruction=outer.name,
            done=done.name if done is not None else None,
            defined_by=tuple(dict.fromkeys((outer.name, (received or instruction).name))),
            kind=kind,
            operands=outer.operands or begin.operands[1:],
            results=result.arrays,
            operand_bytes=None if None in sizes else sum(filter(None, sizes)),
            output_bytes=result.size_bytes,
            replica_groups=groups,
            source_target_pairs=pairs,
            asynchronous=done is not None and not _is_sync(outer),
            overlapped_by=tuple(work.name for work in overlapped),
            overlapped_gemms=sum(len(self._gemms_in(work)) for work in overlapped),
            start=self._positions.get(begin.name),
            end=self._positions.get(done.name if done is not None else outer.name),
            executions=self._executions[computation.name],
            op_name=instruction.op_name or outer.op_name,
            source=instruction.source or outer.source,
            between_slices=outer.opcode == "send",
        )

    def _continues_another(self, fusion: Instruction) -> bool:
        """Whether a fusion of a TPU carries on a collective that another fusion has started.

        The start gives it a pair of numbers in the memory of color 4.
        """
        return fusion.opcode == "fusion" and any(
            site.instruction.opcode == "parameter"
            and site.instruction.shape.without_layout == "s32[2]"
            and site.instruction.shape.memory_space == _COLLECTIVE_COLOR
            for site in self._dataflow.body(fusion)
        )

    def _last_continuation(self, computation: Computation, position: int) -> Instruction | None:
        """The last of the fusions that carry on the collective at `position`; None without any."""
        last, names = None, {computation.instructions[position].name}
        for instruction in computation.instructions[position + 1 :]:
            if not names.isdisjoint(instruction.operands) and self._continues_another(instruction):
                last = instruction
                names.add(instruction.name)
        return last

    def _work(
        self, computation: Computation, position: int, done: Instruction
    ) -> Iterator[Instruction]:
        """Instructions that launch work between `position` and `done`."""
        for instruction in computation.instructions[position + 1 :]:
            if instruction.name == done.name:
                return
            if instruction.opcode in _NO_WORK:
                continue
            if not any(True for _ in self._collectives_of(computation, instruction)):
                yield instruction

    def _gemms_in(self, instruction: Instruction) -> frozenset[str]:
        inside = {site.instruction.name for site in self._dataflow.body(instruction)}
        return self._gemms & (inside | {instruction.name})


def _keeps_a_slice(outer: Instruction, inner: Value) -> bool:
    """Whether a fusion of a TPU is an all-reduce of which each device keeps a slice."""
    body = inner.computation
    root = body.by_name[body.root]
    return (
        outer.opcode == "fusion"
        and outer.shape.is_tiled
        and inner.instruction.opcode == "all-reduce"
        and root.opcode == "dynamic-slice"
        and root.operands[0] == inner.instruction.name
    )


def _kind(instruction: Instruction) -> str | None:
    """XLA's kind of a collective, e.g. `all-gather`; None for any other instruction."""
    opcode, collective = instruction.opcode, instruction.collective
    if opcode == "send" and collective is not None and collective.transfer is not None:
        return collective.transfer.kind
    return opcode.removesuffix("-start") if opcode in WITH_GROUPS else None


def _received(computation: Computation, send: Instruction) -> Instruction | None:
    """The `recv` of the result of a collective between slices; None for damaged HLO."""
    for instruction in computation.instructions:
        if instruction.opcode == "recv" and instruction.collective == send.collective:
            return instruction
    return None


def _done_of(computation: Computation, position: int, start: Instruction) -> Instruction | None:
    """The instruction after `position` that waits for `start`, if any; follows async-updates."""
    names = {start.name}
    for instruction in computation.instructions[position:]:
        if names.isdisjoint(instruction.operands):
            continue
        if instruction.opcode == "async-update":
            names.add(instruction.name)
        elif instruction.opcode.endswith("-done"):
            return instruction
    return None


def _begin(computation: Computation, position: int) -> int:
    """The position from which the collective at `position` can run.

    On a TPU's sparse cores, an async-start without operands reserves the core, and an async-update
    hands the operands over.
    """
    start = computation.instructions[position]
    if start.opcode != "async-start" or start.operands:
        return position
    for later, instruction in enumerate(computation.instructions[position:], position):
        if instruction.opcode == "async-update" and start.name in instruction.operands:
            return later
    return position


def _is_sync(start: Instruction) -> bool:
    """Whether the config of a `-start` has `is_sync`, so that it is synchronous after all."""
    try:
        config = json.loads(start.backend_config)
    except (ValueError, RecursionError):
        return False  # empty, or not JSON; XLA's own collectives always have JSON
    collective = config.get("collective_backend_config") if isinstance(config, Mapping) else None
    return isinstance(collective, Mapping) and bool(collective.get("is_sync"))
