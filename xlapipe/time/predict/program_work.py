"""Time of the programs of a Pallas kernel's grid, each on one multiprocessor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from xlapipe.time.predict.gpu import (
    HOPPER,
    MOST_REGISTERS,
    REGISTERS,
    THREADS,
    THREADS_OF_A_WARP,
    Gpu,
)

_ISSUED = 4  # warps that a multiprocessor issues for at once
_MOST_RESIDENT = 32.0
# Wave quantization: waves, and programs of a multiprocessor, are whole numbers if they are few and
# no program takes longer than this multiple of the average.
_FEW_ROUNDS, _FEW_PROGRAMS, _AS_LONG = 6, 12, 1.2


@dataclass(frozen=True, slots=True)
class ProgramWork:
    """The programs of a grid.

    Attributes:
      programs: of the grid.
      warps, stages: of a program, as set for Triton (num_warps, num_stages).
      steps: trips of the loops of a program that load, on average.
      ordered_steps: those of these steps whose loops also store.
      longest: steps of the longest program, as a multiple of the average (load imbalance).
      reductions: of a program.
      live_words: 32-bit words of arrays that a program has at once.
      loaded_bytes: of a program.
      added: elements that a program adds to device memory, one access each.
      operations: on elements, of a program, in simple float32 operations.
      flops: of products of a program, by type.
      gpu: that runs them.
    """

    programs: int
    warps: int
    stages: int
    steps: float
    ordered_steps: float
    longest: float
    reductions: float
    live_words: int
    loaded_bytes: float
    added: float
    operations: float
    flops: Mapping[str, float]
    gpu: Gpu = HOPPER

    @property
    def registers(self) -> float:
        """Registers that a thread needs; it can have at most 255."""
        threads = self.warps * THREADS_OF_A_WARP
        return self.live_words / threads + self.gpu.features.programs.thread_registers

    @property
    def resident(self) -> float:
        """Occupancy: programs resident on a multiprocessor, limited by registers and threads."""
        threads = self.warps * THREADS_OF_A_WARP
        registers = threads * min(self.registers, MOST_REGISTERS)
        most = min(REGISTERS / registers, THREADS / threads, _MOST_RESIDENT)
        return min(max(1.0, most), ceil(self.programs / self.gpu.multiprocessors))

    @property
    def rounds(self) -> float:
        """Waves of the programs over the multiprocessors."""
        rounds = self.programs / (self.gpu.multiprocessors * self.resident)
        return self._whole(rounds, _FEW_ROUNDS)

    @property
    def busiest(self) -> float:
        """Programs of the busiest multiprocessor; one with more steps counts more."""
        return self._whole(self.programs / self.gpu.multiprocessors, _FEW_PROGRAMS)

    def _whole(self, times: float, few: int) -> float:
        if self.longest > _AS_LONG or times > few:
            return max(times, self.longest)
        return ceil(times)

    def seconds(self, operation_rate: float, peak: Callable[[str], float]) -> float:
        """Time of all waves: latency of a program, or throughput of the busiest multiprocessor.

        Args:
          operation_rate: simple operations of the whole GPU per second.
          peak: of the whole GPU, by type.
        """
        costs = self.gpu.features.programs
        operations = self.operations * self.gpu.multiprocessors / operation_rate
        trip, loaded = costs.load_seconds, self.loaded_bytes * costs.loaded_byte_seconds
        if self.flops:
            trip = costs.product_seconds if self.stages > 1 else costs.unstaged_product_seconds
            loaded = 0.0
        waits = (
            self.steps - self.ordered_steps
        ) * trip + self.ordered_steps * costs.ordered_seconds
        waits += self.reductions * costs.reduction_seconds
        fewer = _ISSUED / self.warps
        alone = operations * costs.alone_factor + self.added * costs.added_element_seconds
        waits += alone * fewer + loaded * fewer**costs.fewer_warps_power
        products = sum(
            count * self.gpu.multiprocessors / (costs.peak_shares.get(name, 1.0) * peak(name))
            for name, count in self.flops.items()
        )
        threads = self.warps * THREADS_OF_A_WARP
        again = self.steps if self.steps > 1 else 0.0
        spilled = max(0.0, self.registers - costs.held_registers) * threads * again
        computes = operations + products + self.loaded_bytes * costs.byte_seconds
        computes += spilled * costs.spilled_word_seconds
        return float(max(self.rounds * waits, self.busiest * computes))
