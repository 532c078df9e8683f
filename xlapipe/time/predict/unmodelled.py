"""Collectives without a known time: between hosts, or among an untimed number of GPUs."""

from collections import Counter
from collections.abc import Mapping

from xlapipe.devices.targets.topology import Topology
from xlapipe.plans.collectives import Collective
from xlapipe.plans.plan import Plan
from xlapipe.plans.wording import counted
from xlapipe.time.cost.hosts import spans_hosts
from xlapipe.time.predict.calibration import Calibration


def unmodelled(plan: Plan, calibration: Calibration) -> Mapping[str, str]:
    """Why the calibration has no time for a collective, by instruction."""
    reasons = {
        collective.instruction: _reason(collective, plan.topology, calibration)
        for collective in plan.collectives or ()
    }
    return {name: reason for name, reason in reasons.items() if reason}


def sentences(plan: Plan, reasons: Mapping[str, str]) -> list[str]:
    """The same as text for users: one sentence for all collectives with the same reason."""
    kinds: dict[str, Counter[str]] = {}
    for collective in plan.collectives or ():
        if (reason := reasons.get(collective.instruction)) is not None:
            kinds.setdefault(reason, Counter())[collective.kind] += 1
    return [
        f"{', '.join(counted(count, kind, f'{kind}s') for kind, count in counts.items())} {reason}"
        for reason, counts in kinds.items()
    ]


def _reason(collective: Collective, topology: str | None, calibration: Calibration) -> str:
    across = spans_hosts(collective, topology)
    if across:
        return (
            f"between hosts ({topology}), whose network is unknown: the least that memory needs is "
            "counted, and nothing for the network"
        )
    least = "the least that the links within a host need is counted"
    if across is None:
        return f"among GPUs of which the dump does not state the hosts: {least}"
    devices, timed = _devices(collective, topology), calibration.collective_gpus
    if devices == timed and calibration.times_collectives:
        return ""
    text = f"among {devices} {calibration.device}: " if devices else "among some GPUs: "
    if not calibration.times_collectives:
        return f"{text}on this GPU none was timed, and {least}"
    return f"{text}they were timed among {timed}, and {least}"


def _devices(collective: Collective, topology: str | None) -> int | None:
    """GPUs that exchange data with each other; None for groups of different sizes."""
    if collective.source_target_pairs:
        return len({device for pair in collective.source_target_pairs for device in pair})
    if collective.replica_groups:
        return collective.group_size
    return Topology.parse(topology).device_count if topology is not None else None
