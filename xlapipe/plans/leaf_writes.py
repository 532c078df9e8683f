"""How many bytes a step writes into the memory of a donated leaf, and how many of them change.

That an output is written over a leaf says nothing of how much is written: XLA casts a whole cache,
updates a row of it and casts it back in one kernel, in place. Two facts are derived from the
optimised program:

* written: the versions of the leaf in its memory are followed from the output to the parameter. An
  update in place writes what it inserts, everything else its whole result, in each trip of a loop.
* kept: the elements of the output that are elements of the leaf, moved or cast, or scaled and
  scaled back. An element that is computed from others, as of a weight from its gradient, is new.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import isclose
from typing import NamedTuple

from xlapipe.plans import opcodes
from xlapipe.plans.buffers import InputOutputAlias
from xlapipe.plans.dataflow import Path, Value, dataflow_of
from xlapipe.plans.hlo import Computation, HloModule, Instruction, SourceLine
from xlapipe.plans.loops import executions, find_loops
from xlapipe.plans.origins import versions_in_place
from xlapipe.plans.plan import Plan

# The result has elements of the first operand alone.
_KEEPS = (
    opcodes.RESHAPES
    | opcodes.COPIES
    | opcodes.CONVERTS
    | (opcodes.REARRANGES - opcodes.JOINS)
    | {"gather", "reduce-precision", "round-nearest-afz", "round-nearest-even"}
)
_SPREADS = opcodes.RESHAPES | opcodes.COPIES | opcodes.CONVERTS | {"broadcast"}
# A larger or smaller factor than 1 by this is a change.
_SAME_SCALE = 0.02
# To write a counter or a table of scales takes less time than the launch of its kernel.
_SMALL_BYTES = 1024


@dataclass(frozen=True, slots=True)
class LeafWrites:
    """What a step writes into the memory of one leaf, from which an output is returned.

    Attributes:
      size_bytes: of the leaf, on one device.
      written_bytes: per step; a loop or a branch of which it is unknown how often it runs counts
        once, and a custom call that updates in place for nothing.
      is_least: whether such a loop, branch or call is there.
      changed_bytes: bytes of the output that are not old ones of the leaf; None if each element is
        computed.
      is_updated: whether slices or scattered elements of the leaf are replaced, also one that a
        mask chooses, `jnp.where(jnp.arange(n) == i, …)`, or new ones are put beside old ones.
      is_masked: whether data decide which elements are old, as in `jnp.where`; `changed_bytes` is
        then the most.
    """

    size_bytes: int
    written_bytes: int
    is_least: bool
    changed_bytes: int | None
    is_updated: bool
    is_masked: bool
    source: SourceLine | None

    @property
    def is_whole(self) -> bool:
        """Whether half of the leaf or more is written, though its elements are old ones."""
        if self.changed_bytes is None:
            return False
        needed_bytes = 0 if self.is_masked else self.changed_bytes
        return self.written_bytes - needed_bytes >= max(self.size_bytes // 2, _SMALL_BYTES)

    @property
    def is_rewritten(self) -> bool:
        """Whether half of the leaf or more is written in order to update slices of it."""
        more_bytes = self.written_bytes - (self.changed_bytes or 0)
        return self.is_updated and self.is_whole and 2 * more_bytes >= self.size_bytes

    @property
    def text(self) -> str:
        """Both figures, e.g. `33,554,432 B written, 16,384 B change`."""
        return together([self])


def together(writes: Sequence[LeafWrites]) -> str:
    """The figures of several leaves; see `LeafWrites.text`."""
    written = sum(item.written_bytes for item in writes)
    changed = [item.changed_bytes for item in writes]
    text = f"{written:,} B written" + (" or more" if any(item.is_least for item in writes) else "")
    if None in changed:
        return text
    most = "at most " if any(item.is_masked for item in writes) else ""
    return f"{text}, {most}{sum(size or 0 for size in changed):,} B change"


def leaf_writes(plan: Plan, alias: InputOutputAlias) -> LeafWrites | None:
    """The writes into the memory of an aliased parameter; None without a complete module."""
    entry, parameter = plan.entry, plan.parameter(alias.parameter_number)
    if entry is None or parameter is None or plan.module is None or not plan.module.complete:
        return None
    output = Value(entry, entry.by_name[entry.root], alias.output_index or ())
    written = dict(_writes(plan, output))
    most = max(written, key=lambda name: written[name][0], default=None)
    kept = _Followed(plan, parameter.name).of(output)
    elements = output.shape.elements
    size_bytes = output.shape.size_bytes or 0
    changed = None
    if kept is not None and isclose(kept.scale, 1, rel_tol=_SAME_SCALE):
        changed = size_bytes * (elements - kept.elements) // max(elements, 1)
    return LeafWrites(
        size_bytes,
        sum(size for size, _ in written.values()),
        any(is_least for _, is_least in written.values()),
        changed,
        kept is not None and kept.is_updated,
        kept is not None and kept.is_masked,
        plan.nearest_source(most) if most is not None else None,
    )


def is_updated_in_place(plan: Plan, alias: InputOutputAlias) -> bool:
    """Whether an instruction updates a part of what is in the memory of an output."""
    entry = plan.entry
    if entry is None or plan.module is None or not plan.module.complete:
        return False
    output = Value(entry, entry.by_name[entry.root], alias.output_index or ())
    return any(
        updated and update_of(plan.module, *value) is not None
        for value, updated in versions_in_place(plan, output)
    )


def _writes(plan: Plan, output: Value) -> Iterator[tuple[str, tuple[int, bool]]]:
    """The values that are written in the memory of an output on the way to it.

    Yields:
      The name of each, its bytes, and whether they are the least.
    """
    for value, updated in versions_in_place(plan, output):
        if value.instruction.opcode not in opcodes.GIVEN | opcodes.RUNS_COMPUTATIONS:
            yield value.name, _written_bytes(plan, value, is_in_place=bool(updated))


def _written_bytes(plan: Plan, value: Value, *, is_in_place: bool) -> tuple[int, bool]:
    """What the instruction that makes a value writes of it in a step, and whether it is least."""
    assert plan.module is not None
    times = executions(plan.module).get(value.computation.name)
    if is_in_place and value.instruction.opcode == "custom-call":
        return 0, True
    size_bytes = value.shape.size_bytes or 0
    update = update_of(plan.module, *value) if is_in_place else None
    written = size_bytes if update is None else min(update.inserted_bytes, size_bytes)
    return written * (1 if times is None else times), times is None


class Update(NamedTuple):
    """An update that a result consists of.

    Where XLA gives the result the memory of what is updated, it writes the inserted bytes alone.

    Attributes:
      instruction: the update itself, perhaps in the body of a fusion.
      position: the operand that is updated, of the instruction that has the result.
      inserted_bytes: size of what is inserted.
    """

    instruction: Instruction
    position: int
    inserted_bytes: int


def update_of(
    module: HloModule, scope: Computation, instruction: Instruction, path: Path
) -> Update | None:
    """The update that an element of a result consists of; None if it is another operation's."""
    if instruction.opcode in opcodes.UPDATES:
        position = path[0] if path else 0
        return Update(instruction, position, _inserted(instruction, scope, position))
    if instruction.opcode not in opcodes.HAS_BODY:
        return None
    body = module.computations[instruction.called_computations[0]]
    if body.opcodes.isdisjoint(opcodes.UPDATES):
        return None
    root = body.by_name[body.root]
    made = root.operands if root.opcode == "tuple" else (root.name,)
    index = path[0] if path else 0
    if index >= len(made):
        return None
    update = _renamed(module, body, made[index])
    if update.opcode not in opcodes.UPDATES:
        return None
    number = _renamed(module, body, update.operands[0]).parameter_number
    return None if number is None else Update(update, number, _inserted(update, body, 0))


# Values of an update that have the same elements as what is updated.
_SAME_ELEMENTS = opcodes.RENAMES | opcodes.RESHAPES | {"copy"}
_RENAMING = _SAME_ELEMENTS | {"parameter"}


def _renamed(module: HloModule, body: Computation, name: str) -> Instruction:
    """The instruction that makes a value, skipping those that only rename it.

    Within a fusion, XLA for TPUs writes another tiling as a fusion of one operand.
    """
    instruction = body.by_name[name]
    while instruction.operands and (
        instruction.opcode in _SAME_ELEMENTS
        or (
            instruction.opcode == "fusion"
            and len(instruction.operands) == 1
            and module.computations[instruction.called_computations[0]].opcodes <= _RENAMING
        )
    ):
        instruction = body.by_name[instruction.operands[0]]
    return instruction


def _inserted(update: Instruction, scope: Computation, result: int) -> int:
    """Bytes that an update inserts into one of its results."""
    position = _inserted_position(update, result)
    inserted = update.operands[position : position + 1]
    return sum(scope.by_name[name].shape.size_bytes or 0 for name in inserted)


def _inserted_position(update: Instruction, result: int) -> int:
    """The operand that an update inserts into one of its results."""
    is_slice = update.opcode == "dynamic-update-slice"
    return 1 if is_slice else len(update.operands) // 2 + 1 + result


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a value has of a leaf.

    Attributes:
      elements: how many of its elements are elements of the leaf.
      scale: what they are multiplied by.
    """

    elements: int
    scale: float = 1.0
    is_updated: bool = False
    is_masked: bool = False

    def beside(self, other: "_Kept | None") -> "_Kept":
        """Both, in one value."""
        if other is None:
            return self
        return _Kept(
            self.elements + other.elements,
            self.scale,
            self.is_updated or other.is_updated,
            self.is_masked or other.is_masked,
        )


_NOTHING = _Kept(0)


class _Followed:
    """Follows values to one parameter of the entry."""

    def __init__(self, plan: Plan, parameter: str) -> None:
        assert plan.module is not None
        self._module, self._leaf = plan.module, parameter
        self._dataflow = dataflow_of(plan.module)
        self._known: dict[tuple[str, str, Path], _Kept | None] = {}
        self._trips = {loop.instruction.name: loop.trips for loop in find_loops(plan.module)}

    def of(self, value: Value) -> _Kept | None:
        """What a value has of the leaf; None if nothing, or if it is computed from it."""
        steps = []
        while value.key not in self._known:  # a long chain of operations on one operand
            steps.append(value)
            self._known[value.key] = None  # of a value that leads to itself
            nearer = self._same_elements(value)
            if nearer is None:
                self._known[value.key] = self._made(value)
                break
            value = nearer
        kept = self._known[value.key]
        for step in reversed(steps):
            if kept is not None and kept.elements > step.shape.elements:
                kept = replace(kept, elements=step.shape.elements)
            self._known[step.key] = kept
        return kept

    def _same_elements(self, value: Value) -> Value | None:
        """The operand whose elements, or some of them, are all that a value has."""
        if value.instruction.opcode == "parameter":
            return self._dataflow.passed_by_caller(value, into_loops=True)
        if value.instruction.opcode == "fusion":
            return next(self._dataflow.roots(value), None)
        return self._dataflow.step(value, _KEEPS)

    def _made(self, value: Value) -> _Kept | None:
        """What the result of an operation on several values has of the leaf."""
        instruction, elements = value.instruction, value.shape.elements
        operand = self._operand
        match instruction.opcode:
            case "parameter":
                in_entry = value.computation.name == self._module.entry
                return _Kept(elements) if in_entry and instruction.name == self._leaf else None
            case "dynamic-update-slice" | "scatter":
                return self._updated(value, value.path[0] if value.path else 0)
            case "clamp":
                return operand(value, 1)
            case "concatenate" | "pad":
                parts = [operand(value, place) for place in range(len(instruction.operands))]
                known = [part for part in parts if part is not None]
                if not known:
                    return None
                beside = reduce(_Kept.beside, known)
                has_new = beside.elements < elements
                return replace(beside, is_updated=beside.is_updated or has_new)
            case "select":
                new, old = operand(value, 1), operand(value, 2)
                if new is not None and old is not None:
                    return replace(new.beside(old), elements=min(new.elements, old.elements))
                chosen = new or old
                if chosen is None:
                    return None
                if chosen is old and (slices := self._slices_of_mask(value)) is not None:
                    left = max(old.elements - elements // slices, 0)
                    return replace(old, elements=left, is_updated=True)
                return replace(chosen, elements=0, is_masked=True)
            case "multiply" | "divide":
                return self._scaled(value)
            case "while":
                return self._looped(value)
            case "conditional":
                branches = [self.of(root) for root in self._dataflow.roots(value)]
                known = [kept for kept in branches if kept is not None]
                if not known or len(known) < len(branches):
                    return None
                least = min(kept.elements for kept in known)
                return replace(reduce(_Kept.beside, known), elements=least)
        return None

    def _slices_of_mask(self, select: Value) -> int | None:
        """Slices of which a mask chooses one: n in `jnp.where(jnp.arange(n) == i, …)`."""
        mask = self._origin(self._dataflow.operand(select._replace(path=()), 0))
        if mask is None or mask.instruction.comparison != "EQ":
            return None
        for position in (0, 1):
            index = self._origin(self._dataflow.operand(mask, position))
            if index is not None and index.instruction.opcode == "iota":
                along = index.instruction.contraction
                dims = index.shape.dims
                return dims[along.dims[0]] if along is not None and along.dims else None
        return None

    def _origin(self, value: Value | None) -> Value | None:
        """What made a value, before it was broadcast or reshaped, also outside of a fusion."""
        while value is not None:
            if value.instruction.opcode == "parameter":
                caller = self._dataflow.passed_by_caller(value, into_loops=False)
            elif value.instruction.opcode == "fusion":
                caller = next(self._dataflow.roots(value), None)
            elif value.instruction.opcode == "iota":
                return value
            else:
                caller = self._dataflow.step(value, _SPREADS)
            if caller is None:
                return value
            value = caller
        return None

    def _operand(self, value: Value, position: int) -> _Kept | None:
        operand = self._dataflow.operand(value._replace(path=()), position)
        return self.of(operand) if operand is not None else None

    def _updated(self, value: Value, result: int) -> _Kept | None:
        position = _inserted_position(value.instruction, result)
        old, new = self._operand(value, result), self._operand(value, position)
        inserted = self._dataflow.operand(value._replace(path=()), position)
        if old is None or inserted is None:
            return new
        if new is not None and not isclose(new.scale, old.scale, rel_tol=_SAME_SCALE):
            new = None
        left = old.elements - inserted.shape.elements + (new or _NOTHING).elements
        is_part = inserted.shape.elements < value.shape.elements
        return replace(old.beside(new), elements=max(left, 0), is_updated=old.is_updated or is_part)

    def _scaled(self, value: Value) -> _Kept | None:
        """What a product with a constant has; one with another value is computed."""
        for position in (0, 1):
            kept, other = self._operand(value, position), self._constant(value, 1 - position)
            if kept is not None and other:
                if value.instruction.opcode == "multiply":
                    return replace(kept, scale=kept.scale * other)
                return replace(kept, scale=kept.scale / other) if position == 0 else None
        return None

    def _constant(self, value: Value, position: int) -> float | None:
        operand = self._dataflow.operand(value._replace(path=()), position)
        if operand is None:
            return None
        made = self._dataflow.definition(operand, opcodes.FILLS | opcodes.CONVERTS)
        return made.instruction.real

    def _looped(self, value: Value) -> _Kept | None:
        start = self._dataflow.operand(value, 0)
        before = self.of(start) if start is not None else None
        root = next(self._dataflow.roots(value), None)
        after = self.of(root) if root is not None else None
        if after is None:
            return None
        trips = self._trips.get(value.instruction.name) or 1
        had = (before or _NOTHING).elements
        left = min(had + trips * (after.elements - had), value.shape.elements)
        return replace(after.beside(before), elements=max(left, 0))
