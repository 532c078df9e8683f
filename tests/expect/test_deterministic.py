"""Scatters whose result may differ from run to run, and the option of XLA that removes them."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from xlapipe.api.testing.session import PlansOfTest
from xlapipe.expect import Deterministic

pytestmark = pytest.mark.jax
TABLE = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
INDICES = jax.ShapeDtypeStruct((512,), jnp.int32)
ROWS = jax.ShapeDtypeStruct((512, 256), jnp.float32)
IMAGE = jax.ShapeDtypeStruct((8, 32, 32, 64), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.float32)


def scatters(table: Any, indices: Any, rows: Any) -> Any:
    at = table.at[indices]
    counts = jnp.zeros(4096, jnp.int32).at[indices].add(1)
    return at.add(rows), at.set(rows), at.max(rows), at.add(rows, unique_indices=True), counts


def gradient(image: Any, kernel: Any) -> Any:
    def loss(kernel: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        out = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=layout)
        return jnp.sum(out**2)

    return jax.grad(loss)(kernel)


def violations(plan: Any) -> list[str]:
    finding = Deterministic().check(plan.program)
    return [violation.found for violation in finding.violations]


@pytest.mark.parametrize(
    "option", ["xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops"]
)
def test_scatters_whose_indices_may_repeat(xlapipe_plan: PlansOfTest, option: str) -> None:
    found = violations(xlapipe_plan(scatters, TABLE, INDICES, ROWS))
    assert len(found) == 2  # not maxima, integers and unique indices
    assert all("scatter by atomics" in text for text in found)
    # XLA's own expansion of these, and only these, is the reference.
    assert violations(xlapipe_plan(scatters, TABLE, INDICES, ROWS, options={option: True})) == []


def test_backward_convolutions_of_cudnn(xlapipe_plan: PlansOfTest) -> None:
    (found,) = violations(xlapipe_plan(gradient, IMAGE, KERNEL))
    assert "__cudnn$convBackwardFilter" in found
    option = {"xla_gpu_deterministic_ops": True}
    assert violations(xlapipe_plan(gradient, IMAGE, KERNEL, options=option)) == []
