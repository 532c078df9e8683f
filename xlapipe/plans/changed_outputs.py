"""The output that corresponds to an argument, by its path, and whether its type is another.

JAX pairs donated leaves with outputs by shape and dtype, not by path. If one output of a tree has
another type, every later leaf is paired with the next output, so the leaves that have no alias or
are copied are not those that changed.

The output that most likely is the updated value of an argument is the one with the likest path.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from os.path import commonprefix
from typing import Any

from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program

_KEY = re.compile(r"\[(?:'[^']*'|\"[^\"]*\"|[^\]]*)\]|\.\w+")


class ChangedOutputs:
    """Finds the output whose type differs from that of its argument."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._keys = [tuple(_KEY.findall(output.path)) for output in program.outputs]
        self._ending: dict[int, dict[tuple[str, ...], list[int]]] = {}
        self._output_of: dict[tuple[str, ...], OutputLeaf | None] = {}
        self._advice: dict[str, str] = {}

    def advice(self, leaf: ArgumentLeaf, aliased: str | None) -> str:
        """The advice to restore the output whose type differs from that of its argument.

        Args:
          leaf: a donated leaf without an alias, or with the alias of another leaf's output.
          aliased: path of the output that is written over `leaf`; None without an alias.

        Returns:
          An empty string if no such output is the reason.
        """
        output = self._same_keys(leaf)
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
            output = self._same_keys(current)
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

    def _same_keys(self, leaf: ArgumentLeaf) -> OutputLeaf | None:
        """The output whose path ends in the keys of the leaf's path; None if that is ambiguous.

        `out[1][0]['k']` for `cache[0]['k']`. The shortest of several paths is chosen if the keys
        contain a name: `out[0]['w']`, not `out[1].mu['w']`, for `params['w']`.
        """
        keys = tuple(_KEY.findall(leaf.path))
        if not keys:
            return None
        if keys not in self._output_of:
            self._output_of[keys] = self._only_one(keys)
        return self._output_of[keys]

    def _only_one(self, keys: tuple[str, ...]) -> OutputLeaf | None:
        places = self._ending_in(len(keys)).get(keys, ())
        if all(key[1:-1].isdigit() for key in keys) and len(places) > 1:
            return None
        lengths = [len(self._keys[place]) for place in places]
        shortest = [place for place in places if len(self._keys[place]) == min(lengths)]
        return self._program.outputs[shortest[0]] if len(shortest) == 1 else None

    def _ending_in(self, length: int) -> Mapping[tuple[str, ...], list[int]]:
        """Positions of the outputs with more than `length` keys, by the last of them."""
        if length not in self._ending:
            ending = self._ending[length] = defaultdict(list)
            for place, keys in enumerate(self._keys):
                if len(keys) > length:
                    ending[keys[-length:]].append(place)
        return self._ending[length]


def _type(leaf: ArgumentLeaf | OutputLeaf) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


_LAST_CHARACTER = "\U0010ffff"


class LikelyOutputs:
    """Outputs of a kind, e.g. with a shape, by the common suffix of their path with another path.

    Likeness is the length of that suffix: `cache[0]['v']` is like `out[1][0]['v']`.

    Args:
      outputs: in the order of the program.
      kind: what distinguishes the outputs that are compared.
    """

    def __init__(self, outputs: Iterable[OutputLeaf], kind: Callable[[Any], Hashable]) -> None:
        self._kind = kind
        self._by_kind: dict[Hashable, list[OutputLeaf]] = defaultdict(list)
        for output in outputs:
            self._by_kind[kind(output)].append(output)
        self._paths: dict[Hashable, _Paths] = {}

    def like(self, leaf: Any) -> OutputLeaf | None:
        """The likest output of the kind of `leaf`, the first of several; None without one."""
        kind = self._kind(leaf)
        outputs = self._by_kind.get(kind)
        if outputs is None:
            return None
        if kind not in self._paths:
            self._paths[kind] = _Paths([output.path for output in outputs])
        return outputs[self._paths[kind].likest(leaf.path)]

    def count(self, leaf: Any) -> int:
        """The number of outputs of the kind of `leaf`."""
        return len(self._by_kind.get(self._kind(leaf), ()))


class _Paths:
    """Positions of paths, sorted by the reversed path: those with a common suffix are adjacent."""

    def __init__(self, paths: list[str]) -> None:
        ordered = sorted((path[::-1], position) for position, path in enumerate(paths))
        self._reversed = [path for path, _ in ordered]
        self._positions = [position for _, position in ordered]
        self._first_with: dict[str, int] = {}

    def likest(self, path: str) -> int:
        """The position of the path with the longest common suffix, the first of several."""
        path = path[::-1]
        place = bisect_left(self._reversed, path)
        neighbours = self._reversed[max(place - 1, 0) : place + 1]
        prefixes = (commonprefix((path, other)) for other in neighbours)  # noqa: RUF071 - of texts
        prefix = max(prefixes, key=len)
        # Each prefix is looked up once: linear in the characters of all paths.
        if prefix not in self._first_with:
            begin = bisect_left(self._reversed, prefix)
            end = bisect_right(self._reversed, prefix + _LAST_CHARACTER)
            self._first_with[prefix] = min(self._positions[begin:end])
        return self._first_with[prefix]
