"""Where a value comes from and where it goes, across fusions, calls, loops and conditionals.

A value is an instruction's result, or an element of it if it is a tuple. Instructions that only
forward values (`opcodes.FORWARDS`) are skipped. XLA may split one operation over several fusions (a
product in one, its sum in the next); to see what a reduction reduces, operands are followed from a
fused parameter to the fusion's operand, and from a fusion to the root of its body.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from xlapipe.plans import opcodes
from xlapipe.plans.buffers import value_name
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.once import once_per_object
from xlapipe.plans.shapes import Shape
from xlapipe.plans.short_repr import short_repr

Path = tuple[int, ...]
"""The shape index of an element of a tuple; `()` for the whole result."""

# Operations that change the type or shape of a value but not the value itself.
PASS_THROUGH = (
    opcodes.FORWARDS | opcodes.RESHAPES | opcodes.CONVERTS | {"copy", "pad", "slice", "transpose"}
)
# Which element of its start's result the result of a `-done` is, if not all of it.
_OF_START: Mapping[str, Path] = {
    "all-gather-done": (1,),
    "async-done": (1,),
    "collective-permute-done": (1,),
    "copy-done": (0,),
}


class Value(NamedTuple):
    """An instruction's result, or the element at `path` of it."""

    computation: Computation
    instruction: Instruction
    path: Path = ()

    @property
    def name(self) -> str:
        """XLA's name of the value, e.g. `fusion.1{2}`."""
        return value_name(self.instruction.name, self.path)

    @property
    def shape(self) -> Shape:
        return self.instruction.shape.at(self.path)

    @property
    def key(self) -> tuple[str, str, Path]:
        """Names and path: equal for the same value, and fast to compare."""
        return self.computation.name, self.instruction.name, self.path


def result_in_start(opcode: str) -> Path:
    """The element of its start's result that the result of a `-done` is; `()` for all of it."""
    return _OF_START.get(opcode, ())


def operand_index(instruction: Instruction, position: int) -> Path:
    """The element of an operand's tuple that is read; `()` for all of it, or if unknown."""
    indices = instruction.operand_indices
    return indices[position] if position < len(indices) else ()


def forwarded_operand(instruction: Instruction, path: Path) -> tuple[int, Path] | None:
    """The operand's position and the element of it that an element of the result is.

    Returns:
      None if the instruction makes the value, or if `path` does not determine the operand.
    """
    if instruction.opcode == "tuple":
        known = bool(path) and path[0] < len(instruction.operands)
        return (path[0], path[1:]) if known else None
    if instruction.opcode in opcodes.FORWARDS and instruction.operands:
        return 0, (*result_in_start(instruction.opcode), *path)
    return None


class OperandUse(NamedTuple):
    """An operand of an instruction.

    Attributes:
      path: the element of the operand's tuple that is read; `()` for all of it, or if unknown.
    """

    instruction: Instruction
    position: int
    path: Path


@dataclass(frozen=True)
class Dataflow:
    """Operand and body queries over a complete `HloModule`."""

    __repr__ = short_repr

    module: HloModule

    @cached_property
    def _callers(self) -> dict[str, list[tuple[Computation, Instruction, int]]]:
        """The callers of each computation: where, and as which of the called computations."""
        callers: dict[str, list[tuple[Computation, Instruction, int]]] = {}
        for computation, instruction in self.module.instructions():
            for role, called in enumerate(instruction.called_computations):
                callers.setdefault(called, []).append((computation, instruction, role))
        return callers

    def callers(self, computation: Computation) -> list[tuple[Computation, Instruction, int]]:
        """The instructions that run a computation, with the position of it in their calls."""
        return self._callers.get(computation.name, [])

    def steps_to_definition(
        self, value: Value, also: frozenset[str] = frozenset(), *, into_loops: bool = False
    ) -> Iterator[Value]:
        """`value`, then each value that it is another name of, up to the one that makes it.

        A parameter is followed to the caller's operand if its computation has one caller.

        Args:
          also: opcodes that are skipped too, of operations on one operand.
          into_loops: whether a parameter of a loop's body is followed to what the loop starts with,
            which is in the same memory but may be another value.
        """
        seen = set[tuple[str, str, Path]]()
        current: Value | None = value
        while current is not None and current.key not in seen:
            yield current
            seen.add(current.key)
            if current.instruction.opcode == "parameter":
                current = self.passed_by_caller(current, into_loops)
            else:
                current = self.step(current, also)

    def same_memory(self, value: Value) -> Iterator[Value]:
        """`value`, then the values that XLA puts in the same memory, nearest first.

        These are what it is another name of, what a call, a loop or a branch returns as it, and
        what the caller of its computation passes. XLA gives each element of a tuple in each place
        one buffer, so all of them have it.
        """
        pending, seen = deque([value]), set[tuple[str, str, Path]]()
        while pending:
            current = pending.popleft()
            if current.key not in seen:
                seen.add(current.key)
                yield current
                pending.extend(self.one_step_nearer(current))

    def one_step_nearer(self, value: Value) -> Iterator[Value]:
        """The values of `same_memory` that are one step nearer to their definitions."""
        computation, instruction, path = value
        opcode = instruction.opcode
        if opcode == "parameter":
            for scope, caller, role in self.callers(computation):
                # The values of other computations, such as the body of a fusion, have no memory.
                if caller.opcode in opcodes.RUNS_COMPUTATIONS:
                    position = _position_passed(caller, role, instruction)
                    yield from _if_known(self._operand(scope, caller, position, path))
        elif opcode in ("conditional", "while"):
            if opcode == "while":
                yield from _if_known(self._operand(computation, instruction, 0, path))
                # Also of the condition, during which the carried values are alive.
                yield from self._parameters(instruction.called_computations, 0, path)
            yield from self.roots(value)
        else:
            yield from _if_known(self.step(value, frozenset()))

    def definition(self, value: Value, also: frozenset[str] = frozenset()) -> Value:
        """The last of `steps_to_definition`."""
        *_, last = self.steps_to_definition(value, also)
        return last

    def operand(self, value: Value, position: int) -> Value | None:
        """What an instruction reads at `position`, `value.path` of it; None in a damaged module."""
        return self._operand(value.computation, value.instruction, position, value.path)

    def operands(self, value: Value) -> Iterator[Value]:
        """What an instruction reads at each position, `value.path` of it."""
        for position in range(len(value.instruction.operands)):
            yield from _if_known(self.operand(value, position))

    @staticmethod
    def _operand(
        computation: Computation, instruction: Instruction, position: int | None, path: Path
    ) -> Value | None:
        if position is None or position >= len(instruction.operands):
            return None
        operand = computation.by_name.get(instruction.operands[position])
        if operand is None:
            return None
        return Value(computation, operand, (*operand_index(instruction, position), *path))

    def step(self, value: Value, also: frozenset[str]) -> Value | None:
        """The next of `steps_to_definition`, but for that of a parameter."""
        computation, instruction, path = value
        if instruction.opcode in opcodes.RUNS_ONCE:
            return self._result_of_called(value)
        operand = forwarded_operand(instruction, path)
        if operand is None and instruction.opcode in also:
            # The result of a copy-start is (destination, source, context).
            operand = 0, path[1:] if instruction.opcode == "copy-start" else path
        return None if operand is None else self._operand(computation, instruction, *operand)

    def _result_of_called(self, value: Value) -> Value | None:
        """The root of the computation that a call or an async-start runs, or its operand."""
        computation, instruction, path = value
        if instruction.opcode == "async-start":
            # The result is (operands, results, context).
            if path[:1] == (0,) and len(path) > 1:
                return self._operand(computation, instruction, path[1], path[2:])
            if path[:1] != (1,):
                return None
            path = path[1:]
        names = instruction.called_computations
        return next(self._roots(names, path), None) if len(names) == 1 else None

    def roots(self, value: Value) -> Iterator[Value]:
        """What the computations return that make a value: one, or each branch of a conditional."""
        called = value.instruction.called_computations
        is_loop = value.instruction.opcode == "while"
        return self._roots(called[:1] if is_loop else called, value.path)

    def _roots(self, names: Iterable[str], path: Path) -> Iterator[Value]:
        """An element of what each computation returns."""
        for body in map(self.module.computations.get, names):
            if body is not None:
                yield Value(body, body.by_name[body.root], path)

    def _parameters(self, names: Iterable[str], number: int, path: Path) -> Iterator[Value]:
        """An element of a parameter of each computation."""
        for body in map(self.module.computations.get, names):
            if body is not None and number in body.parameters:
                yield Value(body, body.parameters[number], path)

    def passed_by_caller(self, value: Value, into_loops: bool) -> Value | None:
        """What the only caller of a computation passes; see `steps_to_definition`."""
        callers = self.callers(value.computation)
        if len(callers) != 1:
            return None
        computation, caller, role = callers[0]
        if caller.opcode == "while" and not into_loops:
            return None
        position = _position_passed(caller, role, value.instruction)
        return self._operand(computation, caller, position, value.path)

    def readers(self, value: Value, also: frozenset[str] = frozenset()) -> Iterator[Value]:
        """The instructions that read `value` and compute or move something, each once.

        Calls, loops and conditionals are entered; a fusion is one reader. A loop's carry that the
        body hands on is followed to what reads it after the loop.

        Args:
          also: opcodes that are skipped like those that forward their operand.

        Yields:
          The reader with the path of the element that it reads of its operand.
        """
        pending, seen, yielded = [value], set[tuple[str, str, Path]](), set[str]()
        while pending:
            current = pending.pop()
            if current.key in seen:
                continue
            seen.add(current.key)
            if current.instruction.name == current.computation.root:
                pending.extend(self._results_of_callers(current))
            for user, position, read in self._users_of(current):
                shorter = min(len(read), len(current.path))
                if read[:shorter] != current.path[:shorter]:
                    continue
                path = current.path[len(read) :]
                if user.opcode in also:
                    pending.append(Value(current.computation, user, path))
                    continue
                passed = list(self._passed_on(current.computation, user, position, path))
                pending.extend(passed)
                if not passed and user.name not in yielded:
                    yielded.add(user.name)
                    yield Value(current.computation, user, path)

    def shapes(self, value: Value) -> Iterator[Shape]:
        """The shapes in which `value` is written and read: its own, and those of bitcasts of it.

        XLA stores a value in the shape that its kernel writes, and bitcasts it to that of the
        traced program, in the kernel or in those that read it.
        """
        pending, seen = [value, *self._written_as(value)], set[tuple[str, str, Path]]()
        while pending:
            current = pending.pop()
            if current.key in seen:
                continue
            seen.add(current.key)
            yield current.shape
            if current.instruction.name == current.computation.root:
                pending.extend(self._results_of_callers(current))
            for user, position, read in self._users_of(current):
                if read == current.path[: len(read)]:
                    path = current.path[len(read) :]
                    pending.extend(self._passed_on(current.computation, user, position, path))
                    if user.opcode == "fusion":
                        called = user.called_computations
                        pending.extend(self._parameters(called, position, path))

    def _written_as(self, value: Value) -> Iterator[Value]:
        """What a fusion makes and bitcasts to its result, which is `value`."""
        inside = self._root_of_fusion(value)
        while inside is not None and inside.instruction.opcode in (*opcodes.RESHAPES, "tuple"):
            operand = forwarded_operand(inside.instruction, inside.path) or (0, ())
            inside = self._operand(inside.computation, inside.instruction, *operand)
            if inside is not None and inside.instruction.opcode not in opcodes.GIVEN:
                yield inside

    def _root_of_fusion(self, value: Value) -> Value | None:
        if value.instruction.opcode != "fusion":
            return None
        return next(self._roots(value.instruction.called_computations, value.path), None)

    def _passed_on(
        self, computation: Computation, user: Instruction, position: int, path: Path
    ) -> Iterator[Value]:
        """The values that one operand of `user` is under other names; none if `user` reads it."""
        if user.opcode == "tuple":
            yield Value(computation, user, (position, *path))
        elif user.opcode in opcodes.FORWARDS:
            element = result_in_start(user.opcode)
            if path[: len(element)] == element[: len(path)]:
                yield Value(computation, user, path[len(element) :])
        elif user.opcode in opcodes.RUNS_COMPUTATIONS:
            called, number = user.called_computations, position
            if user.opcode == "conditional":
                called, number = called[position - 1 : position] if position else (), 0
            yield from self._parameters(called, number, path)

    def _results_of_callers(self, root: Value) -> Iterator[Value]:
        """The values that the root of a called computation is in the computations that call it."""
        for computation, caller, role in self.callers(root.computation):
            condition = caller.opcode == "while" and role == 1
            if caller.opcode not in opcodes.RUNS_COMPUTATIONS or condition:
                continue
            prefix = (1,) if caller.opcode == "async-start" else ()
            yield Value(computation, caller, (*prefix, *root.path))

    def users(self, computation: Computation, name: str) -> Sequence[OperandUse]:
        """The instructions of a computation that have `name` as an operand, in their order."""
        uses = self._uses.get(computation.name)
        if uses is None:
            uses = self._uses[computation.name] = {}
            for instruction in computation.instructions:
                for position, operand in enumerate(instruction.operands):
                    use = OperandUse(instruction, position, operand_index(instruction, position))
                    uses.setdefault(operand, []).append(use)
        return uses.get(name, ())

    def _users_of(self, value: Value) -> Sequence[OperandUse]:
        """The uses of the whole result that `value` is in, and of its element of a tuple."""
        uses = self.users(value.computation, value.instruction.name)
        if not value.path:
            return uses
        key = value.computation.name, value.instruction.name
        by_element = self._uses_by_element.get(key)
        if by_element is None:
            by_element = self._uses_by_element[key] = {}
            for number, use in enumerate(uses):
                by_element.setdefault(use.path[:1], []).append(number)
        numbers = (*by_element.get((), ()), *by_element.get(value.path[:1], ()))
        return [uses[number] for number in sorted(numbers)]

    @cached_property
    def _uses(self) -> dict[str, dict[str, list[OperandUse]]]:
        return {}

    @cached_property
    def _uses_by_element(self) -> dict[tuple[str, str], dict[Path, list[int]]]:
        return {}

    def origins(self, value: Value) -> Iterator[Value]:
        """The nearest operations that compute what an instruction reads, with fusions' bodies.

        Operations of `PASS_THROUGH` are skipped.
        """
        pending, seen = list(self._read(value)), set[tuple[str, str]]()
        while pending:
            origin = pending.pop()
            key = (origin.computation.name, origin.instruction.name)
            if key in seen:
                continue
            seen.add(key)
            opcode = origin.instruction.opcode
            if opcode in PASS_THROUGH or opcode in ("parameter", "fusion"):
                pending.extend(self._read(origin))
            else:
                yield origin

    def _read(self, value: Value) -> Iterator[Value]:
        """What an instruction reads, across the boundaries of fusions."""
        computation, instruction, path = value
        if instruction.opcode == "parameter":
            for scope, caller, _ in self.callers(computation)[-1:]:
                if caller.opcode == "fusion":
                    number = instruction.parameter_number
                    yield from _if_known(self._operand(scope, caller, number, path))
        elif instruction.opcode == "fusion":
            yield from _if_known(self._root_of_fusion(value))
        else:
            yield from self.operands(value)

    def body_has_any(self, instruction: Instruction, opcodes: frozenset[str]) -> bool:
        """Whether a computation that `instruction` calls has one of `opcodes` or is unknown."""
        computations = self.module.computations
        return any(
            name not in computations or not computations[name].opcodes.isdisjoint(opcodes)
            for name in instruction.called_computations
        )

    def body(self, instruction: Instruction) -> Iterator[Value]:
        """The results of all instructions that `instruction` calls, directly or not."""
        for computation in self.module.called(instruction.called_computations):
            yield from (Value(computation, inner) for inner in computation.instructions)


def _position_passed(caller: Instruction, role: int, parameter: Instruction) -> int | None:
    """Position of the operand that is a parameter of the computation called as `role`."""
    return role + 1 if caller.opcode == "conditional" else parameter.parameter_number


def _if_known(value: Value | None) -> tuple[Value, ...]:
    return () if value is None else (value,)


# The one of a module, so that each of its tables is made once.
dataflow_of = once_per_object(Dataflow)
