"""How many hosts with how many GPUs each: what a mesh is laid over."""

import re
from dataclasses import dataclass

from xlapipe.errors import XlapipeError

_TEXT = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
# Of the machines that are sold with GPUs on one NVLink, most have this many.
GPUS_OF_A_HOST = 8
# Each device costs the compiler memory, and a slip of the finger should not take all of it.
_MOST_DEVICES = 65_536


@dataclass(frozen=True, slots=True)
class Topology:
    """`hosts` machines with `gpus` GPUs each.

    A mesh is laid over the devices row by row, a host's GPUs next to each other: its last axes run
    within a host.
    """

    hosts: int
    gpus: int

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """A topology as `str` writes it.

        >>> Topology.parse("8x4")
        Topology(hosts=8, gpus=4)

        Raises:
          XlapipeError: text of another form.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise XlapipeError(
                f"topology {text!r}: expected HOSTSxGPUS, two whole numbers of 1 or more: 1x2 is "
                "one host with two GPUs, 8x8 are eight hosts with eight GPUs each"
            )
        topology = cls(int(found[1]), int(found[2]))
        if topology.device_count > _MOST_DEVICES:
            raise XlapipeError(
                f"topology {text}: {topology.device_count:,} devices; at most {_MOST_DEVICES:,} "
                "are supported"
            )
        return topology

    @classmethod
    def of_devices(cls, count: int) -> "Topology":
        """One host for up to 8 devices, hosts of 8 for more.

        Raises:
          XlapipeError: more than 8 that do not fill such hosts.
        """
        if count <= GPUS_OF_A_HOST:
            return cls(1, count)
        if count % GPUS_OF_A_HOST:
            raise XlapipeError(
                f"{count} devices do not fill hosts of {GPUS_OF_A_HOST} GPUs: say with "
                "--topology HOSTSxGPUS what they are"
            )
        return cls(count // GPUS_OF_A_HOST, GPUS_OF_A_HOST)

    @property
    def device_count(self) -> int:
        return self.hosts * self.gpus

    def __str__(self) -> str:
        return f"{self.hosts}x{self.gpus}"
