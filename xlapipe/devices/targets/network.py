"""The network between GPUs: the domains that NVLink or PCIe connects, and the NICs between them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from xlapipe.errors import NetworkError
from xlapipe.files.typed_data import Line, MisfitError, typed
from xlapipe.project_file import TABLE, nearest, stated

_KEY = "network"
_Gpus: TypeAlias = Annotated[int, Meta(ge=1, le=65_536)]
_Rate: TypeAlias = Annotated[float, Meta(ge=1e6, le=1e14)]
_OWN = "{gpus_per_domain = 8, nic_bytes_per_second = 50e9}"


@dataclass(frozen=True, slots=True)
class Network:
    """What connects GPUs. Rates are bytes per second in one direction.

    Attributes:
      gpus_per_domain: GPUs that NVLink or PCIe connects, in one host or in several.
      nic_bytes_per_second: of one NIC.
      nics_per_gpu: NICs of a domain for each of its GPUs; below 1, GPUs share them.
      gpus_per_host: GPUs of a whole host; None if a domain is one host.
      latency_seconds: of one hop between domains.
      link_bytes_per_second: of one GPU within its domain; None for that of the GPU's own links.
      usual_of: rows of the GPU catalogue that are mostly rented with it.
      name: of a named network; empty for one that the user describes.
      assumed: whether it is the usual one of a GPU, not one that the user stated.
    """

    gpus_per_domain: _Gpus
    nic_bytes_per_second: _Rate
    nics_per_gpu: Annotated[float, Meta(ge=0.001, le=64)] = 1.0
    gpus_per_host: _Gpus | None = None
    latency_seconds: Annotated[float, Meta(ge=0, le=0.1)] = 5e-6
    link_bytes_per_second: _Rate | None = None
    description: Line = ""
    usual_of: tuple[str, ...] = field(default=(), compare=False)
    name: str = ""
    assumed: bool = False

    @property
    def nic_bytes_per_gpu(self) -> float:
        """Bytes per second between domains for each GPU, if all of a domain send at once."""
        return self.nics_per_gpu * self.nic_bytes_per_second

    def domain_of(self, device: int, gpus_per_host: int | None) -> tuple[int, int]:
        """The domain of a device id.

        Args:
          gpus_per_host: GPUs of a host that the step uses; None if unknown.
        """
        used = gpus_per_host or self.gpus_per_host or self.gpus_per_domain
        whole = self.gpus_per_host or self.gpus_per_domain
        hosts = max(1, self.gpus_per_domain // max(used, whole))
        host, local = divmod(device, used)
        return host // hosts, local // self.gpus_per_domain

    def text(self, link_bytes_per_second: float | None) -> str:
        """One line for screens.

        Args:
          link_bytes_per_second: of the GPU's own links; None if unknown.
        """
        link = self.link_bytes_per_second or link_bytes_per_second
        within = f" at {link / 1e9:,.0f} GB/s each" if link else ""
        text = f"{self.name or 'as stated'}: {self.gpus_per_domain} GPUs per domain{within}, "
        text += f"{self.nic_bytes_per_gpu / 1e9:,.4g} GB/s of NICs per GPU between domains"
        return text + " (assumed; --network states another)" * self.assumed


def network_named(name: str) -> Network:
    """A named network, or one that TOML describes: `{gpus_per_domain = 8, …}`.

    Raises:
      NetworkError: there is no such network, or a field is not what it must be.
    """
    if name.lstrip().startswith("{"):
        return _described(name)
    known = networks()
    if name not in known:
        raise NetworkError(
            f"unknown network {name!r}: expected one of {', '.join(known)}; fix: use one of these, "
            f"or describe your own: {_OWN}"
        )
    return known[name]


@cache
def networks() -> Mapping[str, Network]:
    text = (files("xlapipe.devices.targets") / "networks.toml").read_text(encoding="utf-8")
    return {
        name: replace(_network_from(table, where=f"networks.toml, {name}"), name=name)
        for name, table in tomllib.loads(text).items()
    }


def network_stated(start: Path) -> Network | None:
    """The network that the command states, else that of the nearest `pyproject.toml`, if any.

    Args:
      start: the folder whose project file, or one above it, may state one.

    Raises:
      NetworkError: it is not a network.
      WorkloadError: as `xlapipe.project_file.stated`.
    """
    file, value = stated(start, _KEY) or (start, None)
    if value is None:
        return None
    where = f"{file}: {'.'.join(TABLE)}.{_KEY}"
    if not isinstance(value, str):
        return _network_from(value, where=where)
    try:
        return network_named(value)
    except NetworkError as error:
        raise NetworkError(f"{where}: {error}") from None


def usual_network(row: str | None) -> Network | None:
    """The network with which a GPU of the catalogue is mostly rented; None if there is none."""
    for network in networks().values():
        if row in network.usual_of:
            return replace(network, assumed=True)
    return None


def _described(text: str) -> Network:
    try:
        value = tomllib.loads(f"network = {text}")["network"]
    except (ValueError, RecursionError) as error:
        raise NetworkError(
            f"network {text:.200}: expected a table of TOML, found {error}; fix: write e.g. {_OWN}"
        ) from None
    return _network_from(value, where=f"network {text}")


def _network_from(value: Any, *, where: str) -> Network:
    known = [item.name for item in fields(Network) if item.name not in ("name", "assumed")]
    unknown = sorted(set(value) - set(known)) if isinstance(value, Mapping) else []
    if unknown:
        raise NetworkError(
            f"{where}: expected {', '.join(known)}, found "
            f"{', '.join(map(repr, unknown))}{nearest(unknown[0], known)}"
        )
    try:
        return typed(Network, value)
    except MisfitError as error:
        raise NetworkError(f"{where}: {error}; fix: write e.g. {_OWN}") from None
