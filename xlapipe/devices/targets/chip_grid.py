"""Slices of TPU pods: grids of chips."""

import re
from dataclasses import dataclass
from math import prod

from xlapipe.devices.platforms.tpu import CHIPS_PER_HOST
from xlapipe.errors import XlapipeError

_TEXT = re.compile(
    r"(?P<chips>[1-9][0-9]{0,4}(?:x[1-9][0-9]{0,4}){1,2})(?:-(?P<slices>[1-9][0-9]{0,4})slices)?"
)
# The largest pod, of v5p, has 8,960 chips; libtpu itself has no limit, and a million took 25 s.
_MAX_DEVICES = 65_536


@dataclass(frozen=True, slots=True)
class ChipGrid:
    """A grid of chips, as Cloud TPU names it, `2x4` or `4x4x4`, or several: `4x4-2slices`.

    A mesh is filled with devices in row-major order, slice by slice and host by host, in the order
    in which jax lists them. Slices are connected by the network of the data center.

    Attributes:
      chips: chips of a slice along each dimension.
      devices_per_chip: devices that jax shows for a chip.
      slices: number of equal slices.
    """

    chips: tuple[int, ...]
    devices_per_chip: int = 1
    slices: int = 1

    @classmethod
    def parse(cls, text: str, *, dimensions: int, devices_per_chip: int) -> "ChipGrid":
        """The grid in a text such as `4x4` or `4x4-2slices`.

        Args:
          dimensions: 2 or 3, of the generation's interconnect.

        Raises:
          XlapipeError: the text has another form, the chips do not fill hosts, or there are too
            many.
        """
        example = "4x4" if dimensions == 2 else "2x2x4"
        match = _TEXT.fullmatch(text)
        chips = tuple(map(int, match["chips"].split("x"))) if match else ()
        if match is None or len(chips) != dimensions:
            raise XlapipeError(
                f"topology {text!r}: expected a grid of chips with {dimensions} dimensions, as "
                f"this TPU has; fix: write e.g. {example} for 16 chips, {example}-2slices for two "
                f"such slices, or {'x'.join('1' * dimensions)} for one chip"
            )
        grid = cls(chips, devices_per_chip, int(match["slices"] or 1))
        if grid.device_count > _MAX_DEVICES:
            raise XlapipeError(
                f"topology {text}: expected at most {_MAX_DEVICES:,} devices, found "
                f"{grid.device_count:,}; fix: use fewer chips"
            )
        on_hosts = zip(chips, CHIPS_PER_HOST, strict=False)
        # A single chip has its own host.
        if prod(chips) > 1 and any(count % per_host for count, per_host in on_hosts):
            host = "x".join(map(str, CHIPS_PER_HOST[:dimensions]))
            raise XlapipeError(
                f"topology {text}: the chips do not fill hosts of {host} chips, so libtpu refuses "
                f"it; fix: use multiples of {host}, e.g. {example} for 16 chips, or one chip"
            )
        return grid

    @classmethod
    def of_devices(cls, count: int, *, dimensions: int, devices_per_chip: int) -> "ChipGrid":
        """The grid with `count` devices that is closest to a square or a cube.

        Raises:
          XlapipeError: the number of chips is not a power of two, or is 2.
        """
        chip_count, rest = divmod(count, devices_per_chip)
        if count == 1:  # one device of a chip, whether or not the chip has others
            return cls((1,) * dimensions, devices_per_chip)
        if rest or chip_count.bit_count() != 1 or chip_count == 2:
            chips = f"{chip_count} chips" if not rest else f"{count / devices_per_chip:g} chips"
            raise XlapipeError(
                f"{count} devices are {chips}, for which there is no default grid; fix: pass "
                f"--topology with the grid of chips, e.g. {'4x4' if dimensions == 2 else '2x2x4'}"
            )
        return cls(_near_cube(chip_count.bit_length() - 1, dimensions), devices_per_chip)

    @property
    def is_single_chip(self) -> bool:
        return self._has_single_chips and self.slices == 1

    @property
    def _has_single_chips(self) -> bool:
        return prod(self.chips) == 1

    @property
    def device_count(self) -> int:
        return self.slices * prod(self.chips) * self.devices_per_chip

    @property
    def hosts(self) -> int:
        chips_per_host = 1 if self._has_single_chips else prod(CHIPS_PER_HOST)
        return self.slices * prod(self.chips) // chips_per_host

    @property
    def gpus(self) -> int:
        """Devices per host; the name is that of `Topology`."""
        return self.device_count // self.hosts

    def __str__(self) -> str:
        suffix = f"-{self.slices}slices" if self.slices > 1 else ""
        return "x".join(map(str, self.chips)) + suffix


def _near_cube(exponent: int, dimensions: int) -> tuple[int, ...]:
    """2**exponent as a product of powers of two, the last ones largest; 4 is 2x2 or 2x2x1."""
    if exponent == 2:
        return (2, 2, 1)[:dimensions]
    smallest, larger = divmod(exponent, dimensions)
    return tuple(
        2 ** (smallest + (position >= dimensions - larger)) for position in range(dimensions)
    )
