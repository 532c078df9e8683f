"""Shapes and bytes of spectral diffusion. Imports no jax, so that expectations need none."""

from dataclasses import dataclass

BFLOAT16 = 2
FLOAT32 = 4
POINTER = 8


@dataclass(frozen=True, kw_only=True)
class SpectralSizes:
    """Sizes of one application of the layer; those of dump 002 are the defaults.

    Attributes:
      meshes: B; None for one mesh without that axis.
      vertices, eigenvectors, channels: V, K and C.
    """

    meshes: int | None = None
    vertices: int = 2048
    eigenvectors: int = 128
    channels: int = 256

    @property
    def leading(self) -> tuple[int, ...]:
        """The axis of meshes, if there is one."""
        return () if self.meshes is None else (self.meshes,)

    @property
    def _count(self) -> int:
        return 1 if self.meshes is None else self.meshes

    @property
    def signal_bytes(self) -> int:
        """x, or y: [B, V, C]."""
        return self._count * self.vertices * self.channels * BFLOAT16

    @property
    def spectrum_bytes(self) -> int:
        """y in the basis: [B, K, C]."""
        return self._count * self.eigenvectors * self.channels * BFLOAT16

    @property
    def evecs_bytes(self) -> int:
        """[B, V, K]."""
        return self._count * self.vertices * self.eigenvectors * BFLOAT16

    @property
    def mass_bytes(self) -> int:
        """[B, V]."""
        return self._count * self.vertices * BFLOAT16

    @property
    def evals_bytes(self) -> int:
        """[B, K]."""
        return self._count * self.eigenvectors * BFLOAT16

    @property
    def time_bytes(self) -> int:
        """[C]."""
        return self.channels * BFLOAT16

    @property
    def argument_bytes(self) -> int:
        """Everything that `diffuse` reads."""
        mesh = self.mass_bytes + self.evals_bytes + self.evecs_bytes
        return self.signal_bytes + mesh + self.time_bytes

    @property
    def least_bytes(self) -> int:
        """Every argument read once, both results written once."""
        return self.argument_bytes + self.spectrum_bytes + self.signal_bytes

    @property
    def least_train_bytes(self) -> int:
        """The same with the gradient of y read, and those of x and of the times written."""
        return self.least_bytes + 2 * self.signal_bytes + self.time_bytes
