"""References to workloads with a change, which the compiling child makes."""

from typing import Any

from xlapipe.registry import WorkloadReference

_CHANGED = "xlapipe.compile.lowering.changed_workload:changed_workload"


def changed_reference(reference: WorkloadReference, **change: Any) -> WorkloadReference:
    """The workload of a reference with a change: arguments of `changed_workload`."""
    return WorkloadReference(
        name=reference.name,
        target=_CHANGED,
        arguments={"reference": reference.to_json(), **change},
    )
