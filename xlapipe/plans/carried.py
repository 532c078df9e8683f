"""Which outputs of a step are passed to its next call, and in place of which arguments.

An argument comes back in the part of the outputs with its paths: `state['w']` in `out[0]['w']`. A
single array comes back if it is donated, if an output has its name, or if nothing else decides its
new value. An output of another rank does not come back.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from xlapipe.plans.program import PATH_KEY, path_keys

_NUMBERS = re.compile(r"(?:\[\d+\])*")
_LAST_NAME = re.compile(r"(\w+)\W*$")


class Leaf(Protocol):
    """What is known of a leaf of the arguments or of the outputs."""

    @property
    def path(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


_Leaf = TypeVar("_Leaf", bound=Leaf)


@dataclass(frozen=True)
class Argument:
    """One argument of the step, with its leaves by the rest of their path."""

    name: str
    leaves: Mapping[str, Leaf]
    donated: bool

    @property
    def is_array(self) -> bool:
        return list(self.leaves) == [""]


def carried(
    arguments: Sequence[Argument],
    outputs: Sequence[Leaf],
    stated: Mapping[str, str | None],
    is_new_value: Callable[[str, str], bool] = lambda argument, output: False,
) -> dict[str, str]:
    """The part of the outputs, such as `out[0]`, that replaces each argument that comes back.

    Args:
      arguments: in the order of the call, without static ones.
      stated: what the author states, by path; None for an argument that does not come back.
      is_new_value: whether an output depends on this argument and on no other.
    """
    matching = _Matching(outputs)
    matching.found |= {path: output for path, output in stated.items() if output is not None}
    order = sorted(
        (item for item in arguments if not any(_overlap(item.name, path) for path in stated)),
        key=lambda argument: (not argument.donated, -len(argument.leaves)),
    )
    # Trees whose leaves keep their types decide first, so that gradients are not mistaken for a
    # state of other types; and large trees, since an optimizer's state holds trees of parameters.
    for fits in (matching.same_types, matching.same_paths, matching.same_array):
        for argument in order:
            if argument.name not in matching.found:
                matching.take(argument, fits(argument))
    if matching.found:
        for place, argument in enumerate(arguments):
            output = f"out[{place}]"
            if (
                argument in order
                and argument.is_array
                and argument.name not in matching.found
                and is_new_value(argument.name, output)
            ):
                matching.take(argument, [output])
    return matching.found


def leaves_below(prefix: str, leaves: Sequence[_Leaf]) -> dict[str, _Leaf]:
    """The leaves at a path and below it, by the rest of their path."""
    return {
        leaf.path[len(prefix) :]: leaf
        for leaf in leaves
        if leaf.path == prefix or leaf.path.startswith((f"{prefix}[", f"{prefix}."))
    }


class _Matching:
    def __init__(self, outputs: Sequence[Leaf]) -> None:
        self.found: dict[str, str] = {}
        self._parts: dict[str, dict[str, Leaf]] = {}
        for leaf in outputs:
            for prefix in _prefixes(leaf.path):
                self._parts.setdefault(prefix, {})[leaf.path[len(prefix) :]] = leaf

    def take(self, argument: Argument, parts: Sequence[str]) -> None:
        """Gives the argument the first of the parts, unless an argument has some of it."""
        for part in parts:
            if part in self._parts and not any(
                _overlap(part, known) for known in self.found.values()
            ):
                self.found[argument.name] = part
                return

    def same_types(self, argument: Argument) -> list[str]:
        """Parts whose leaves have the paths, shapes and dtypes of the argument's."""
        return self._trees(
            argument, lambda one, two: one.shape == two.shape and one.dtype == two.dtype
        )

    def same_paths(self, argument: Argument) -> list[str]:
        """Parts that have most of their paths in common with the argument."""
        if argument.is_array:
            return []
        if all(_NUMBERS.fullmatch(rest) for rest in argument.leaves) and not argument.donated:
            # Other values are numbered, too.
            return self._trees(argument, lambda one, two: one.shape == two.shape)
        common = {
            part: sum(
                rest in leaves and len(leaves[rest].shape) == len(leaf.shape)
                for rest, leaf in argument.leaves.items()
            )
            / len(leaves.keys() | argument.leaves.keys())
            for part, leaves in self._parts.items()
        }
        likely = [part for part, share in common.items() if share >= 0.5]
        return sorted(likely, key=lambda part: (-common[part], not _named(part, argument)))

    def same_array(self, argument: Argument) -> list[str]:
        """Single outputs for an argument that is one array."""
        if not argument.is_array:
            return []
        leaf = argument.leaves[""]
        single = [
            part
            for part, leaves in self._parts.items()
            if list(leaves) == [""] and len(leaves[""].shape) == len(leaf.shape)
        ]
        named = [part for part in single if _named(part, argument)]
        if not argument.donated:
            return named
        alike = [part for part in single if self._parts[part][""].shape == leaf.shape]
        same = [part for part in alike if self._parts[part][""].dtype == leaf.dtype]
        return [*named, *same, *alike]

    def _trees(self, argument: Argument, alike: Callable[[Leaf, Leaf], bool]) -> list[str]:
        if argument.is_array:
            return []
        parts = [
            part
            for part, leaves in self._parts.items()
            if leaves.keys() == argument.leaves.keys()
            and all(alike(leaf, leaves[rest]) for rest, leaf in argument.leaves.items())
        ]
        return sorted(parts, key=lambda part: (len(path_keys(part)), not _named(part, argument)))


def _prefixes(path: str) -> Iterator[str]:
    end = 0
    for key in PATH_KEY.findall(path):
        end += len(key)
        yield path[:end]


def _named(part: str, argument: Argument) -> bool:
    """Whether the last key of an output's path is the name of the argument."""
    last = _LAST_NAME.search(part)
    return (last is not None and last[1] == argument.name) or part == f"updated.{argument.name}"


def _overlap(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long == short or long.startswith((f"{short}[", f"{short}."))
