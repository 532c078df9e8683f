"""Shapes and bytes of the float8 linear layer. Imports no jax: expectations do not need it."""

from dataclasses import dataclass

BFLOAT16 = 2
FLOAT32 = 4
FLOAT8 = 1
POINTER = 8


@dataclass(frozen=True, kw_only=True)
class Float8Sizes:
    """Sizes of one layer's matmuls; the defaults are those of reference dump 004.

    Attributes:
      rows: M, rows of x: the product of its leading axes.
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
        """Bytes that the forward pass keeps: two tensors of codes, two scalars."""
        return (self.x + self.kernel) * FLOAT8 + 2 * FLOAT32

    @property
    def least_step_bytes(self) -> int:
        """Least traffic: x, kernel and g read once, y, dx and dkernel written once, in bfloat16."""
        return 2 * (self.x + self.kernel + self.y) * BFLOAT16
