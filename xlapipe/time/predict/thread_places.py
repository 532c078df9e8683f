"""Elements that threads compute of a fusion's instructions, and values of indices there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from xlapipe.plans import Computation, Instruction, opcodes
from xlapipe.plans.dataflow import Path, operand_index
from xlapipe.time.predict.fusion import Fusion
from xlapipe.time.predict.gpu import THREADS_OF_A_WARP
from xlapipe.time.predict.index_values import Array, computed_values, unknown_values, within
from xlapipe.time.predict.operand_places import (
    Index,
    have_elements,
    index_of_operand,
    of_joined,
    of_update,
)

THREADS_OF_A_BLOCK = 128
"""Threads of a block, as XLA launches them."""

_MIXED = 1_000_003
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


class BoundComputation(NamedTuple):
    """A computation, and what its parameters are: elements of tuples in the caller's frame."""

    computation: Computation
    arguments: Mapping[int, "tuple[BoundComputation, str, Path]"]
    number: int


class ThreadPlaces:
    """Indices of threads, followed through a fusion's body.

    Attributes:
      body: the frame of what the fusion computes.
      blocks: of threads that are followed.
    """

    def __init__(self, fusion: Fusion, elements_of_a_thread: int) -> None:
        self._module = fusion.module
        self._unrolled = elements_of_a_thread
        self._frames: dict[tuple[int, str], BoundComputation] = {}
        self.body = self._called(BoundComputation(fusion.scope, {}, 0), fusion.inner, fusion.body)
        self.blocks = 1
        self._keys: dict[tuple[bytes, ...], int] = {}
        self._values: dict[tuple[int, str, Path, int], Array] = {}
        # Numbers of unknown arrays and of branches, in the order in which they are reached: names,
        # which XLA gives as it likes, change nothing.
        self._unknown: dict[tuple[int, str, Path], int] = {}
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

    def frame_of(self, frame: BoundComputation, caller: Instruction) -> BoundComputation | None:
        """The frame of what an instruction computes."""
        names = caller.called_computations[:1]
        inside = self._module.computations.get(names[0]) if names else None
        return None if inside is None else self._called(frame, caller, inside)

    def _called(
        self, frame: BoundComputation, caller: Instruction, inside: Computation
    ) -> BoundComputation:
        key = (frame.number, caller.name)
        if key not in self._frames:
            arguments = {
                number: (frame, name, operand_index(caller, number))
                for number, name in enumerate(caller.operands)
                if name in frame.computation.by_name
            }
            self._frames[key] = BoundComputation(inside, arguments, len(self._frames) + 1)
        return self._frames[key]

    def operands(
        self, frame: BoundComputation, instruction: Instruction, at: Places
    ) -> Iterator[tuple[str, Places, bool]]:
        """Elements of each operand that threads read, and whether they do so in a branch."""
        if instruction.opcode in opcodes.ELEMENTWISE:
            by_name, rank = frame.computation.by_name, len(at.index)
            if all(len(by_name[name].shape.dims) == rank for name in instruction.operands):
                for name in instruction.operands:
                    yield name, at, False
                return
        for number, (name, index, inside) in enumerate(self._operands(frame, instruction, at)):
            places = at
            if inside is not None:
                key = (at.branch, frame.number, instruction.name, number)
                branch = self._branches.setdefault(key, len(self._branches) + 1)
                places = replace(self.places(index, at.active & inside), branch=branch)
            elif index is not at.index:
                places = replace(self.places(index, at.active), branch=at.branch)
            yield name, places, inside is not None

    def _operands(
        self, frame: BoundComputation, instruction: Instruction, at: Places
    ) -> Iterator[tuple[str, Index, Array | None]]:
        """Each operand, its index, and which threads read it if a branch decides on that."""
        by_name, opcode, names = frame.computation.by_name, instruction.opcode, instruction.operands
        shapes = [by_name[name].shape.arrays for name in names]
        first = [arrays[0] for arrays in shapes if arrays]
        if not have_elements(first):
            return
        if opcode == "concatenate":
            yield from of_joined(instruction, first, at.index)
        elif opcode == "dynamic-update-slice" and len(first) > 1:
            yield from of_update(instruction, first, at.index)
        elif opcode == "gather" and len(first) > 1:
            yield from self._gather_places(frame, instruction, at)
        else:
            for position, (name, arrays) in enumerate(zip(names, shapes, strict=True)):
                if not arrays:
                    yield name, at.index, None
                elif not at.index and arrays[0].dims:
                    zeros = np.zeros(len(at.active), np.int64)
                    yield name, (zeros,) * len(arrays[0].dims), None
                else:
                    index, inside = index_of_operand(instruction, position, arrays[0], at.index)
                    if index is not None:
                        yield name, index, inside

    def _gather_places(
        self, frame: BoundComputation, instruction: Instruction, at: Places
    ) -> Iterator[tuple[str, Index, Array | None]]:
        by_name, (table, indices) = frame.computation.by_name, instruction.operands[:2]
        of_table, of_indices = (by_name[name].shape.arrays[0] for name in (table, indices))
        contraction = instruction.contraction
        dims = contraction.dims if contraction is not None else ()
        dims = (*dims, *(-1,) * (len(at.index) - len(dims)))
        rows = tuple(part for part, dim in zip(at.index, dims, strict=False) if dim < 0)
        places = [np.zeros(len(at.active), np.int64) for _ in of_table.dims]
        sizes = [1] * len(of_table.dims)
        result = instruction.shape.arrays[0].dims
        for part, dim, size in zip(at.index, dims, result, strict=False):
            if 0 <= dim < len(places):
                places[dim], sizes[dim] = part, size
        for number, dim in enumerate(contraction.starts if contraction is not None else ()):
            index = rows
            if len(of_indices.dims) > len(rows):
                index = (*rows, np.full(len(at.active), number, np.int64))
            if len(index) != len(of_indices.dims):
                continue
            yield indices, index, None
            start = self.value(frame, indices, self.places(index, at.active))
            most = max(0, of_table.dims[dim] - sizes[dim])
            start = np.clip(within(start.astype(np.int64), 0, most), 0, most)
            places[dim] = places[dim] + start
        index = tuple(np.clip(p, 0, n - 1) for p, n in zip(places, of_table.dims, strict=True))
        yield table, index, None

    def value(self, frame: BoundComputation, name: str, at: Places, path: Path = ()) -> Array:
        """Values of an instruction, or of the element `path` of it, where threads need them."""
        key = (frame.number, name, path, at.key)
        if key not in self._values:
            self._depth += 1
            instruction, values = frame.computation.by_name[name], None
            if self._depth <= _DEEPEST:
                values = self._values_at(frame, instruction, at, path)
            if values is None:
                # Equal indices have equal values.
                places = np.zeros(len(at.active), np.int64)
                for part in at.index:
                    places = places * _MIXED + part
                seed = self._unknown.setdefault(key[:3], len(self._unknown))
                shape = instruction.shape.at(path)
                element = shape.arrays[0].element if shape.arrays else shape.element
                values = unknown_values(element, places, seed)
            self._values[key] = values
            self._depth -= 1
        return self._values[key]

    def _values_at(
        self, frame: BoundComputation, instruction: Instruction, at: Places, path: Path
    ) -> Array | None:
        """The values as far as the plan states them; else None."""
        opcode, count = instruction.opcode, len(at.active)
        if instruction.integer is not None:
            return np.full(count, instruction.integer, np.int64)
        if opcode == "constant" and not instruction.shape.dims:
            return np.full(count, 1.0 if instruction.real is None else instruction.real)
        if opcode == "iota" and instruction.contraction is not None and at.index:
            return at.index[instruction.contraction.dims[0]]
        if opcode == "parameter":
            argument = frame.arguments.get(instruction.parameter_number or 0)
            if argument is None:
                return None
            caller, name, element = argument
            return self.value(caller, name, at, (*element, *path))
        if opcode == "get-tuple-element":
            return self.value(frame, instruction.operands[0], at, operand_index(instruction, 0))
        if opcode in opcodes.HAS_BODY:
            inside = self.frame_of(frame, instruction)
            if inside is None:
                return None
            root = inside.computation.by_name[inside.computation.root]
            name = root.name
            if path and root.opcode == "tuple":
                name, path = root.operands[path[0]], path[1:]
            return self.value(inside, name, at, path)
        if opcode in _WITH_VALUES:
            return self._moved_value(frame, instruction, at)
        if opcode in opcodes.ELEMENTWISE and self._left > 0:
            self._left -= 1
            values = [
                self.value(frame, operand, self._scalar_or(frame, operand, at))
                for operand in instruction.operands
            ]
            return computed_values(instruction, values)
        return None

    def _scalar_or(self, frame: BoundComputation, operand: str, at: Places) -> Places:
        dims = frame.computation.by_name[operand].shape.dims
        return at if len(dims) == len(at.index) else self.places((), at.active)

    def _moved_value(self, frame: BoundComputation, instruction: Instruction, at: Places) -> Array:
        values = np.zeros(len(at.active), np.int64)
        for operand, places, branches in self.operands(frame, instruction, at):
            value = self.value(frame, operand, places)
            values = np.where(places.active, value, values) if branches else value
        return values
