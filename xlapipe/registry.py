"""Names of workloads, found without importing them.

A registered name is an entry point of the group `xlapipe.workloads`, of xlapipe's own models or
of any installed package. Everything else is `module:attribute`, looked up from the current folder.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points

from xlapipe.errors import WorkloadError

GROUP = "xlapipe.workloads"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class WorkloadReference:
    """Where a workload is defined.

    Attributes:
      name: as the user wrote it.
      target: `module:attribute`; the attribute is a Workload or a function that returns one.
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
    """The reference of a registered name, or of `module:attribute`.

    Raises:
      WorkloadError: neither; the nearest registered names are offered.
    """
    registered = {reference.name: reference for reference in registered_workloads()}
    if name in registered:
        return registered[name]
    if _REFERENCE.fullmatch(name):
        return WorkloadReference(name, name, False)
    near = get_close_matches(name, registered, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`xlapipe list` lists them;"
    raise WorkloadError(
        f"unknown workload {name!r}: {hint} expected a registered name or `module:attribute`"
    )
