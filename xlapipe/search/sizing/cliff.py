"""The size from which on XLA rematerialises: a step gets slower there although it still fits.

Above its memory limit XLA computes values a second time instead of keeping them. The two sizes on
both sides are compiled, and the larger one also without the limit, which shows what the program as
written would need.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from xlapipe.compile.job import XlaOption
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.search.rows import Row, SearchSettings
from xlapipe.search.sizing.largest_value import Probe, largest_size
from xlapipe.search.sizing.sizes import compile_size

# HloRematerialization's limit, in percent of what the process may use: as if the device had a
# hundred times its memory.
NO_LIMIT: Mapping[str, XlaOption] = {"xla_gpu_memory_limit_slop_factor": 10_000}
# XLA's default of that option, where the search expects the limit. XLA's own estimate of the memory
# is at most the plan's total.
EXPECTED_SHARE = 0.95
# A plan of this share of the usable memory without rematerialisation has nothing to rematerialise.
_MOST_SHARE = 1.5
# The search ends when the two sizes differ by at most this share.
_TOLERANCE = 0.01


@dataclass(frozen=True, kw_only=True)
class Cliff:
    """Where XLA begins to rematerialise.

    Attributes:
      vary: name of the argument.
      below: the largest size whose plan computes nothing a second time; None if the smallest size
        already does.
      above: the smallest size that was compiled whose plan does, at most 1 % larger; None if no
        size up to the upper bound does.
      as_written: the plan of `above` without the memory limit.
      compiled: every size that was compiled with the limit, in order.
    """

    vary: str
    below: Row | None
    above: Row | None
    as_written: Row | None
    compiled: tuple[Row, ...]

    def size(self, row: Row) -> int:
        """The value of the argument."""
        return int(row.candidate.values[self.vary])

    @property
    def saved_bytes(self) -> int | None:
        """What rematerialising saves at `above`; None without it."""
        if self.above is None or self.as_written is None:
            return None
        return self.as_written.memory.total_bytes - self.above.memory.total_bytes

    @property
    def added_seconds(self) -> float | None:
        """Floor of what is computed a second time at `above`; None if unknown."""
        kernels = self.above.memory.recomputed if self.above is not None else ()
        known = [kernel.floor_seconds for kernel in kernels if kernel.floor_seconds is not None]
        return sum(known) if known and len(known) == len(kernels) else None

    def bytes_to_cliff(self, memory: PlannedMemory) -> int | None:
        """By how much a plan may grow before XLA rematerialises, at least.

        0 if it does already, None if no size does.
        """
        if memory.rematerialised:
            return 0
        if self.above is None or self.below is None:
            return None
        return self.below.memory.total_bytes - memory.total_bytes


def find_cliff(
    workload: str,
    vary: str,
    *,
    lower: int = 1,
    upper: int | None = None,
    search: SearchSettings,
    on_done: Callable[[Row], None] = lambda row: None,
) -> Cliff:
    """Finds two sizes close to each other between which XLA begins to rematerialise.

    Args:
      workload: a registered name, or `module:function`; arguments may follow.
      vary: name of the argument.
      lower: the least size; the others are multiples of it.
      upper: the largest size; without it sizes grow until XLA rematerialises.
      search: settings of the compiles.
      on_done: called with each row when its compile has ended.

    Raises:
      XlapipeError: an invalid argument, or a compile failed.
    """
    rows: dict[int, Row] = {}

    def probe(size: int) -> Probe:
        row = rows[size] = compile_size(workload, vary, size, search)
        plan = row.memory
        on_done(row)
        headroom_bytes = int(EXPECTED_SHARE * plan.process_bytes) - plan.total_bytes
        reached = plan.rematerialised or plan.total_bytes > _MOST_SHARE * plan.process_bytes
        return Probe(size, headroom_bytes, not reached)

    probes = largest_size(
        probe,
        lower=lower,
        upper=upper,
        multiple_of=lower,
        tolerance=_TOLERANCE,
        affine_above=False,
    )
    below = max((probe.size for probe in probes if probe.fits), default=None)
    above = min((size for size, row in rows.items() if row.memory.rematerialised), default=None)
    as_written = None
    if above is not None:
        options = {**search.compile.options, **NO_LIMIT}
        unlimited = replace(search, compile=replace(search.compile, options=options))
        as_written = compile_size(workload, vary, above, unlimited)
    return Cliff(
        vary=vary,
        below=rows[below] if below is not None else None,
        above=rows[above] if above is not None else None,
        as_written=as_written,
        compiled=tuple(rows.values()),
    )
