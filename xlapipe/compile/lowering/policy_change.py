"""The policy of `jax.checkpoint` that `xlapipe choose` sends to the compiling child. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

GRADIENT, SCAN, CHECKPOINT, BLOCK = "gradient", "scan", "checkpoint", "block"
VMAP, MICROBATCHES, LOSS, LOOP = "vmap", "microbatches", "loss", "loop"
CAST = "cast"


@dataclass(frozen=True, kw_only=True)
class PolicyChange:
    """A step with a policy, and what the child records of it.

    Attributes:
      kind: where the policy is put, or which other form a call gets; None for the step as written.
      source: the code that is printed for the user; it defines `policy` and the decorators.
      lines: `file:line` of the calls or definitions; `file:line:column` of `VMAP`.
      decorators: name of the decorator in `source`, by the line of a function's definition.
      which: a condition on `number`, the number of the call of a block; others stay as they are.
      statements: of `LOOP`, what is in place of the loop, by the line of its header.
      record: file for the graph of the forward pass; None to record nothing.
      unchanged: digest of the program of the step as written, which is traced again and compared;
        empty to compare with the first trace, None to compare nothing.
      also: another change of the same step, which is applied first; None for none.
    """

    kind: str | None = None
    source: str = ""
    lines: tuple[str, ...] = ()
    decorators: Mapping[str, str] = field(default_factory=dict)
    which: str = "True"
    statements: Mapping[str, str] = field(default_factory=dict)
    record: str | None = None
    unchanged: str | None = None
    also: "PolicyChange | None" = None

    def to_json(self) -> dict[str, Any]:
        """An argument of `changed_workload`."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PolicyChange":
        """What `to_json` wrote, with this code."""
        return msgspec.convert(data, cls)
