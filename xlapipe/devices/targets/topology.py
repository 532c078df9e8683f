"""The hosts and the GPUs per host that a mesh covers."""

import re
from dataclasses import dataclass

from xlapipe.errors import XlapipeError

_TEXT = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
# The number in most hosts whose GPUs are connected by NVLink.
GPUS_PER_HOST = 8
# The compiler needs memory per device; a typing error should not exhaust it.
_MAX_DEVICES = 65_536


@dataclass(frozen=True, slots=True)
class Topology:
    """`hosts` machines with `gpus` GPUs each.

    A mesh is filled with devices in row-major order, host by host, so its last axes are within a
    host.
    """

    hosts: int
    gpus: int

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """The topology in a text of the form HOSTSxGPUS.

        >>> Topology.parse("8x4")
        Topology(hosts=8, gpus=4)

        Raises:
          XlapipeError: the text has another form, or there are too many devices.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise XlapipeError(
                f"topology {text!r}: expected HOSTSxGPUS with two positive numbers; fix: write "
                "e.g. 1x2 for one host with two GPUs, or 8x8 for eight hosts with eight GPUs each"
            )
        topology = cls(int(match[1]), int(match[2]))
        if topology.device_count > _MAX_DEVICES:
            raise XlapipeError(
                f"topology {text}: expected at most {_MAX_DEVICES:,} devices, found "
                f"{topology.device_count:,}; fix: use fewer hosts or GPUs"
            )
        return topology

    @classmethod
    def of_devices(cls, count: int) -> "Topology":
        """One host for up to 8 devices, hosts of 8 for more.

        Raises:
          XlapipeError: more than 8 devices that do not fill such hosts.
        """
        if count <= GPUS_PER_HOST:
            return cls(1, count)
        if count % GPUS_PER_HOST:
            raise XlapipeError(
                f"{count} devices do not fill hosts of {GPUS_PER_HOST} GPUs; "
                "fix: pass --topology HOSTSxGPUS"
            )
        return cls(count // GPUS_PER_HOST, GPUS_PER_HOST)

    @property
    def device_count(self) -> int:
        return self.hosts * self.gpus

    def __str__(self) -> str:
        return f"{self.hosts}x{self.gpus}"
