"""Which values of a forward pass to keep for a budget of bytes: a mixed-integer program.

Groups of values that a policy cannot distinguish are kept or not; a value that the backward pass
needs is kept, moved to the host's memory or recomputed, and so are the inputs of what is
computed again (as in Checkmate, arXiv 1910.02653, without its schedule). The seconds are estimates
from bytes and operations: they only order what is compiled.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xlapipe.compile.lowering.forward_graph import ForwardValue, PolicyKey
from xlapipe.devices.targets.device import Device
from xlapipe.search.candidate import Recomputed

# XLA fuses operations on elements into their users, which then read and write less.
_FUSED_SHARE = 0.25
_UNFUSED = ("dot_general", "conv_general_dilated", "sort", "gather", "scatter", "scatter-add")
_FUSED_INTO_NOTHING = ("reduce", "cum", "custom", "pallas", "ffi", "top_k", "argm")
# Groups below this share of all saved bytes are recomputed: a policy stays short.
_LEAST_SHARE = 1e-3
_SOLVER_SECONDS = 10.0
# A form that recomputes so much longer than another one is slower; less is within the error.
_SURELY = 1.1
# Bytes per second between device and host: 256 MiB took 5.06 ms on an H100 and an H200.
_HOST_BANDWIDTH = 53e9


@dataclass(frozen=True)
class Group:
    """The values that a policy cannot distinguish, in their order."""

    key: PolicyKey
    values: tuple[ForwardValue, ...]

    @property
    def saved_bytes(self) -> int:
        return sum(value.size_bytes for value in self.values if value.needed)

    @property
    def size_bytes(self) -> int:
        return sum(value.size_bytes for value in self.values)


@dataclass(frozen=True)
class Kept:
    """A solution: the groups to keep.

    Attributes:
      kept_bytes: bytes of what is then kept on the device.
      again_seconds: estimated time of what is recomputed.
      offloaded: the groups to keep in the host's memory.
    """

    groups: tuple[Group, ...]
    kept_bytes: int
    again_seconds: float
    offloaded: tuple[Group, ...] = ()

    @property
    def keys(self) -> tuple[frozenset[PolicyKey], frozenset[PolicyKey]]:
        """What is kept on the device, and on the host."""
        device, host = ({group.key for group in own} for own in (self.groups, self.offloaded))
        return frozenset(device), frozenset(host)


def groups_of(values: Sequence[ForwardValue]) -> tuple[Group, ...]:
    """The groups, those with most bytes first."""
    by_key: dict[PolicyKey, list[ForwardValue]] = defaultdict(list)
    for value in values:
        if value.key is not None:
            by_key[value.key].append(value)
    groups = (Group(key, tuple(own)) for key, own in by_key.items())
    return tuple(sorted(groups, key=lambda group: -group.size_bytes))


def saved_bytes(values: Sequence[ForwardValue]) -> int:
    """Bytes of the values that the backward pass needs."""
    return sum(value.size_bytes for value in values if value.needed and value.key is not None)


def seconds_of(value: ForwardValue, device: Device) -> float:
    """Estimated seconds to compute a value once more from its inputs."""
    name = value.key.primitive if value.key is not None else ""
    alone = name in _UNFUSED or name.startswith(_FUSED_INTO_NOTHING)
    moved = value.touched_bytes if alone else _FUSED_SHARE * value.size_bytes
    peak = device.peak_of("bf16") or device.vector_flops or 1.0
    return max(moved / device.bandwidth, value.operations / peak)


@dataclass(frozen=True)
class Estimate:
    """What a policy changes, by bytes and operations alone: it orders compiles.

    Attributes:
      freed_bytes: at the peak, where one part at a time is computed again.
      again_seconds: time of what is computed again.
      again, kept: numbers of the values that are computed again, and of those that are kept for it.
    """

    freed_bytes: float
    again_seconds: float
    again: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()

    def is_worse_than(self, other: "Estimate") -> bool:
        """Whether it frees no more, and surely takes longer."""
        longer = self.again_seconds > _SURELY * other.again_seconds
        return longer and self.freed_bytes <= other.freed_bytes


def estimate(values: Sequence[ForwardValue], what: Recomputed, device: Device) -> Estimate:
    """What is freed and computed again if some values of a forward pass are not kept."""
    by_number = {value.number: value for value in values}
    again: set[int] = set()
    kept: set[int] = set()
    waiting = [number for number in what.numbers if by_number[number].needed]
    while waiting:
        number = waiting.pop()
        if number in again:
            continue
        again.add(number)
        inputs = [n for n in by_number[number].inputs if n in by_number]
        waiting += [n for n in inputs if n in what.numbers]
        kept |= {n for n in inputs if n not in what.numbers and not by_number[n].needed}
    gone_bytes = sum(by_number[n].size_bytes for n in again if by_number[n].needed)
    freed_bytes = gone_bytes - sum(by_number[n].size_bytes for n in kept)
    seconds = sum(seconds_of(by_number[n], device) for n in again)
    at_once_bytes = gone_bytes / what.parts
    at_peak_bytes = what.share * freed_bytes - at_once_bytes
    return Estimate(at_peak_bytes, what.share * seconds, frozenset(again), frozenset(kept))


def keep_within(
    values: Sequence[ForwardValue], budget_bytes: int, device: Device, *, offload: bool = False
) -> Kept | None:
    """The groups to keep, with `offload` also in the host's memory, so that least is recomputed."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_matrix

    own = [value for value in values if value.key is not None]
    if not own:
        return None
    groups = groups_of(own)
    group_of = {value.number: g for g, group in enumerate(groups) for value in group.values}
    new_numbers = {value.number: len(groups) + i for i, value in enumerate(own)}
    extra = [value for value in own if not value.needed]
    stored = {value.number: len(groups) + len(own) + i for i, value in enumerate(extra)}
    host = {g: len(groups) + len(own) + len(extra) + g for g in range(len(groups))}
    count = len(groups) + len(own) + len(extra) + len(host)
    rows: list[tuple[dict[int, float], float]] = []  # coefficients, and the least sum

    def at_hand(number: int) -> dict[int, float]:
        """Terms of which one is 1 if the backward pass has a value."""
        group = group_of[number]
        return {group: 1.0, host[group]: 1.0, new_numbers[number]: 1.0}

    for value in own:
        if value.needed:
            rows.append((at_hand(value.number), 1.0))
        for number in value.inputs:
            if number not in new_numbers:
                continue
            rows.append(({**at_hand(number), new_numbers[value.number]: -1.0}, 0.0))
            if number in stored:
                used = {
                    stored[number]: 1.0,
                    group_of[number]: -1.0,
                    new_numbers[value.number]: -1.0,
                }
                rows.append((used, -1.0))
    size = {value.number: float(value.size_bytes) for value in own}
    bytes_row = np.zeros(count)
    for value in own:
        column = group_of[value.number] if value.needed else stored[value.number]
        bytes_row[column] += size[value.number]
    rows.append(({c: -float(v) for c, v in enumerate(bytes_row) if v}, -float(budget_bytes)))
    cost = np.zeros(count)
    for value in own:
        cost[new_numbers[value.number]] = seconds_of(value, device)
    total = float(cost.sum()) or 1.0
    cost[: len(groups)] = total * 1e-5  # prefers a short policy
    for g, group in enumerate(groups):
        cost[host[g]] = 2 * group.size_bytes / _HOST_BANDWIDTH
    data = [(r, c, v) for r, (terms, _) in enumerate(rows) for c, v in terms.items()]
    places = [entry[0] for entry in data], [entry[1] for entry in data]
    matrix = coo_matrix(([entry[2] for entry in data], places), shape=(len(rows), count)).tocsr()
    least_bytes = _LEAST_SHARE * saved_bytes(own)
    upper = np.ones(count)
    upper[: len(groups)] = [1.0 if group.size_bytes >= least_bytes else 0.0 for group in groups]
    upper[len(upper) - len(host) :] = upper[: len(groups)] if offload else 0.0
    integrality = np.zeros(count)
    integrality[[*range(len(groups)), *host.values()]] = 1
    with _without_output():
        solution = milp(
            cost / total,
            constraints=LinearConstraint(matrix, np.array([least for _, least in rows]), np.inf),
            bounds=Bounds(np.zeros(count), upper),
            integrality=integrality,
            options={"time_limit": _SOLVER_SECONDS, "mip_rel_gap": 1e-3},
        )
    if solution.x is None:
        return None
    chosen = solution.x
    kept = tuple(group for g, group in enumerate(groups) if chosen[g] > 0.5)
    moved = tuple(group for g, group in enumerate(groups) if chosen[host[g]] > 0.5)
    again_seconds = sum(
        seconds_of(value, device) for value in own if chosen[new_numbers[value.number]] > 0.5
    )
    return Kept(kept, int(bytes_row @ chosen), again_seconds, moved)


@contextmanager
def _without_output() -> Iterator[None]:
    """Suppresses lines that the solver prints from C++: they are not a command's output."""
    if sys.stdout is not None:
        sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def solutions(
    values: Sequence[ForwardValue],
    shares: Sequence[float],
    device: Device,
    *,
    offload: bool = False,
) -> tuple[Kept, ...]:
    """The different solutions for budgets that are shares of what is saved now."""
    whole = saved_bytes(values)
    solved = (keep_within(values, int(share * whole), device, offload=offload) for share in shares)
    by_keys = {kept.keys: kept for kept in solved if kept is not None}
    return tuple(by_keys.values())
