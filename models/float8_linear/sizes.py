"""Shapes and bytes of the float8 linear layer. Imports no jax, so that expectations need none."""

from dataclasses import dataclass

BFLOAT16 = 2
FLOAT32 = 4
FLOAT8 = 1
POINTER = 8


@dataclass(frozen=True, kw_only=True)
class Float8Sizes:
    """Sizes of one layer's matmuls; those of dump 004 are the defaults.

    Attributes:
      rows: of x, all leading axes together (M).
      in_features, out_features: I and O.
    """

    rows: int = 2048
    in_features: int = 4096
    out_features: int = 8192

    @property
    def x(self) -> int:
        """Elements of x, and of dx."""
        return self.rows * self.in_features

    @property
    def kernel(self) -> int:
        """Elements of the kernel, and of its gradient."""
        return self.in_features * self.out_features

    @property
    def y(self) -> int:
        """Elements of y, and of its gradient g."""
        return self.rows * self.out_features

    @property
    def residual_bytes(self) -> int:
        """What the forward pass keeps: two tensors of codes, two scalars."""
        return (self.x + self.kernel) * FLOAT8 + 2 * FLOAT32

    @property
    def least_step_bytes(self) -> int:
        """x, kernel and g read once, y and both gradients written once, all in bfloat16."""
        return 2 * (self.x + self.kernel + self.y) * BFLOAT16
