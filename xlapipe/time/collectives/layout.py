"""A collective's groups laid over a network: who is in a domain, and what crosses its border."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xlapipe.devices.targets.network import Network
from xlapipe.devices.targets.topology import Topology
from xlapipe.plans.collectives import Collective

Domain = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """The group of a collective that takes longest.

    Attributes:
      gpus: of the group.
      domains: that its GPUs are in.
      inside: most of its GPUs in one domain.
      nic_rate: bytes per second that it can send out of a domain; None if it is in one domain.
      at_once: groups that send out of that domain at the same time.
    """

    gpus: int
    domains: int
    inside: int
    nic_rate: float | None
    at_once: int


def layout_of(collective: Collective, topology: str | None, network: Network) -> GroupLayout | None:
    """The groups of a collective over a network."""
    hosts = Topology.parse(topology) if topology is not None else None
    groups: Sequence[Sequence[int]] = collective.replica_groups
    pairs = [pair for pair in collective.source_target_pairs if pair[0] != pair[1]]
    if collective.source_target_pairs:
        groups = pairs
    elif not groups and hosts is not None:
        groups = [range(hosts.device_count)]
    if not groups:
        return None
    gpus = hosts.gpus if hosts is not None else None
    members = [
        Counter(network.domain_of(device, gpus) for device in group) for group in groups if group
    ]
    # A pair sends from its first device alone.
    senders = [Counter(list(member)[:1]) for member in members] if pairs else members
    layouts = _over_domains(members, senders, network)
    return max(layouts, key=lambda item: (item.domains, item.gpus, -(item.nic_rate or 0.0)))


def _over_domains(
    members: Sequence[Mapping[Domain, int]],
    senders: Sequence[Mapping[Domain, int]],
    network: Network,
) -> list[GroupLayout]:
    """A layout for each group, given how many of its devices each domain has."""
    sending: Counter[Domain] = Counter()
    at_once: Counter[Domain] = Counter()
    for inside, sent in zip(members, senders, strict=True):
        if len(inside) > 1:
            sending.update(sent)
            at_once.update(sent.keys())
    layouts = []
    for inside, sent in zip(members, senders, strict=True):
        gpus, rate, beside = sum(inside.values()), None, 1
        if len(inside) > 1:
            rate, beside = min(
                (_rate(count, sending[domain], network), at_once[domain])
                for domain, count in sent.items()
            )
        layouts.append(GroupLayout(gpus, len(inside), max(inside.values()), rate, beside))
    return layouts


def _rate(count: int, sending: int, network: Network) -> float:
    """Bytes per second out of a domain for a group with `count` of the `sending` GPUs there."""
    alone = count * max(1.0, network.nics_per_gpu) * network.nic_bytes_per_second
    whole = max(network.gpus_per_domain, sending) * network.nic_bytes_per_gpu
    return min(alone, whole * count / sending)


def leaving_bytes(kind: str, size_bytes: int, layout: GroupLayout) -> float:
    """Bytes that the group sends out of a domain.

    A ring crosses the border once, so that all that a GPU sends to the next one crosses it. Of an
    all-to-all, each GPU sends a part to every GPU of the other domains.
    """
    if layout.domains == 1:
        return 0.0
    if kind == "all-to-all":
        return layout.inside * size_bytes * (layout.gpus - layout.inside) / layout.gpus
    return sent_bytes(kind, size_bytes, layout.gpus)


def sent_bytes(kind: str, size_bytes: int, gpus: int) -> float:
    """Bytes that each of a number of GPUs sends, as in `xlapipe.plans.collective_bytes`."""
    if kind in ("collective-permute", "collective-broadcast"):
        return float(size_bytes)
    share = size_bytes * (gpus - 1) / gpus
    return 2 * share if kind == "all-reduce" else share


def size_of(collective: Collective) -> int | None:
    """Bytes of the whole array: an all-gather's result, of other kinds the operand."""
    if collective.kind == "ragged-all-to-all":
        return None
    if collective.kind == "all-gather":
        return collective.output_bytes
    return collective.operand_bytes


def least_seconds(collective: Collective, topology: str | None, network: Network) -> float:
    """The least that the NICs between domains need; 0 within a domain, and if bytes are unknown."""
    size, layout = size_of(collective), layout_of(collective, topology, network)
    if size is None or layout is None or layout.nic_rate is None:
        return 0.0
    # A switch that adds up halves what a GPU sends.
    share = 0.5 if collective.kind == "all-reduce" else 1.0
    if collective.kind in ("all-gather", "all-reduce", "reduce-scatter"):
        # Each domain lacks what the others have, and may get it once.
        share *= min(1.0, (1 - 1 / layout.domains) / (1 - 1 / layout.gpus))
    return share * leaving_bytes(collective.kind, size, layout) / layout.nic_rate


def spans_hosts(collective: Collective, topology: str | None) -> bool | None:
    """Whether a group of a collective has GPUs of several hosts; None without a topology."""
    if topology is None:
        return None
    parsed = Topology.parse(topology)
    across = collective.crosses_hosts(parsed.gpus)
    return parsed.hosts > 1 if across is None else across
