"""Workloads over a grid of arguments: `--vary batch=1,8 --vary seq=2048,32768`."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from xlapipe.errors import XlapipeError
from xlapipe.registry import WorkloadReference, find_workload

# A slip in a list should not compile for days.
MOST_COMBINATIONS = 1000


@dataclass(frozen=True)
class Axis:
    """An argument of the function that makes a workload, and the values it is to take."""

    name: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """An axis as the command line has it; values are literals.

        >>> Axis.parse("size='0.6b','32b'")
        Axis(name='size', values=('0.6b', '32b'))

        Raises:
          XlapipeError: text of another form, or a value twice.
        """
        name, equals, listed = text.partition("=")
        try:
            if not equals or not name.isidentifier() or not listed.strip():
                raise ValueError("no `name=value`")
            values = ast.literal_eval(f"({listed},)")
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise XlapipeError(
                f"--vary {text!r}: expected a parameter's name and literals, as in batch=1,8,64 "
                f"or size='0.6b','32b': {error}"
            ) from None
        if any(value in values[:number] for number, value in enumerate(values)):
            raise XlapipeError(f"--vary {text!r}: names a value twice")
        return cls(name, values)

    def rank(self, value: Any) -> tuple[float, int]:
        """What orders the values: numbers by size, anything else as listed."""
        numbers = all(isinstance(each, (int, float)) for each in self.values)
        return (float(value) if numbers else 0.0, self.values.index(value))


@dataclass(frozen=True)
class Combination:
    """One point of the grid.

    Attributes:
      values: of each axis, in the order of the axes.
      reference: the workload with these among its arguments.
    """

    values: Mapping[str, Any]
    reference: WorkloadReference

    def is_at(self, point: Mapping[str, Any]) -> bool:
        """Whether the axes that `point` names have its values here."""
        return all(self.values[name] == value for name, value in point.items())

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.values.items())


def combinations(workload: str, axes: Sequence[Axis]) -> tuple[Combination, ...]:
    """Every combination of the axes' values, the last axis fastest.

    Args:
      workload: as users write it; it may have arguments already.

    Raises:
      XlapipeError: an axis given twice, or as an argument too; or too many combinations.
      WorkloadError: an unknown workload.
    """
    reference = find_workload(workload)
    given = reference.arguments or {}
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise XlapipeError(f"--vary {name}: given twice; list all its values once")
        if name in given:
            raise XlapipeError(
                f"--vary {name}: {workload} gives {name}={given[name]!r} already; give it once"
            )
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST_COMBINATIONS:
        raise XlapipeError(
            f"--vary: {count:,} combinations; at most {MOST_COMBINATIONS:,} are compiled at once"
        )
    points = (
        dict(zip(names, values, strict=True)) for values in product(*(a.values for a in axes))
    )
    return tuple(
        Combination(point, reference.with_arguments({**given, **point})) for point in points
    )
