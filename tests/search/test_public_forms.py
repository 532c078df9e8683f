"""Ten public forms: what a person writes for less memory is equal to the step as written."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.steps.public_forms import FORMS, step

pytestmark = [pytest.mark.jax, pytest.mark.slow]

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", FORMS)
def test_forms_by_hand_are_equal(name: str) -> None:
    written = step(name, small=True)
    leaves, tree = jax.tree.flatten(written.args)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    made = [
        jax.random.randint(key, leaf.shape, 0, 64)
        if jnp.issubdtype(leaf.dtype, jnp.integer)
        else (jax.random.uniform(key, leaf.shape) - 0.4).astype(leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    args = jax.tree.unflatten(tree, made)
    expected = jax.tree.leaves(jax.jit(written.fn)(*args))
    for form in FORMS[name].by_hand:
        own = step(name, form, small=True)
        for a, b in zip(expected, jax.tree.leaves(jax.jit(partial(own.fn))(*args)), strict=True):
            assert a.dtype == b.dtype
            tolerance = TOLERANCE * np.max(np.abs(a), initial=1e-30)
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)
