"""Tokens and logits of Qwen3's decode steps: the kernels, XLA alone, float32.

    python tests/gpu/qwen3_batch_decode.py OUT.json
    python tests/gpu/qwen3_batch_decode.py OUT.json SIZE LAYERS [BATCH]

Needs a GPU. The first form compares several sequences of 0.6B, the second one sequence of another
size, or BATCH of them, with fewer layers than the model has, so that its float32 weights fit. All
three decode the same tokens, XLA's greedy ones, with the same random weights and the same caches:
empty ones, and full ones with random keys and values, where some of several sequences end
meanwhile. Float32 is XLA's with exact products. Writes relative errors of the logits, differences
between tokens, and whether repeated launches are bit-equal.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.qwen3.config import CONFIGS, QWEN3_0_6B, Qwen3Config
from models.qwen3.modules.cache import Cache, init_cache
from models.qwen3.params import abstract_params
from models.qwen3.steps import Implementation, decode_step

# Repeated launches, of several sequences and of one.
LAUNCHES = 200
LAUNCHES_OF_ONE = 1000
FLOAT32 = "float32"
_TRITON: Implementation = "triton"
_PERSISTENT: Implementation = "persistent"
# Steps between waits for the device.
WAIT_EVERY = 32


@dataclass(frozen=True)
class Case:
    """`steps` steps of `batch` sequences from empty or full caches of `slots` slots."""

    batch: int
    full: bool
    steps: int
    slots: int = 2048

    @property
    def launches(self) -> int:
        return LAUNCHES_OF_ONE if self.batch == 1 else LAUNCHES

    @property
    def positions(self) -> jax.Array:
        """First positions. With full caches, the first sequence ends after 40 steps."""
        numbers = jnp.arange(self.batch, dtype=jnp.int32)
        return self.slots - 40 - 7 * numbers if self.full else 0 * numbers


CASES = (
    Case(32, True, 64),
    Case(8, False, 512),
    Case(2, True, 128),
    Case(8, True, 64),
    Case(2, False, 256),
    Case(32, False, 128),
)
CASES_OF_ONE = (Case(1, False, 128), Case(1, True, 32))
# Steps of several sequences of another size than 0.6B.
STEPS = 32


def random_params(config: Qwen3Config) -> Any:
    """Weights of standard deviation 0.02, and gains around 1."""
    leaves, structure = jax.tree.flatten(abstract_params(config))
    arrays = [
        0.02 * jax.random.normal(jax.random.key(number), leaf.shape) + (leaf.ndim == 1)
        for number, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, [x.astype(config.dtype) for x in arrays])


def caches(config: Qwen3Config, case: Case, dtype: str) -> Cache:
    empty = init_cache(replace(config, dtype=dtype), batch=case.batch, cache_length=case.slots)
    if not case.full:
        return empty
    leaves, structure = jax.tree.flatten(empty)
    # Rounded as in the model, so that all caches have the same values.
    filled = [
        jax.random.normal(jax.random.key(number), leaf.shape, config.dtype).astype(dtype)
        for number, leaf in enumerate(leaves)
    ]
    cache: Cache = jax.tree.unflatten(structure, filled)
    return cache


def compiled(config: Qwen3Config, case: Case, implementation: Implementation, dtype: str) -> Any:
    config = replace(config, dtype=dtype)
    vector = jax.ShapeDtypeStruct((case.batch,), jnp.int32)
    cache = jax.eval_shape(lambda: init_cache(config, batch=case.batch, cache_length=case.slots))
    step = jax.jit(decode_step(config, implementation=implementation), donate_argnums=1)
    # Applies to float32 only.
    with jax.default_matmul_precision("highest"):
        return step.lower(abstract_params(config), cache, vector, vector).compile()


@jax.jit
def comparison(kernels: jax.Array, by_xla: jax.Array, exact: jax.Array) -> dict[str, jax.Array]:
    """Of one step: squared norms, numbers of different tokens, and the most distant different ones.

    `gap` is the difference in the exact logits of tokens that differ, and `gap_over_errors` that
    over the sum of both sides' largest errors in the row: rounding explains values up to 1.
    """

    def squares(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(x))

    def largest(x: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(x), axis=-1)

    ours, theirs, right = (logits.argmax(-1) for logits in (kernels, by_xla, exact))
    of_ours, of_theirs = (
        jnp.take_along_axis(exact, tokens[:, None], axis=1)[:, 0] for tokens in (ours, theirs)
    )
    gap = jnp.abs(of_ours - of_theirs)
    return {
        "kernels": squares(kernels - exact),
        "xla": squares(by_xla - exact),
        "difference": squares(kernels - by_xla),
        "exact": squares(exact),
        "kernels_differ_from_xla": jnp.sum(ours != theirs),
        "kernels_differ_from_float32": jnp.sum(ours != right),
        "xla_differs_from_float32": jnp.sum(theirs != right),
        "gap": gap.max(),
        "gap_over_errors": (gap / (largest(kernels - exact) + largest(by_xla - exact))).max(),
        "finite": jnp.isfinite(kernels).all(),
    }


def forced_steps(
    sides: list[tuple[Any, Any]], caches_of_sides: list[Cache], case: Case
) -> Iterator[dict[str, jax.Array]]:
    """Runs all sides on XLA's tokens; replaces the caches."""
    ids, positions = jnp.arange(case.batch, dtype=jnp.int32) * 37 + 5, case.positions
    for number in range(case.steps):
        logits = []
        for side, (step, params) in enumerate(sides):
            out = step(params, caches_of_sides[side], ids, positions)
            caches_of_sides[side] = out["cache"]
            logits.append(out["logits"])
        yield comparison(*logits)
        ids, positions = logits[1].argmax(-1).astype(jnp.int32), positions + 1
        if number % WAIT_EVERY == WAIT_EVERY - 1:
            jax.block_until_ready(ids)


def launches_are_equal(side: tuple[Any, Any], cache: Cache, case: Case) -> bool:
    """Whether repeated launches at one position give equal bits: they write the same values."""
    step, params = side
    ids = jnp.arange(case.batch, dtype=jnp.int32)
    first = step(params, cache, ids, case.positions)
    cache, equal = first["cache"], jnp.array(True)
    for _ in range(case.launches):
        out = step(params, cache, ids, case.positions)
        cache = out["cache"]
        equal &= jnp.array_equal(out["logits"], first["logits"])
    return bool(equal)


def compared(case: Case, config: Qwen3Config, steps: list[Any], params: list[Any]) -> Any:
    """The record of a case; `steps` and `params` are those of the kernels, XLA and float32."""
    sides = list(zip(steps, params, strict=True))
    of_sides = [caches(config, case, dtype) for dtype in (config.dtype, config.dtype, FLOAT32)]
    by_step = jax.device_get(list(forced_steps(sides, of_sides, case)))
    sums = {name: np.sum([step[name] for step in by_step]) for name in by_step[0]}
    exact = sums["exact"]
    return {
        "batch": case.batch,
        "full": case.full,
        "steps": case.steps,
        "tokens": case.batch * case.steps,
        **{
            f"relative_error_of_{side}": float(np.sqrt(sums[side] / exact))
            for side in ("kernels", "xla", "difference")
        },
        **{name: int(total) for name, total in sums.items() if "_from_" in name},
        **{name: float(max(step[name] for step in by_step)) for name in ("gap", "gap_over_errors")},
        "finite": all(bool(step["finite"]) for step in by_step),
        "bit_equal_launches": case.launches
        if launches_are_equal(sides[0], of_sides[0], case)
        else 0,
    }


def record(
    config: Qwen3Config, cases: tuple[Case, ...], kernels: Implementation
) -> list[dict[str, Any]]:
    """Compares all cases. Compiles in threads."""
    shapes = list({(case.batch, case.slots): case for case in cases}.values())
    programs: tuple[tuple[Implementation, str], ...] = (
        (kernels, config.dtype),
        ("xla", config.dtype),
        ("xla", FLOAT32),
    )
    with ThreadPoolExecutor(8) as pool:
        steps = {
            (case.batch, case.slots): [
                pool.submit(compiled, config, case, *program) for program in programs
            ]
            for case in shapes
        }
        params = random_params(config)
        of_sides = [params, params, jax.tree.map(lambda x: x.astype(FLOAT32), params)]
        return [
            compared(
                case, config, [step.result() for step in steps[case.batch, case.slots]], of_sides
            )
            for case in cases
        ]


def main(arguments: list[str]) -> None:
    if len(arguments) not in (1, 3, 4):
        sys.exit(__doc__)
    out, *chosen = arguments
    config, kernels = QWEN3_0_6B, _TRITON
    cases: tuple[Case, ...] = CASES
    if chosen:
        config = replace(CONFIGS[chosen[0]], num_hidden_layers=int(chosen[1]))
        if len(chosen) == 3:
            cases = tuple(Case(int(chosen[2]), full, STEPS) for full in (False, True))
        else:
            cases, kernels = CASES_OF_ONE, _PERSISTENT
    (device,) = jax.devices()[:1]
    results = {
        "command": " ".join(["python tests/gpu/qwen3_batch_decode.py OUT.json", *chosen]),
        "device": device.device_kind,
        "jax": jax.__version__,
        "cases": record(config, cases, kernels),
    }
    text = json.dumps(results, indent=1)
    Path(out).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
