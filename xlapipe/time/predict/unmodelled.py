"""Collectives that the calibration has no time of: from tables and datasheets, or bounds alone."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from xlapipe.devices.targets.device import Device
from xlapipe.devices.targets.network import Network, usual_network
from xlapipe.plans import Collective, Plan
from xlapipe.plans.wording import counted
from xlapipe.time.collectives.exchange import Exchange, exchange_of
from xlapipe.time.collectives.layout import layout_of
from xlapipe.time.predict.calibration import Calibration

_ONE_HOST = Network(gpus_per_domain=8, nic_bytes_per_second=1e6)


@dataclass(frozen=True)
class Exchanges:
    """The collectives of a plan over a network, by instruction.

    Attributes:
      network: in words, for screens; empty for a plan without collectives.
      times: of those that no calibration has.
      unknown: why others have no time.
    """

    network: str
    times: Mapping[str, Exchange]
    unknown: Mapping[str, str]

    @property
    def assumed(self) -> Mapping[str, str]:
        """What the times rest on, in words."""
        return {name: time.assumption for name, time in self.times.items() if time.assumption}


def exchanges_of(
    plan: Plan, device: Device | None, network: Network | None, calibration: Calibration
) -> Exchanges:
    collectives = plan.collectives or ()
    if not collectives or device is None:
        return Exchanges("", {}, {item.instruction: _NO_DEVICE for item in collectives})
    network = network or usual_network(device.row)
    times: dict[str, Exchange] = {}
    unknown: dict[str, str] = {}
    for item in collectives:
        if _is_timed(item, plan.topology, network, calibration):
            continue
        reason = _reason(item, plan.topology, device, network)
        time = exchange_of(item, plan.topology, device, network or _ONE_HOST)
        if reason or time is None:
            unknown[item.instruction] = reason or _BYTES
        else:
            times[item.instruction] = time
    text = network.text(device.link_bandwidth) if network is not None else _NOT_KNOWN
    return Exchanges(text, times, unknown)


_NO_DEVICE = "on a GPU whose links are unknown: the least that memory needs is counted"
_BYTES = (
    "of which the bytes depend on data, or the groups are unknown: the least that memory needs is "
    "counted"
)
_NOT_KNOWN = "not stated; --network names one"


def sentences(plan: Plan, reasons: Mapping[str, str]) -> list[str]:
    """Reasons by instruction as text for users: one sentence for all collectives with the same."""
    kinds: dict[str, Counter[str]] = {}
    for collective in plan.collectives or ():
        if (reason := reasons.get(collective.instruction)) is not None:
            kinds.setdefault(reason, Counter())[collective.kind] += 1
    return [
        f"{', '.join(counted(count, kind, f'{kind}s') for kind, count in counts.items())} {reason}"
        for reason, counts in kinds.items()
    ]


def _is_timed(
    collective: Collective,
    topology: str | None,
    network: Network | None,
    calibration: Calibration,
) -> bool:
    """Whether the calibration has collectives among this number of such GPUs of one host."""
    if network is not None and network.link_bytes_per_second and not network.assumed:
        return False
    layout = layout_of(collective, topology, network or _ONE_HOST)
    if (
        topology is None
        or layout is None
        or layout.domains > 1
        or not calibration.times_collectives
    ):
        return False
    devices = layout.gpus
    if collective.source_target_pairs:
        devices = len({device for pair in collective.source_target_pairs for device in pair})
    return devices == calibration.collective_gpus


def _reason(
    collective: Collective, topology: str | None, device: Device, network: Network | None
) -> str:
    """Why a collective has no time; empty if it has one."""
    stated = network is not None and not network.assumed
    if topology is None and not stated:
        return (
            "among GPUs of which the dump does not state the hosts: the least that the links "
            "within a host need is counted; fix: --network states hosts and links"
        )
    layout = layout_of(collective, topology, network or _ONE_HOST)
    if network is None and layout is not None and layout.domains > 1:
        return (
            f"between hosts ({topology}), whose network is unknown: the least that memory needs is "
            "counted, and nothing for the network; fix: --network names it"
        )
    if not (device.link_bandwidth or (network is not None and network.link_bytes_per_second)):
        return (
            f"among {device.name}, whose links are unknown: the least that memory needs is "
            "counted; fix: --network states them"
        )
    return ""
