"""Names of workloads, found without importing them.

A registered name is an entry point of the group `xlapipe.workloads`, of xlapipe's own models or
of any installed package. Everything else is `module:attribute`, looked up from the current folder.
Either may be followed by arguments for the function that makes the workload, as Python would have
them: `qwen3-decode(layers=28, batch=4)`.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from xlapipe.errors import WorkloadError

GROUP = "xlapipe.workloads"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class WorkloadReference:
    """Where a workload is defined.

    Attributes:
      name: as the user wrote it.
      target: `module:attribute`, with the arguments behind it if there are any; the attribute is a
        Workload or a function that returns one.
      registered: False if `module` may be a file of the current folder.
    """

    name: str
    target: str
    registered: bool


def registered_workloads() -> tuple[WorkloadReference, ...]:
    """Every registered workload, in order of name."""
    found = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    return tuple(WorkloadReference(name, found[name], True) for name in sorted(found))


def find_workload(name: str) -> WorkloadReference:
    """The reference of a registered name, or of `module:attribute`; arguments may follow.

    Raises:
      WorkloadError: neither; the nearest registered names are offered. Or arguments that are no
        literals by keyword.
    """
    base, arguments = _split(name)
    workload_arguments(name)
    registered = {reference.name: reference for reference in registered_workloads()}
    if base in registered:
        return WorkloadReference(name, registered[base].target + arguments, True)
    if _REFERENCE.fullmatch(base):
        return WorkloadReference(name, name, False)
    near = get_close_matches(base, registered, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`xlapipe list` lists them;"
    raise WorkloadError(
        f"unknown workload {name!r}: {hint} expected a registered name or `module:attribute`, "
        "and behind it, if anything, arguments: `name(layers=28)`"
    )


def workload_arguments(reference: str) -> Mapping[str, Any] | None:
    """The keyword arguments of a reference, which are literals; None where there are none to give.

    >>> workload_arguments("qwen3-decode(layers=28)"), workload_arguments("qwen3-decode")
    ({'layers': 28}, None)

    Raises:
      WorkloadError: anything else between the brackets.
    """
    _, text = _split(reference)
    if not text:
        return None
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("not `keyword=value, …`")
        given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
        if None in given or len(given) < len(call.keywords):
            raise ValueError("`**`, or a keyword twice")
        return {str(name): value for name, value in given.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise WorkloadError(
            f"workload {reference!r}: its arguments are no literals by keyword, as in "
            f"`name(layers=28, config='folder')`: {error}"
        ) from None


def _split(reference: str) -> tuple[str, str]:
    """What names the workload, and its arguments with their brackets."""
    base, bracket, rest = reference.partition("(")
    return base, bracket + rest
