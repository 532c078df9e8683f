"""The output that most likely is the updated value of an argument: the one with the likest path."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from xlapipe.plans.program import OutputLeaf, path_keys


class LikelyOutputs:
    """Outputs of a kind, e.g. with a shape, by the keys at the end of their paths.

    Likeness is the number of equal keys at the end: `cache[0]['v']` is like `out[1][0]['v']`.

    Args:
      outputs: in the order of the program.
      kind: what distinguishes the outputs that are compared.
    """

    def __init__(self, outputs: Iterable[OutputLeaf], kind: Callable[[Any], Hashable]) -> None:
        self._kind = kind
        self._ending: dict[Hashable, list[OutputLeaf]] = defaultdict(list)
        for output in outputs:
            keys = path_keys(output.path)
            for start in range(len(keys) + 1):
                self._ending[kind(output), keys[start:]].append(output)

    def like(self, leaf: Any) -> OutputLeaf | None:
        """The likest output of the kind of `leaf`, the first of several; None without one."""
        keys = path_keys(leaf.path)
        ends = ((self._kind(leaf), keys[start:]) for start in range(len(keys) + 1))
        return next((self._ending[end][0] for end in ends if end in self._ending), None)

    def count(self, leaf: Any) -> int:
        """The number of outputs of the kind of `leaf`."""
        return len(self._ending.get((self._kind(leaf), ()), ()))
