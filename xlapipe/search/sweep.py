"""A workload with each combination of arguments: `--vary batch=1,8 --vary seq=2048,32768`."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from xlapipe.errors import XlapipeError
from xlapipe.registry import find_workload, literal
from xlapipe.search.candidate import Candidate


@dataclass(frozen=True)
class Axis:
    """An argument of the function that makes a workload, and its values."""

    name: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Parses the value of `--vary`; values are Python literals.

        >>> Axis.parse("size='0.6b','32b'")
        Axis(name='size', values=('0.6b', '32b'))

        Raises:
          XlapipeError: the text has another form, or holds a value twice.
        """
        name, equals, listed = text.partition("=")
        try:
            if not equals or not name.isidentifier():
                raise ValueError("no `name=` before values")
            if not listed.strip():
                raise ValueError(f"no values after `{name}=`")
            parsed = ast.parse(f"({listed},)", mode="eval").body
            values = tuple(map(literal, parsed.elts)) if isinstance(parsed, ast.Tuple) else ()
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else error
            raise XlapipeError(
                f"--vary {text!r}: expected a parameter's name and literals, e.g. batch=1,8,64 "
                f"or size='0.6b','32b': {why}"
            ) from None
        if any(value in values[:number] for number, value in enumerate(values)):
            raise XlapipeError(f"--vary {text!r}: holds a value twice; fix: remove one")
        return cls(name, values)

    def rank(self, value: Any) -> tuple[float, int]:
        """Sort key of a value: numbers by size, other values in the order given."""
        all_numbers = all(isinstance(value, (int, float)) for value in self.values)
        return (float(value) if all_numbers else 0.0, self.values.index(value))


def combinations(workload: str, axes: Sequence[Axis], target: str = "") -> tuple[Candidate, ...]:
    """All combinations of the axes' values; the last axis varies fastest.

    Raises:
      XlapipeError: an axis is given twice, or is also an argument of `workload`.
      WorkloadError: the workload is unknown.
    """
    reference = find_workload(workload)
    given = reference.arguments or {}
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise XlapipeError(f"--vary {name}: given twice; fix: list all its values once")
        if name in given:
            raise XlapipeError(
                f"--vary {name}: {workload} already gives {name}={given[name]!r}; fix: give it once"
            )
    values_of_axes = [axis.values for axis in axes]
    points = (dict(zip(names, values, strict=True)) for values in product(*values_of_axes))
    return tuple(
        Candidate(reference.with_arguments({**given, **point}), point, target) for point in points
    )
