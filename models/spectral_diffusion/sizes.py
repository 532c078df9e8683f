"""Shapes and bytes of spectral diffusion. Imports no jax, so that expectations do not need it."""

from dataclasses import dataclass

BFLOAT16 = 2
FLOAT32 = 4
POINTER = 8


@dataclass(frozen=True, kw_only=True)
class SpectralSizes:
    """Sizes of one application of the layer; the defaults are those of reference dump 002.

    Attributes:
      meshes: B; None for a single mesh, whose arrays have no axis B.
      vertices, eigenvectors, channels: V, K and C.
    """

    meshes: int | None = None
    vertices: int = 2048
    eigenvectors: int = 128
    channels: int = 256

    @property
    def leading(self) -> tuple[int, ...]:
        """The dimension B, or none for a single mesh."""
        return () if self.meshes is None else (self.meshes,)

    @property
    def _count(self) -> int:
        return 1 if self.meshes is None else self.meshes

    @property
    def signal_bytes(self) -> int:
        """Bytes of x, and of y: [B, V, C]."""
        return self._count * self.vertices * self.channels * BFLOAT16

    @property
    def spectrum_bytes(self) -> int:
        """Bytes of y in the basis: [B, K, C]."""
        return self._count * self.eigenvectors * self.channels * BFLOAT16

    @property
    def evecs_bytes(self) -> int:
        """Bytes of evecs: [B, V, K]."""
        return self._count * self.vertices * self.eigenvectors * BFLOAT16

    @property
    def mass_bytes(self) -> int:
        """Bytes of mass: [B, V]."""
        return self._count * self.vertices * BFLOAT16

    @property
    def evals_bytes(self) -> int:
        """Bytes of evals: [B, K]."""
        return self._count * self.eigenvectors * BFLOAT16

    @property
    def time_bytes(self) -> int:
        """Bytes of time: [C]."""
        return self.channels * BFLOAT16

    @property
    def argument_bytes(self) -> int:
        """Bytes of all arguments of `diffuse`."""
        mesh = self.mass_bytes + self.evals_bytes + self.evecs_bytes
        return self.signal_bytes + mesh + self.time_bytes

    @property
    def least_bytes(self) -> int:
        """Least traffic of the layer: each argument read once, both results written once."""
        return self.argument_bytes + self.spectrum_bytes + self.signal_bytes

    @property
    def least_train_bytes(self) -> int:
        """Least traffic of a training step: also reads dy, and writes dx and dtime."""
        return self.least_bytes + 2 * self.signal_bytes + self.time_bytes
