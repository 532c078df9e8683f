"""The TPUs that libtpu compiles for; see the provenance in `tpus.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from xlapipe.devices.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class TpuRow:
    """A TPU of the catalogue. Figures are per device, in bytes and operations per second.

    Attributes:
      device_kind: as jax gives it.
      grid_dimensions: 2 or 3, of the chips' interconnect.
      vmem_bytes: per core.
      matrix_units: of a core; each multiplies `matrix_side`² pairs of bfloat16 a cycle.
      link_bandwidth: of one link between chips, in one direction.
      wraps_from: chips along a dimension from which on its ends are connected.
      host_bandwidth: between the chip and its host, in one direction; assumed.
      slice_bandwidth: between slices, in one direction, as Google states it; 0 if it does not.
      reserved_bytes: HBM that libtpu's compiler reserves, by the version of libtpu.
      chip_config_name: libtpu's name of the mode in which the chip runs; None for its default.
    """

    name: str
    description: str
    device_kind: str
    grid_dimensions: int
    devices_per_chip: int
    cores_per_device: int
    hbm_bytes: int
    vmem_bytes: int
    hbm_bandwidth: int
    bf16_peak: int
    int8_peak: int
    fp8_peak: int
    clock_hz: int
    matrix_units: int
    matrix_side: int
    link_bandwidth: int
    wraps_from: int
    host_bandwidth: int
    slice_bandwidth: int
    reserved_bytes: Mapping[str, int] = field(hash=False)
    chip_config_name: str | None = None

    def usable_bytes(self, libtpu: str | None) -> int:
        """HBM that a program may fill, its code included.

        Args:
          libtpu: version of libtpu. One that is not listed counts as the newest one listed.
        """
        newest = list(self.reserved_bytes.values())[-1]
        return self.hbm_bytes - self.reserved_bytes.get(libtpu or "", newest)

    def target(self) -> Target:
        return Target(
            name=self.name,
            description=self.description,
            config_text=self._config_text(),
            compute_capability="",
            device_memory_bytes=self.hbm_bytes,
            source="catalogue",
            platform="tpu",
        )

    def _config_text(self) -> str:
        """What libtpu and jax need to know, in the form of a text proto.

        It has no figure that depends on the version of libtpu.
        """
        config_name = self.chip_config_name
        lines = [
            f'generation: "{self.name}"',
            f'device_kind: "{self.device_kind}"',
            *([f'chip_config_name: "{config_name}"'] if config_name is not None else []),
            f"grid_dimensions: {self.grid_dimensions}",
            f"devices_per_chip: {self.devices_per_chip}",
            f"cores_per_device: {self.cores_per_device}",
        ]
        return "\n".join(lines) + "\n"


@cache
def tpu_catalogue() -> Mapping[str, TpuRow]:
    """Every TPU of the catalogue by name, oldest first."""
    text = (files("xlapipe.devices.targets") / "tpus.toml").read_text(encoding="utf-8")
    return {name: TpuRow(name=name, **row) for name, row in tomllib.loads(text).items()}
