"""The output that corresponds to an argument, by its path, and whether its type is another.

JAX pairs donated leaves with outputs by shape and dtype, not by path. If one output of a tree has
another type, every later leaf is paired with the next output, so the leaves that have no alias or
are copied are not those that changed.

The output that most likely is the updated value of an argument is the one with the likest path.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any

from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program, path_keys


class LikelyOutputs:
    """Outputs of a kind, e.g. with a shape, by the keys at the end of their paths.

    Likeness is the number of equal keys at the end: `cache[0]['v']` is like `out[1][0]['v']`.

    Args:
      outputs: in the order of the program.
      kind: what distinguishes the outputs that are compared.
    """

    def __init__(
        self, outputs: Iterable[OutputLeaf], kind: Callable[[Any], Hashable] = lambda leaf: None
    ) -> None:
        self._kind = kind
        self._ending: dict[Hashable, list[OutputLeaf]] = defaultdict(list)
        for output in outputs:
            keys = path_keys(output.path)
            for start in range(len(keys) + 1):
                self._ending[kind(output), keys[start:]].append(output)

    def ending(self, leaf: Any, keys: tuple[str, ...]) -> Sequence[OutputLeaf]:
        """The outputs of the kind of `leaf` whose paths end with these keys."""
        return self._ending.get((self._kind(leaf), keys), ())

    def like(self, leaf: Any) -> OutputLeaf | None:
        """The likest output of the kind of `leaf`, the first of several; None without one."""
        keys = path_keys(leaf.path)
        ends = (self.ending(leaf, keys[start:]) for start in range(len(keys) + 1))
        return next((outputs[0] for outputs in ends if outputs), None)

    def count(self, leaf: Any) -> int:
        """The number of outputs of the kind of `leaf`."""
        return len(self.ending(leaf, ()))


class ChangedOutputs:
    """Finds the output whose type differs from that of its argument."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._outputs = LikelyOutputs(program.outputs)
        self._only_one = cache(self._only_one_ending)
        self._advice: dict[str, str] = {}

    def advice(self, leaf: ArgumentLeaf, aliased: str | None) -> str:
        """The advice to restore the output whose type differs from that of its argument.

        Args:
          leaf: a donated leaf without an alias, or with the alias of another leaf's output.
          aliased: path of the output that is written over `leaf`; None without an alias.

        Returns:
          An empty string if no such output is the reason.
        """
        output = self._only_one(path_keys(leaf.path)[1:])
        return "" if output is None or output.path == aliased else self._advice_from(leaf)

    def _advice_from(self, leaf: ArgumentLeaf) -> str:
        """Follows each output with the keys of a leaf to the leaf that it is written over."""
        passed: list[str] = []
        current: ArgumentLeaf | None = leaf
        advice = ""
        while current is not None:
            if current.path in self._advice:
                advice = self._advice[current.path]
                break
            passed.append(current.path)
            self._advice[current.path] = ""  # of leaves that lead to each other
            output = self._only_one(path_keys(current.path)[1:])
            if output is None:
                break
            if (output.shape, output.dtype) != (current.shape, current.dtype):
                advice = (
                    f"return {output.path}, now {_type(output)}, as {_type(current)} like "
                    f"{current.path}: jax pairs donated leaves with outputs by shape and dtype, "
                    "in order"
                )
                break
            current = self._program.owner_of_output.get(output.path)
        self._advice.update(dict.fromkeys(passed, advice))
        return advice

    def _only_one_ending(self, keys: tuple[str, ...]) -> OutputLeaf | None:
        """The output whose path ends in a leaf's keys; None if that is ambiguous.

        `out[1][0]['k']` for `cache[0]['k']`. The shortest of several paths is chosen if the keys
        contain a name: `out[0]['w']`, not `out[1].mu['w']`, for `params['w']`. An output with these
        keys alone is the whole result, not a part of it.
        """
        lengths = {
            output: len(path_keys(output.path))
            for output in self._outputs.ending(None, keys)
            if len(path_keys(output.path)) > len(keys) + 1
        }
        if not keys or (all(key[1:-1].isdigit() for key in keys) and len(lengths) > 1):
            return None
        shortest = [output for output, length in lengths.items() if length == min(lengths.values())]
        return shortest[0] if len(shortest) == 1 else None


def _type(leaf: ArgumentLeaf | OutputLeaf) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
