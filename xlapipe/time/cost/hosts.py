"""Whether a collective is between hosts."""

from xlapipe.devices.targets.topology import Topology
from xlapipe.plans.collectives import Collective


def spans_hosts(collective: Collective, topology: str | None) -> bool | None:
    """Whether a group of a collective has GPUs of several hosts; None without a topology.

    Args:
      topology: hosts and GPUs of each, `8x8`.
    """
    if topology is None:
        return None
    parsed = Topology.parse(topology)
    across = collective.crosses_hosts(parsed.gpus)
    return parsed.hosts > 1 if across is None else across
