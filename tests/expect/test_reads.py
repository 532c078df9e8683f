"""ReadAtMost on a compiled step: reads in the body of a loop count."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from xlapipe.expect import ReadAtMost

pytestmark = pytest.mark.jax

X = jax.ShapeDtypeStruct((512, 1024), jnp.float32)


def two_reads_in_a_loop(x: jax.Array) -> jax.Array:
    """Each trip reads `x` twice, since the second product needs the first one."""

    def trip(row: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.sin(jnp.sin(x @ row) @ x), None

    return jax.lax.scan(trip, jnp.ones(1024), None, length=40)[0]


def test_reads_in_a_loop_count_each_and_not_the_loop(xlapipe_plan: Any) -> None:
    program = xlapipe_plan(two_reads_in_a_loop, X).program
    (violation,) = ReadAtMost("x", 1).check(program).violations
    assert violation.found.startswith("read by 2: ")
    assert "while" not in violation.found
    assert ReadAtMost("x", 2).check(program).violations == ()
