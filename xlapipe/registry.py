"""Names of workloads, found without importing them.

A project registers its workloads in its `pyproject.toml`, without being installed:

    [tool.xlapipe.workloads]
    my-step = "steps.decode:workload"

The file is the nearest one, in the current folder or above it, that has this table; see
`xlapipe.project_file`. Modules are imported with the folder of that file first on the path. An
installed package registers its workloads as entry points of the group `xlapipe.workloads`. If both
have a name, the project's is used: it is the one that the user is editing.

A name that is not registered is `module:attribute`, imported with the current folder first on the
path. Either may be followed by keyword arguments for the function that makes the workload:
`my-step(layers=28, batch=4)`.
"""

import ast
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from xlapipe.errors import WorkloadError
from xlapipe.project_file import TABLE, stated

GROUP = "xlapipe.workloads"
_TABLE = (*TABLE, "workloads")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
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
    """Every workload of the current folder's project and of installed packages, by name."""
    installed = {
        entry.name: WorkloadReference(entry.name, entry.value)
        for entry in entry_points(group=GROUP)
    }
    references = {**installed, **_project_workloads(Path.cwd())}
    return tuple(references[name] for name in sorted(references))


def find_workload(name: str) -> WorkloadReference:
    """The reference of a name: registered, or `module:attribute`. Errors have the nearest."""
    base, bracket, rest = name.partition("(")
    arguments = _parse_arguments(name, bracket + rest) if bracket else None
    if _TARGET.fullmatch(base):
        module, _, attribute = base.partition(":")
        if module.endswith(".py"):
            raise WorkloadError(
                f"{name}: {module} is a file, expected the name of a module; fix: "
                f"{module.removesuffix('.py')}:{attribute}"
            )
        return WorkloadReference(name, base, arguments, Path.cwd())
    if base.endswith(".py"):
        refuse_module_file(name)
    registered = {reference.name: reference for reference in registered_workloads()}
    if base in registered:
        return replace(registered[base], name=name, arguments=arguments)
    near = get_close_matches(base, registered, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`xlapipe list` lists them;"
    raise WorkloadError(
        f"unknown workload {name!r}: {hint} expected a registered name or `module:attribute`, "
        "optionally followed by arguments: `name(layers=28)`"
    )


def refuse_module_file(name: str) -> None:
    """Refuses a Python file where a workload or a dump is expected; returns if there is no file."""
    path = Path(name.partition("(")[0])
    if os.path.isfile(path):
        module = ".".join(path.with_suffix("").parts) if not path.is_absolute() else path.stem
        raise WorkloadError(
            f"{path}: is a Python file, expected the name of a workload in it, or a dump; fix: "
            f"{module}:NAME, where NAME is that of a Workload in it; what reads dumps takes the "
            f"folder that `xlapipe dump {module}:NAME` prints"
        )


def refuse_workload(name: str) -> None:
    """Refuses the name of a workload where a dump is expected; returns for another name."""
    base = name.partition("(")[0]
    if _TARGET.fullmatch(base) or any(base == item.name for item in registered_workloads()):
        raise WorkloadError(
            f"{name}: expected a dump, found the name of a workload; fix: give the folder that "
            f"`xlapipe dump {shlex.quote(name)}` prints"
        )


def is_of_project(name: str) -> bool:
    """Whether the current folder has the module of a name, or its project registers the name.

    A name in a file of another person may be that of any function, such as one of Python's own.
    """
    base = name.partition("(")[0]
    try:
        if not _TARGET.fullmatch(base):
            return base in _project_workloads(Path.cwd())
        find_workload(name)
    except WorkloadError:
        return False
    path = Path.cwd().joinpath(*base.partition(":")[0].split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _project_workloads(start: Path) -> dict[str, WorkloadReference]:
    """The workloads of the nearest table, at `start` or above it; empty if there is no table."""
    file, table = stated(start, "workloads") or (start, {})
    if not isinstance(table, dict):
        raise WorkloadError(f"{file}: {'.'.join(_TABLE)}: expected a table, found {table!r}")
    return {name: _reference(file, name, target) for name, target in table.items()}


def _reference(file: Path, name: str, target: Any) -> WorkloadReference:
    where = f"{file}: {'.'.join(_TABLE)}: {name!r}"
    if not _NAME.fullmatch(name):
        raise WorkloadError(f"{where}: a name consists of letters, digits, '.', '_' and '-'")
    if isinstance(target, dict):
        raise WorkloadError(
            f"{where}: expected 'module:attribute', found a table; "
            "fix: put a name that has dots in quotes"
        )
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise WorkloadError(f"{where}: expected 'module:attribute', found {target!r}")
    return WorkloadReference(name, target, folder=file.parent)


def _parse_arguments(name: str, text: str) -> dict[str, Any]:
    """The values in `(layers=28, batch=4)`."""
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("not `keyword=value, …`")
        values = {keyword.arg: literal(keyword.value) for keyword in call.keywords}
        if None in values or len(values) < len(call.keywords):
            raise ValueError("`**`, or a keyword twice")
        return {str(keyword): value for keyword, value in values.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise WorkloadError(
            f"workload {name!r}: arguments must be keyword literals, as in "
            f"`name(layers=28, config='folder')`: {why}"
        ) from None


def literal(node: ast.expr) -> Any:
    """The value of a literal; a ValueError with the text of any other node."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(node)} is not a literal; fix: put a string in quotes"
        ) from None


def _as_keywords(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{keyword}={value!r}" for keyword, value in arguments.items())


def _is_literal(value: Any) -> bool:
    """Whether Python source can hold the value; infinity and paths, for example, it cannot."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
