"""Shapes and bytes of the sharded MLP. Imports no jax, so that expectations do not need it."""

from dataclasses import dataclass

from xlapipe import XlapipeError

BFLOAT16 = 2
FLOAT32 = 4
INT32 = 4


@dataclass(frozen=True, kw_only=True)
class MLPSizes:
    """Sizes of the MLP and of its mesh.

    Attributes:
      hidden: features of every layer, in and out.
      layers: number of layers.
      batch: rows per device; the whole batch has `batch * devices` rows.
      devices: size of the mesh axis over which the batch and the rows of every kernel are sharded.

    Raises:
      XlapipeError: a size is less than 1, or `hidden` is not a multiple of `devices`.
    """

    hidden: int = 8192
    layers: int = 4
    batch: int = 4096
    devices: int = 2

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "batch", "devices"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise XlapipeError(f"fsdp-mlp: {name}={value!r}: expected an integer of 1 or more")
        if self.hidden % self.devices:
            raise XlapipeError(
                f"fsdp-mlp: state['params']['layers'][0]['kernel'] [{self.hidden}, {self.hidden}]: "
                f"axis 0 ({self.hidden}) cannot be split over the {self.devices} devices of mesh "
                f"axis 'fsdp'; fix: choose a multiple of {self.devices} for hidden, or another "
                "number of devices"
            )

    @property
    def kernel(self) -> int:
        """Elements of one layer's kernel."""
        return self.hidden * self.hidden

    @property
    def shard(self) -> int:
        """Elements of one layer's kernel on one device."""
        return self.kernel // self.devices

    @property
    def gathered_bytes(self) -> int:
        """Bytes of one layer's gathered kernel, and of its gradient, bfloat16."""
        return self.kernel * BFLOAT16

    @property
    def shard_bytes(self) -> int:
        """Bytes of one layer's shard, bfloat16: a gather's input, a reduce-scatter's output."""
        return self.shard * BFLOAT16

    @property
    def activation_bytes(self) -> int:
        """Bytes of a layer's input or output on one device, bfloat16."""
        return self.batch * self.hidden * BFLOAT16

    @property
    def parameter_shard_bytes(self) -> int:
        """Bytes of all layers' shards on one device, float32."""
        return self.layers * self.shard * FLOAT32
