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

# Fitted to 573 Pallas kernels of the calibration that an H100 ran. Latency of a loop trip: products
# whose operands are loaded ahead (pipelined), other products, loads without products, and loads in
# loops that also store.
_PRODUCT_SECONDS, _UNSTAGED_PRODUCT_SECONDS = 0.2e-6, 0.7e-6
_LOAD_SECONDS, _ORDERED_SECONDS = 0.14e-6, 0.43e-6
_REDUCTION_SECONDS = 0.4e-6
# With four warps: latency per byte that the only resident block loads; the power by which it grows
# with fewer warps; and latency per element that it adds to device memory.
_LOADED_ALONE_SECONDS, _BY_FEWER, _ADDED_ALONE_SECONDS = 17e-12, 0.83, 5.6e-9
# Factor by which operations of the only resident block take longer, since its warps stall; and
# warps that a multiprocessor issues for at once.
_ALONE, _ISSUED = 2.1, 4
_BYTE_SECONDS = 8e-12  # of a multiprocessor
_SHARE_OF_PEAK = {"f32": 0.19}
# Spills: words that registers do not hold are stored and loaded in each trip of a loop.
_REGISTERS_OF_A_THREAD, _HELD_REGISTERS = 30, 217
_SPILLED_WORD_SECONDS = 125e-12
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
        return self.live_words / threads + _REGISTERS_OF_A_THREAD

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
        operations = self.operations * self.gpu.multiprocessors / operation_rate
        trip, loaded = _LOAD_SECONDS, self.loaded_bytes * _LOADED_ALONE_SECONDS
        if self.flops:
            trip = _PRODUCT_SECONDS if self.stages > 1 else _UNSTAGED_PRODUCT_SECONDS
            loaded = 0.0
        waits = (self.steps - self.ordered_steps) * trip + self.ordered_steps * _ORDERED_SECONDS
        waits += self.reductions * _REDUCTION_SECONDS
        fewer = _ISSUED / self.warps
        waits += (operations * _ALONE + self.added * _ADDED_ALONE_SECONDS) * fewer
        waits += loaded * fewer**_BY_FEWER
        products = sum(
            count * self.gpu.multiprocessors / (_SHARE_OF_PEAK.get(name, 1.0) * peak(name))
            for name, count in self.flops.items()
        )
        threads = self.warps * THREADS_OF_A_WARP
        again = self.steps if self.steps > 1 else 0.0
        spilled = max(0.0, self.registers - _HELD_REGISTERS) * threads * again
        computes = operations + products + self.loaded_bytes * _BYTE_SECONDS
        computes += spilled * _SPILLED_WORD_SECONDS
        return float(max(self.rounds * waits, self.busiest * computes))
