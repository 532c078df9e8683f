"""Shapes and bytes of the sharded MLP. Imports no jax, so that expectations need none."""

from dataclasses import dataclass

from xlapipe.errors import WorkloadError

BFLOAT16 = 2
FLOAT32 = 4
INT32 = 4


@dataclass(frozen=True, kw_only=True)
class MLPSizes:
    """Sizes of the MLP and of its mesh.

    Attributes:
      hidden: features of every layer, in and out.
      layers: how many.
      batch: rows of one device; all devices together have `devices` times as many.
      devices: size of the mesh axis that shards rows of the batch and of every kernel.

    Raises:
      WorkloadError: a size that is not 1 or more, or kernels that `devices` does not divide.
    """

    hidden: int = 8192
    layers: int = 4
    batch: int = 4096
    devices: int = 2

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "batch", "devices"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise WorkloadError(
                    f"fsdp-mlp: {name}={value!r}: expected a whole number of 1 or more"
                )
        if self.hidden % self.devices:
            raise WorkloadError(
                f"fsdp-mlp: state['params']['layers'][0]['kernel'] [{self.hidden}, {self.hidden}]: "
                f"its axis 0 of {self.hidden} cannot be split over the {self.devices} devices of "
                f"mesh axis 'fsdp': choose a hidden that is a multiple of {self.devices}, or "
                "another number of devices"
            )

    @property
    def kernel(self) -> int:
        """Elements of one layer's kernel."""
        return self.hidden * self.hidden

    @property
    def shard(self) -> int:
        """Elements of one layer's kernel that lie on one device."""
        return self.kernel // self.devices

    @property
    def gathered_bytes(self) -> int:
        """One layer's kernel, bfloat16, as a gather writes it and as its gradient is."""
        return self.kernel * BFLOAT16

    @property
    def shard_bytes(self) -> int:
        """One layer's shard, bfloat16: what a gather reads and a reduce-scatter writes."""
        return self.shard * BFLOAT16

    @property
    def activation_bytes(self) -> int:
        """A layer's input or output on one device, bfloat16."""
        return self.batch * self.hidden * BFLOAT16

    @property
    def parameter_shard_bytes(self) -> int:
        """All layers' shards on one device, float32."""
        return self.layers * self.shard * FLOAT32
