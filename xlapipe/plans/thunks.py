"""Thunks: the runtime steps that XLA:GPU emits for a module."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thunk:
    """One step of the thunk sequence, after XLA's thunk passes.

    Attributes:
      kind: as XLA prints it, e.g. `kCustomKernel`, `kCublasLtMatmul`.
      depth: nesting level inside command buffers, loops and conditionals; 0 is the top level.
      detail: what XLA prints after the dependencies: kernel name, grid, threads.
    """

    kind: str
    depth: int
    detail: str = ""

    @property
    def kernel(self) -> str:
        """Name of the kernel that it launches; empty for another kind."""
        return self.detail.partition(" ")[0] if self.kind in ("kKernel", "kCustomKernel") else ""
