"""The output that most likely is the updated value of an argument: the one with the likest path."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from os.path import commonprefix
from typing import Any

from xlapipe.plans.program import OutputLeaf

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
