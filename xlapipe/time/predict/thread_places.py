"""Elements that threads compute of a fusion's instructions, and values of indices there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from xlapipe.plans import opcodes
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.shapes import Shape
from xlapipe.time.predict.gpu import THREADS_OF_A_WARP
from xlapipe.time.predict.index_values import Array, computed_values, unknown_values, within
from xlapipe.time.predict.operand_places import (
    Index,
    have_elements,
    index_of_operand,
    joined_dimension,
)

THREADS_OF_A_BLOCK = 128
"""Threads of a block, as XLA launches them."""

_MIXED = 1_000_003
# Kernels before this one whose results are followed to find values of indices.
_KERNELS_BEFORE = 3
# Limits: depth from an index to what it is computed from, and instructions of all indices.
_DEEPEST, _MOST_VALUES = 100, 2000
# Instructions that only move values.
_WITH_VALUES = frozenset(
    {"bitcast", "broadcast", "concatenate", "copy", "gather", "pad", "reshape", "slice"}
    | {"transpose"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Elements of an array that threads are at, and which threads are active.

    Attributes:
      index: of each thread, by dimension.
      active: which threads compute or read an element.
      threads: number of active threads.
      warps: which warps have an active thread.
      key: equal for equal places.
      branch: identifies the branches on the way, 0 for none: values computed in one branch are not
        known in another.
    """

    index: Index
    active: Array
    threads: int
    warps: Array
    key: int
    branch: int = 0


class Frame(NamedTuple):
    """A computation, and what its parameters are: an instruction of another frame, or memory."""

    computation: Computation
    arguments: Mapping[int, "tuple[Frame, str]"]
    number: int


class ThreadPlaces:
    """Indices of threads, followed through a fusion's body.

    Attributes:
      body: the frame of what the fusion computes.
      blocks: of threads that are followed.
    """

    def __init__(
        self,
        inner: Instruction,
        body: Computation,
        scope: Computation,
        module: HloModule,
        elements_of_a_thread: int,
    ) -> None:
        self._module = module
        self._unrolled = elements_of_a_thread
        self._outer = Frame(scope, {}, 0)
        self._frames = 1
        self.body = Frame(body, {}, 1)
        self.blocks = 1
        paths = inner.operand_indices or ((),) * len(inner.operands)
        self._producers = {
            number: (scope.by_name[name], path)
            for number, (name, path) in enumerate(zip(inner.operands, paths, strict=False))
            if name in scope.by_name
        }
        self._inner_frames: dict[tuple[int, str], Frame] = {}
        self._keys: dict[tuple[bytes, ...], int] = {}
        self._values: dict[tuple[int, str, int], Array] = {}
        # Numbers of unknown arrays and of branches, in the order in which they are reached: names,
        # which XLA gives as it likes, change nothing.
        self._unknown: dict[tuple[int, str], int] = {}
        self._branches: dict[tuple[int, int, str, int], int] = {}
        self._depth, self._left = 0, _MOST_VALUES

    def places(self, index: Index, active: Array) -> Places:
        content = (*(part.tobytes() for part in index), active.tobytes())
        key = self._keys.setdefault(content, len(self._keys))
        warps = active.reshape(-1, THREADS_OF_A_WARP).any(1).astype(float)
        if self._unrolled > 1:
            warps[self._repeated(index)] = 0.0
        return Places(index, active, int(np.count_nonzero(active)), warps, key)

    def _repeated(self, index: Index) -> Array:
        """Which warps are at the same elements as in the previous element of their threads."""
        warps = THREADS_OF_A_BLOCK // THREADS_OF_A_WARP
        repeated = np.ones((self.blocks, self._unrolled - 1, warps), bool)
        for part in index:
            of_block = part.reshape(self.blocks, self._unrolled, -1, THREADS_OF_A_WARP)
            repeated &= (of_block[:, 1:] == of_block[:, :-1]).all(-1)
        first = np.zeros((self.blocks, 1, warps), bool)
        return np.concatenate([first, repeated], 1).ravel()

    def frame_of(self, frame: Frame, caller: Instruction) -> Frame | None:
        """The frame of what an instruction computes."""
        key = (frame.number, caller.name)
        if key not in self._inner_frames:
            names = caller.called_computations[:1]
            if not names or names[0] not in self._module.computations:
                return None
            self._frames += 1
            arguments = {n: (frame, name) for n, name in enumerate(caller.operands)}
            inside = self._module.computations[names[0]]
            self._inner_frames[key] = Frame(inside, arguments, self._frames)
        return self._inner_frames[key]

    def operands(
        self, frame: Frame, instruction: Instruction, at: Places
    ) -> Iterator[tuple[str, Places, bool]]:
        """Elements of each operand that threads read, and whether they do so in a branch."""
        if instruction.opcode in opcodes.ELEMENTWISE:
            by_name, rank = frame.computation.by_name, len(at.index)
            if all(len(by_name[name].shape.dims) == rank for name in instruction.operands):
                for name in instruction.operands:
                    yield name, at, False
                return
        for number, (name, places, branches) in enumerate(self._operands(frame, instruction, at)):
            branch = at.branch
            if branches:
                own = (branch, frame.number, instruction.name, number)
                branch = self._branches.setdefault(own, len(self._branches) + 1)
            same = places.branch == branch
            yield name, places if same else replace(places, branch=branch), branches

    def _operands(
        self, frame: Frame, instruction: Instruction, at: Places
    ) -> Iterator[tuple[str, Places, bool]]:
        body, opcode = frame.computation, instruction.opcode
        names = instruction.operands
        shapes = [body.by_name[name].shape.arrays for name in names]
        if not have_elements(shape[0] for shape in shapes if shape):
            return
        if opcode == "concatenate":
            yield from self._of_joined(instruction, names, [s[0] for s in shapes if s], at)
            return
        if opcode == "dynamic-update-slice" and shapes[0] and shapes[1]:
            yield from self._of_update(names, shapes[0][0], shapes[1][0], at)
            return
        if opcode == "gather" and shapes[0] and shapes[1]:
            yield from self._of_gather(frame, instruction, at)
            return
        for position, (name, arrays) in enumerate(zip(names, shapes, strict=True)):
            if not arrays:
                yield name, at, False
                continue
            if not at.index and arrays[0].dims:
                zeros = (np.zeros(len(at.active), np.int64),) * len(arrays[0].dims)
                yield name, self.places(zeros, at.active), False
                continue
            index, inside = index_of_operand(instruction, position, arrays[0], at.index)
            if index is at.index:
                yield name, at, False
            elif index is not None:
                active = at.active if inside is None else at.active & inside
                yield name, self.places(index, active), inside is not None

    def _of_joined(
        self, instruction: Instruction, names: Sequence[str], shapes: Sequence[Shape], at: Places
    ) -> Iterator[tuple[str, Places, bool]]:
        result = instruction.shape.arrays[0]
        dim = joined_dimension(result, shapes)
        start = 0
        for name, shape in zip(names, shapes, strict=False):
            place = at.index[dim] - start
            size = shape.dims[dim]
            inside = at.active & (place >= 0) & (place < size)
            index = tuple(
                np.clip(place, 0, size - 1) if number == dim else part
                for number, part in enumerate(at.index)
            )
            yield name, self.places(index, inside), len(names) > 1
            start += size

    def _of_update(
        self, names: Sequence[str], shape: Shape, update: Shape, at: Places
    ) -> Iterator[tuple[str, Places, bool]]:
        inside = np.ones(len(at.active), bool)
        index = []
        for part, size, whole in zip(at.index, update.dims, shape.dims, strict=True):
            place = part - (whole - size) // 2
            inside &= (place >= 0) & (place < size)
            index.append(np.clip(place, 0, size - 1))
        yield names[0], self.places(at.index, at.active & ~inside), True
        yield names[1], self.places(tuple(index), at.active & inside), True

    def _of_gather(
        self, frame: Frame, instruction: Instruction, at: Places
    ) -> Iterator[tuple[str, Places, bool]]:
        body = frame.computation
        table, indices = instruction.operands[:2]
        of_table = body.by_name[table].shape.arrays[0]
        of_indices = body.by_name[indices].shape.arrays[0]
        contraction = instruction.contraction
        dims = contraction.dims if contraction is not None else ()
        dims = (*dims, *(-1,) * (len(at.index) - len(dims)))
        starts = contraction.starts if contraction is not None else ()
        rows = tuple(part for part, dim in zip(at.index, dims, strict=False) if dim < 0)
        places = [np.zeros(len(at.active), np.int64) for _ in of_table.dims]
        sizes = [1] * len(of_table.dims)
        result = instruction.shape.arrays[0].dims
        for part, dim, size in zip(at.index, dims, result, strict=False):
            if 0 <= dim < len(places):
                places[dim], sizes[dim] = part, size
        for number, dim in enumerate(starts):
            index = rows
            if len(of_indices.dims) > len(rows):
                index = (*rows, np.full(len(at.active), number, np.int64))
            if len(index) != len(of_indices.dims):
                continue
            of_start = self.places(index, at.active)
            yield indices, of_start, False
            start = self.value(frame, indices, of_start, 0)
            most = max(0, of_table.dims[dim] - sizes[dim])
            start = np.clip(within(start.astype(np.int64), 0, most), 0, most)
            places[dim] = places[dim] + start
        index = tuple(np.clip(p, 0, n - 1) for p, n in zip(places, of_table.dims, strict=True))
        yield table, self.places(index, at.active), False

    def value(self, frame: Frame, name: str, at: Places, before: int) -> Array:
        """Values of an instruction where threads need them.

        Args:
          before: kernels between this one and the fusion.
        """
        key = (frame.number, name, at.key)
        if key not in self._values:
            self._depth += 1
            self._values[key] = self._values_at(frame, name, at, before)
            self._depth -= 1
        return self._values[key]

    def _values_at(self, frame: Frame, name: str, at: Places, before: int) -> Array:
        instruction = frame.computation.by_name[name]
        opcode, shape = instruction.opcode, instruction.shape
        array = shape.arrays[0] if shape.arrays else shape
        if instruction.integer is not None:
            return np.full(len(at.active), instruction.integer, np.int64)
        if opcode == "constant" and not array.dims:
            return np.full(len(at.active), 1.0 if instruction.real is None else instruction.real)
        if opcode == "iota" and instruction.contraction is not None and array.dims:
            return at.index[instruction.contraction.dims[0]]
        if self._depth > _DEEPEST:
            pass
        elif opcode == "parameter":
            number = instruction.parameter_number or 0
            argument = frame.arguments.get(number)
            if argument is not None:
                return self.value(*argument, at, before)
            if frame.number == self.body.number and number in self._producers:
                maker, path = self._producers[number]
                made = self._made(self._outer, maker, path, at, before)
                if made is not None:
                    return made
        elif opcode in opcodes.HAS_BODY or opcode == "get-tuple-element":
            made = self._made(frame, instruction, (), at, before)
            if made is not None:
                return made
        elif opcode in _WITH_VALUES:
            return self._moved_value(frame, instruction, at, before)
        elif opcode in opcodes.ELEMENTWISE and self._left > 0:
            self._left -= 1
            values = [
                self.value(frame, operand, self._scalar_or(frame, operand, at), before)
                for operand in instruction.operands
            ]
            computed = computed_values(instruction, values)
            if computed is not None:
                return computed
        # Equal indices have equal values.
        places = np.zeros(len(at.active), np.int64)
        for part in at.index:
            places = places * _MIXED + part
        seed = self._unknown.setdefault((frame.number, name), len(self._unknown))
        return unknown_values(array.element, places, seed)

    def _scalar_or(self, frame: Frame, operand: str, at: Places) -> Places:
        dims = frame.computation.by_name[operand].shape.dims
        return at if len(dims) == len(at.index) else self.places((), at.active)

    def _made(
        self, frame: Frame, instruction: Instruction, path: tuple[int, ...], at: Places, before: int
    ) -> Array | None:
        """Values of a result of an earlier kernel; None if they are not followed.

        Args:
          path: of the element of its tuple; none if it is an array.
        """
        if instruction.opcode == "get-tuple-element":
            paths, name = instruction.operand_indices, instruction.operands[0]
            path, maker = (paths[0] if paths else ()), frame.computation.by_name.get(name)
        else:
            maker = instruction
        if maker is None or before >= _KERNELS_BEFORE:
            return None
        if maker.opcode in _WITH_VALUES | {"iota"} and not path:
            return self.value(frame, maker.name, at, before + 1)
        if maker.opcode not in opcodes.HAS_BODY:
            return None
        inside = self.frame_of(frame, maker)
        if inside is None:
            return None
        root = inside.computation.by_name[inside.computation.root]
        if root.opcode != "tuple":
            return self.value(inside, root.name, at, before + 1) if not path else None
        if len(path) != 1 or path[0] >= len(root.operands):
            return None
        return self.value(inside, root.operands[path[0]], at, before + 1)

    def _moved_value(
        self, frame: Frame, instruction: Instruction, at: Places, before: int
    ) -> Array:
        values = np.zeros(len(at.active), np.int64)
        for operand, places, branches in self.operands(frame, instruction, at):
            found = self.value(frame, operand, places, before)
            values = np.where(places.active, found, values) if branches else found
        return values
