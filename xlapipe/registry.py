"""Names of workloads, found without importing them.

A registered name is an entry point of the group `xlapipe.workloads`, of xlapipe's own models or
of any installed package. Everything else is `module:attribute`, looked up from the current folder.
Either may be followed by arguments for the function that makes the workload, as Python would have
them: `qwen3-decode(layers=28, batch=4)`.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from xlapipe.errors import WorkloadError

GROUP = "xlapipe.workloads"
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class WorkloadReference:
    """Where a workload is defined. As text: `module:attribute(layers=28)`.

    Attributes:
      name: as the user wrote it, for messages.
      target: `module:attribute`; the attribute is a Workload or a function that returns one.
      arguments: keyword arguments for that function, Python literals; None if the name has no
        brackets.
      folder: goes first on the path to import `module`; None for an installed module.

    Raises:
      WorkloadError: an argument is not a literal, and so cannot be passed to another process.
    """

    name: str
    target: str
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)
    folder: Path | None = None

    def __post_init__(self) -> None:
        for keyword, value in (self.arguments or {}).items():
            if not _is_literal(value):
                raise WorkloadError(
                    f"workload {self.name}: argument {keyword}={value!r} is not a Python literal; "
                    "expected finite numbers, strings, bytes, booleans, None, or tuples, lists, "
                    "sets and dicts of them"
                )

    def with_arguments(self, arguments: Mapping[str, Any]) -> "WorkloadReference":
        """The same function, called with `arguments` alone; they become part of the name."""
        base = self.name.partition("(")[0]
        name = f"{base}({_as_keywords(arguments)})" if arguments else base
        return replace(self, name=name, arguments=arguments or None)

    def to_json(self) -> dict[str, str | None]:
        """A form for other processes. Arguments are Python source: JSON has no tuple or bytes."""
        return {
            "name": self.name,
            "target": self.target,
            "arguments": None if self.arguments is None else repr(dict(self.arguments)),
            "folder": None if self.folder is None else str(self.folder),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, str | None]) -> "WorkloadReference":
        """The reference that `to_json` wrote."""
        arguments, folder = value["arguments"], value["folder"]
        return cls(
            name=str(value["name"]),
            target=str(value["target"]),
            arguments=None if arguments is None else ast.literal_eval(arguments),
            folder=None if folder is None else Path(folder),
        )

    def __str__(self) -> str:
        if self.arguments is None:
            return self.target
        return f"{self.target}({_as_keywords(self.arguments)})"


def registered_workloads() -> tuple[WorkloadReference, ...]:
    """Every registered workload, in order of name."""
    targets = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    return tuple(WorkloadReference(name, targets[name]) for name in sorted(targets))


def find_workload(name: str) -> WorkloadReference:
    """The reference of a registered name, or of `module:attribute`; arguments may follow.

    A module that is not a registered one is imported with the current folder first on the path.

    Raises:
      WorkloadError: neither; the nearest registered names are offered. Or the arguments are not
        keyword literals.
    """
    base, bracket, rest = name.partition("(")
    arguments = _parse_arguments(name, bracket + rest) if bracket else None
    registered = {reference.name: reference for reference in registered_workloads()}
    if base in registered:
        return replace(registered[base], name=name, arguments=arguments)
    if _TARGET.fullmatch(base):
        return WorkloadReference(name, base, arguments, Path.cwd())
    near = get_close_matches(base, registered, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`xlapipe list` lists them;"
    raise WorkloadError(
        f"unknown workload {name!r}: {hint} expected a registered name or `module:attribute`, "
        "optionally followed by arguments: `name(layers=28)`"
    )


def _parse_arguments(name: str, text: str) -> dict[str, Any]:
    """The values in `(layers=28, batch=4)`."""
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("not `keyword=value, …`")
        values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        if None in values or len(values) < len(call.keywords):
            raise ValueError("`**`, or a keyword twice")
        return {str(keyword): value for keyword, value in values.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise WorkloadError(
            f"workload {name!r}: arguments must be keyword literals, as in "
            f"`name(layers=28, config='folder')`: {error}"
        ) from None


def _as_keywords(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{keyword}={value!r}" for keyword, value in arguments.items())


def _is_literal(value: Any) -> bool:
    """Whether Python source can hold the value; infinity and paths, for example, it cannot."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
