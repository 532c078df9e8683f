"""A form of a step that can be compiled: arguments, a target, and changes to the step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xlapipe.compile.job import XlaOption


@dataclass(frozen=True, eq=False)
class Change:
    """A change to the step that is expressed as code.

    Attributes:
      text: what it does, on one line.
      code: what to write; the step compiles with it to the plan of its row.
      rematerialise: an argument of `changed_workload`; None if the step's Python stays as it is.
      options: extra XLA options.
    """

    text: str
    code: str
    rematerialise: Mapping[str, Any] | None = None
    options: Mapping[str, XlaOption] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """One compile.

    Attributes:
      arguments: values of `--vary`, by name.
      target: a name of `xlapipe targets`.
      change: None for the step as it is written.
    """

    arguments: Mapping[str, Any]
    target: str
    change: Change | None = None

    def __str__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self.arguments.items()]
        return ", ".join([*values, self.change.text if self.change is not None else "as written"])
