"""Programs that call back into Python on the host."""

from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from step import f32, step

from xlapipe import Workload


def _same(x: Any) -> np.ndarray:
    return np.asarray(x)


def debug_print() -> Workload:
    def fn(x: Any) -> Any:
        jax.debug.print("first {}", x[0])
        return x + 1

    return step("debug_print", fn, [f32(64)], donate_argnums=0)


def debug_print_ordered() -> Workload:
    def fn(x: Any) -> Any:
        jax.debug.print("first {}", x[0], ordered=True)
        jax.debug.print("last {}", x[-1], ordered=True)
        return x + 1

    return step("debug_print_ordered", fn, [f32(64)], donate_argnums=0)


def debug_callback() -> Workload:
    def fn(x: Any) -> Any:
        jax.debug.callback(_same, x)
        return x * 2

    return step("debug_callback", fn, [f32(64)])


def debug_print_in_scan() -> Workload:
    def fn(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            jax.debug.print("step {}", i)
            return x * 2, x.sum()

        return jax.lax.scan(body, x, np.arange(5))

    return step("debug_print_in_scan", fn, [f32(64)])


def pure_callback() -> Workload:
    def fn(x: Any) -> Any:
        return jax.pure_callback(_same, f32(64), x * 2) + 1

    return step("pure_callback", fn, [f32(64)])


def io_callback_unordered() -> Workload:
    def fn(x: Any) -> Any:
        return io_callback(_same, f32(64), x) + 1

    return step("io_callback_unordered", fn, [f32(64)])


def io_callback_ordered() -> Workload:
    def fn(x: Any) -> Any:
        return io_callback(_same, f32(64), x, ordered=True) + 1

    return step("io_callback_ordered", fn, [f32(64)], donate_argnums=0)
