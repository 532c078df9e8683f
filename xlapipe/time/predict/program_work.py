"""Time of the programs of a Pallas kernel's grid, each on one multiprocessor."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from xlapipe.plans.kernel_code import KernelCode
from xlapipe.time.predict.element_operations import OPERATIONS
from xlapipe.time.predict.gpu import MOST_REGISTERS, REGISTERS, THREADS, THREADS_OF_A_WARP, Gpu

_ISSUED = 4  # warps that a multiprocessor issues for at once
_MOST_RESIDENT = 32.0
# Wave quantization: waves, and programs of a multiprocessor, are whole numbers if they are few and
# no program takes longer than this multiple of the average.
_FEW_ROUNDS, _FEW_PROGRAMS, _LOAD_IMBALANCE_LIMIT = 6, 12, 1.2
_L1_BYTES = 64 * 1024  # of a small array
_LINE_BYTES = 128


@dataclass(frozen=True, slots=True)
class ProgramWork:
    """The programs of a grid, by the code of one launch, on a GPU."""

    code: KernelCode
    gpu: Gpu

    @property
    def threads(self) -> int:
        return self.code.warps * THREADS_OF_A_WARP

    @property
    def steps(self) -> float:
        """Trips of the loops of a program that load, on average, at least one."""
        return max(1.0, self.code.steps)

    @property
    def operations(self) -> float:
        """Operations on elements of all programs, in simple float32 operations."""
        return sum(count * OPERATIONS.get(name, 1) for name, count in self.code.operations.items())

    @property
    def registers(self) -> float:
        """Registers that a thread needs; it can have at most 255."""
        return self.code.live_words / self.threads + self.gpu.features.programs.thread_registers

    @property
    def resident(self) -> float:
        """Occupancy: programs resident on a multiprocessor, limited by registers and threads."""
        registers = self.threads * min(self.registers, MOST_REGISTERS)
        most = min(REGISTERS / registers, THREADS / self.threads, _MOST_RESIDENT)
        return min(max(1.0, most), ceil(self.code.programs / self.gpu.multiprocessors))

    @property
    def rounds(self) -> float:
        """Waves of the programs over the multiprocessors."""
        rounds = self.code.programs / (self.gpu.multiprocessors * self.resident)
        return self._quantized_waves(rounds, _FEW_ROUNDS)

    @property
    def busiest(self) -> float:
        """Programs of the busiest multiprocessor; one with more steps counts more."""
        return self._quantized_waves(self.code.programs / self.gpu.multiprocessors, _FEW_PROGRAMS)

    def _quantized_waves(self, times: float, few: int) -> float:
        # Load imbalance: steps of the longest program, as a multiple of the average.
        longest = max(1.0, self.code.longest_steps / self.steps)
        if longest > _LOAD_IMBALANCE_LIMIT or times > few:
            return max(times, longest)
        return ceil(times)

    @property
    def loaded_bytes(self) -> float:
        """Bytes that a program loads; those of a small array that all load are in L1 caches."""
        code, share = self.code, self.gpu.features.programs.l1_share
        sizes = (*code.operand_bytes, *code.result_bytes)
        return (
            sum(
                loaded * (share if size <= _L1_BYTES and loaded >= code.programs * size else 1.0)
                for loaded, size in zip(code.loaded_bytes, sizes, strict=True)
            )
            / code.programs
        )

    @property
    def update_seconds(self) -> float:
        """Time that the L2 cache takes for elements that are added to."""
        code, costs = self.code, self.gpu.features.programs
        sizes = (*code.operand_bytes, *code.result_bytes)
        updates = sum(
            updated / _LINE_BYTES / min(max(1, size // _LINE_BYTES), costs.lines_at_once)
            for updated, size in zip(code.updated_bytes, sizes, strict=True)
        )
        return updates * costs.line_seconds + code.scattered_updates * costs.scattered_seconds

    def seconds(self, operation_rate: float, peak: Callable[[str], float]) -> float:
        """Time of all waves: latency of a program, or throughput of the busiest multiprocessor."""
        code, costs, loaded_bytes = self.code, self.gpu.features.programs, self.loaded_bytes
        multiprocessors_per_program = self.gpu.multiprocessors / code.programs
        operations = self.operations * multiprocessors_per_program / operation_rate
        trip, loaded = costs.load_seconds, loaded_bytes * costs.loaded_byte_seconds
        if any(code.flops.values()):
            trip = costs.product_seconds if code.stages > 1 else costs.unstaged_product_seconds
            loaded = 0.0
        waits = (self.steps - code.ordered_steps) * trip
        waits += code.ordered_steps * costs.ordered_seconds
        waits += code.reductions * costs.reduction_seconds
        fewer, added = _ISSUED / code.warps, code.scattered_updates / code.programs
        alone = operations * costs.alone_factor + added * costs.added_element_seconds
        waits += alone * fewer + loaded * fewer**costs.fewer_warps_power
        products = sum(
            count * multiprocessors_per_program / (costs.peak_shares.get(name, 1.0) * peak(name))
            for name, count in code.flops.items()
        )
        repeats = self.steps if self.steps > 1 else 0.0
        spilled = max(0.0, self.registers - costs.held_registers) * self.threads * repeats
        computes = operations + products + loaded_bytes * costs.byte_seconds
        computes += spilled * costs.spilled_word_seconds
        return float(max(self.rounds * waits, self.busiest * computes))
