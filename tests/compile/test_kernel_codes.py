"""What the code of Pallas kernels says that they do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from xlapipe.compile.lowering.kernel_codes import kernel_codes
from xlapipe.plans.kernel_code import KernelCode

pytestmark = pytest.mark.jax

ROWS, WIDTH, SIDE = 256, 1024, 64


def code_of(
    kernel: Callable[..., None],
    args: tuple[Any, ...],
    result: Any,
    grid: tuple[int, ...] = (),
    in_specs: Any = None,
    out_specs: Any = None,
    **params: Any,
) -> KernelCode:
    given = {} if in_specs is None else {"in_specs": in_specs, "out_specs": out_specs}
    call = pl.pallas_call(
        kernel,
        out_shape=result,
        grid=grid,
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=3),
        **given,
        **params,
    )
    (code,) = kernel_codes(jax.make_jaxpr(call)(*args))
    return code


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_product_in_steps_over_its_terms() -> None:
    def product(x: Any, y: Any, z: Any) -> None:
        def part(step: Any, total: Any) -> Any:
            at = pl.ds(step * 32, 32)
            return total + jnp.dot(x[:, at], y[at, :], preferred_element_type=jnp.float32)

        total = lax.fori_loop(0, WIDTH // 32, part, jnp.zeros((SIDE, SIDE)))
        z[...] = total.astype(z.dtype)

    code = code_of(
        product,
        (struct(ROWS, WIDTH, dtype=jnp.bfloat16), struct(WIDTH, ROWS, dtype=jnp.bfloat16)),
        struct(ROWS, ROWS, dtype=jnp.bfloat16),
        (ROWS // SIDE, ROWS // SIDE),
        [
            pl.BlockSpec((SIDE, WIDTH), lambda i, j: (i, 0)),
            pl.BlockSpec((WIDTH, SIDE), lambda i, j: (0, j)),
        ],
        pl.BlockSpec((SIDE, SIDE), lambda i, j: (i, j)),
    )
    assert (code.kernel, code.programs, code.warps, code.stages) == ("product", 16, 2, 3)
    assert code.flops == {"bf16": 2 * ROWS * ROWS * WIDTH}
    each = 16 * SIDE * WIDTH * 2  # bytes of an operand, by all programs
    assert code.loaded_bytes == (each, each, 0)
    assert code.stored_bytes == (0, 0, 2 * ROWS * ROWS)
    assert (code.steps, code.longest_steps) == (WIDTH // 32, WIDTH // 32)
    # The sum, to which products are added as they are computed, and a step of both operands.
    assert code.live_words == SIDE * SIDE + 2 * SIDE * 32 // 2
    assert (code.operations, code.undecided) == ({"convert": ROWS * ROWS}, 0)


def test_trips_that_depend_on_the_program() -> None:
    def partial_sum(x: Any, y: Any) -> None:
        def part(step: Any, total: Any) -> Any:
            return total + x[pl.ds(step * SIDE, SIDE)]

        y[...] = lax.fori_loop(0, pl.program_id(0) + 1, part, jnp.zeros((SIDE,)))

    code = code_of(
        partial_sum,
        (struct(WIDTH),),
        struct(WIDTH),
        (WIDTH // SIDE,),
        [pl.BlockSpec((WIDTH,), lambda i: (0,))],
        pl.BlockSpec((SIDE,), lambda i: (i,)),
    )
    programs = WIDTH // SIDE
    assert code.longest_steps == programs
    assert code.steps == (programs + 1) / 2
    assert code.loaded_bytes[0] == 4 * SIDE * programs * (programs + 1) // 2
    assert code.operations == {"other": SIDE * programs * (programs + 1) // 2}


def test_what_a_program_loads_again_is_in_its_cache() -> None:
    def repeated(x: Any, y: Any) -> None:
        y[...] = lax.fori_loop(0, 10, lambda _, total: total + x[...], jnp.zeros((SIDE,)))

    code = code_of(repeated, (struct(SIDE),), struct(SIDE))
    assert code.loaded_bytes == (4 * SIDE, 0)
    assert code.steps == 10


def test_a_branch_by_the_place_in_the_grid_and_one_by_data() -> None:
    def first(x: Any, y: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            y[...] = jnp.exp(x[...])

    def positive(x: Any, y: Any) -> None:
        @pl.when(x[0] > 0)
        def _() -> None:
            y[...] = jnp.exp(x[...])

    block = pl.BlockSpec((SIDE,), lambda i: (i,))
    args = (struct(WIDTH),), struct(WIDTH), (WIDTH // SIDE,), [block], block
    code = code_of(first, *args)
    assert (code.operations, code.undecided) == ({"exponential": SIDE}, 0)
    code = code_of(positive, *args)
    assert (code.operations, code.undecided) == ({"exponential": WIDTH}, 1)


def test_trips_by_data_are_undecided() -> None:
    def until(x: Any, count: Any, y: Any) -> None:
        y[...] = lax.fori_loop(0, count[0], lambda _, z: z * 2, x[...])

    code = code_of(until, (struct(SIDE), struct(1, dtype=jnp.int32)), struct(SIDE))
    assert (code.operations, code.undecided) == ({"other": SIDE}, 1)


def test_rows_at_loaded_indices_and_updates() -> None:
    def picked(index: Any, table: Any, row: Any) -> None:
        row[...] = table[index[0], :]

    code = code_of(
        picked, (struct(1, dtype=jnp.int32), struct(ROWS, WIDTH)), struct(WIDTH), in_specs=None
    )
    assert code.loaded_bytes == (4, 4 * WIDTH, 0)
    assert code.stored_bytes == (0, 0, 4 * WIDTH)

    def added(x: Any, start: Any, total: Any) -> None:
        triton.atomic_add(total, (slice(None),), x[...])

    code = code_of(
        added,
        (struct(SIDE), struct(SIDE)),
        struct(SIDE),
        input_output_aliases={1: 0},
    )
    assert code.updated_bytes == (0, 0, 4 * SIDE)
    assert code.loaded_bytes == (4 * SIDE, 0, 4 * SIDE)


def test_operations_on_elements_hold_no_registers_and_reductions_do() -> None:
    def gated(x: Any, y: Any) -> None:
        wide = x[...]
        y[...] = wide * jax.nn.sigmoid(wide) * jnp.tanh(wide)

    def normed(x: Any, y: Any) -> None:
        share = jnp.exp(x[...])
        y[...] = share / share.sum()

    assert code_of(gated, (struct(WIDTH),), struct(WIDTH)).live_words == WIDTH
    code = code_of(normed, (struct(WIDTH),), struct(WIDTH))
    assert (code.live_words, code.reductions) == (WIDTH, 1)
    assert code.sequence == 3


def test_kernels_of_one_name_and_sizes_whose_code_differs_have_the_mean() -> None:
    def call(factor: float) -> Callable[..., Any]:
        def scaled(x: Any, y: Any) -> None:
            y[...] = jnp.sin(x[...]) if factor > 1 else x[...]

        return pl.pallas_call(
            scaled, out_shape=struct(SIDE), compiler_params=triton.CompilerParams()
        )

    one = jax.make_jaxpr(lambda x: call(2.0)(call(2.0)(x)))(struct(SIDE))
    two = jax.make_jaxpr(lambda x: call(2.0)(call(0.5)(x)))(struct(SIDE))
    (sines,) = kernel_codes(one)
    (both,) = kernel_codes(two)
    threads = 32 * 4
    assert sines.operations == {"sine": threads}
    assert both.operations == {"sine": threads // 2}
    assert both.sequence == 0.5
    assert (both.loaded_bytes, both.stored_bytes) == (sines.loaded_bytes, sines.stored_bytes)
