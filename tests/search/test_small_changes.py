"""Constants as arguments, and updates in the dtype of what they are written into: equal results."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.search.test_forms import Written, recorded
from xlapipe.compile.lowering.chosen_policy import apply_policy, stop
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.compile.tuning import Tuned
from xlapipe.search.candidate import StepChange, changed_job
from xlapipe.search.choosing import forms
from xlapipe.search.choosing.forms import form_changes
from xlapipe.search.choosing.remedies import changes_of

pytestmark = pytest.mark.jax

CAPTURED = """
import jax, jax.numpy as jnp, numpy as np, xlapipe
table = jnp.asarray(np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32))
def step(x):
    return x @ table.T.astype(jnp.bfloat16).astype(jnp.float32)
x = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
workload = xlapipe.Workload(name="captured", fn=step, args=(x,))
"""


@pytest.fixture(autouse=True)
def undo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(forms, "_LEAST_BYTES", 1)
    yield
    stop()


@pytest.mark.slow
def test_captured_constants_are_arguments_or_are_not_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "captured_step.py").write_text(CAPTURED)
    monkeypatch.chdir(tmp_path)
    (job,) = jobs_of(["captured_step:workload"], CompileSettings(tuning=Tuned.NONE))
    written = compile_dump(job, None).dump
    own = {change.text.partition(":")[0]: change for change in changes_of(written, job)}
    as_arguments = own["captured constants as arguments"]
    (unfolded,) = [change for text, change in own.items() if "constant_folding" in text]
    assert "as arguments: 4.00 MiB at captured_step.py:5" in as_arguments.text
    assert "pass what the step captures at captured_step.py:5" in as_arguments.code

    def compiled(change: StepChange) -> Any:
        return compile_dump(changed_job(job, change), None).dump

    passed, kept = compiled(as_arguments), compiled(unfolded)
    size = 1024 * 1024 * 4
    assert written.plan.totals.constant_bytes >= size > passed.plan.totals.constant_bytes
    assert [leaf.size_bytes for leaf in passed.arguments] == [size, 64 * 1024 * 4]
    assert kept.plan.totals.constant_bytes >= size
    names = [sorted(i.opcode for i in p.plan.instructions.values()) for p in (written, kept)]
    assert names[0] != names[1]


def cached(cache: jax.Array, new: jax.Array, position: jax.Array) -> Any:
    """One token's keys, added in float32."""
    wide = jax.lax.dynamic_update_slice(cache.astype(jnp.float32), new, (0, position, 0))
    return wide.astype(cache.dtype)


def scattered(cache: jax.Array, new: jax.Array, position: jax.Array) -> Any:
    def layer(position: jax.Array, cache: jax.Array) -> Any:
        at = jnp.arange(len(cache))
        wide = cache.astype(jnp.float32).at[at, position].set(new[:, 0])
        return position, wide.astype(cache.dtype)

    return jax.lax.scan(layer, position, jnp.stack([cache, cache + 1]))[1]


def read_wide(cache: jax.Array, new: jax.Array, position: jax.Array) -> Any:
    """What is read of the wide cache is not rounded."""
    wide = jax.lax.dynamic_update_slice(cache.astype(jnp.float32), new, (0, position, 0))
    return wide.astype(cache.dtype), wide.sum()


def narrower(cache: jax.Array, new: jax.Array, position: jax.Array) -> Any:
    """A dtype that does not have all values of the other one."""
    own = jax.lax.dynamic_update_slice(
        cache.astype(jnp.float16), new.astype(jnp.float16), (0, position, 0)
    )
    return own.astype(cache.dtype)


@pytest.mark.parametrize(
    ("step", "count"), [(cached, 1), (scattered, 1), (read_wide, 0), (narrower, 0)]
)
def test_updates_in_the_dtype_of_a_cache_have_equal_bits(
    step: Callable[..., Any], count: int, tmp_path: Path
) -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    cache = jax.random.normal(keys[0], (4, 16, 8), jnp.bfloat16)
    args = cache, jax.random.normal(keys[1], (4, 1, 8)), jnp.int32(5)
    changes = [*form_changes(Written(), recorded(step, args, tmp_path))]  # type: ignore[arg-type]
    assert len(changes) == count
    for change in changes:
        assert "convert what is written to bfloat16" in change.code and change.policy is not None
        written = jax.jit(partial(step)).lower(*args)
        apply_policy(change.policy)
        changed = jax.jit(partial(step)).lower(*args)
        stop()
        assert "xf32>" in written.as_text()
        assert "4x16x8xf32>" not in changed.as_text()
        pairs = (jax.tree.leaves(form.compile()(*args)) for form in (written, changed))
        for a, b in zip(*pairs, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
