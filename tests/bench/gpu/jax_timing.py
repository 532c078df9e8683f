"""Timing of the sides that use JAX."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from timing import ROTATED_BYTES, Timing, print_timings, timed

Case = tuple[str, str, Callable[..., Any], Sequence[tuple[Any, ...]], int]


def rotating(
    make: Callable[[int], tuple[jax.Array, ...]], set_bytes: int
) -> list[tuple[jax.Array, ...]]:
    """Sets of random inputs on the device, in total larger than its caches."""
    return [make(seed) for seed in range(-(-ROTATED_BYTES // set_bytes))]


def jax_timings(cases: Iterable[Case]) -> None:
    """Times each (case, variant, function, sets of inputs, least bytes) as a jitted function."""
    device = jax.devices("gpu")[0]
    timings: list[Timing] = []
    for case, variant, function, sets, least_bytes in cases:
        compiled = jax.jit(function).lower(*sets[0]).compile()
        # XLA's cost analysis does not count gemms in a library, or Pallas kernels.
        counted = "custom-call" not in compiled.as_text()
        moved = (compiled.cost_analysis() or {}).get("bytes accessed") if counted else None
        timings.append(
            timed(
                case,
                variant,
                lambda number, sets=sets, compiled=compiled: compiled(*sets[number % len(sets)]),
                jax.block_until_ready,
                least_bytes=least_bytes,
                moved_bytes=None if moved is None else round(moved),
            )
        )
    print_timings(framework=f"jax {jax.__version__}", device=device.device_kind, timings=timings)
