"""This repository's Qwen3: the programs that `models.qwen3.generate` runs on a GPU.

Arguments select implementations: `default`, what the command chooses, `xla`, and `triton`, kernels
that the command may not choose; without any, the first two.
"""

import functools
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from qwen3_cases import CONFIG, DECODES, PREFILL, PREFILLS, PROMPT, SLOTS, Decode
from timing import Timing, print_timings, timed

from models.qwen3.argument_bytes import cache_leaf_bytes, weight_bytes
from models.qwen3.generation.abstract_arguments import abstract_arguments
from models.qwen3.generation.decode_loop import decode_loop, prompt_step
from models.qwen3.generation.sampling_settings import SamplingSettings
from models.qwen3.generation.state import first_state
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.modules.cache import init_cache
from models.qwen3.steps import Implementation, abstract_model, implementation_for, xla_options

NAMES = ("default", "xla", "triton")


def random_params() -> Any:
    """Weights of standard deviation 0.02, and gains around 1; without float32 copies of them."""

    @partial(jax.jit, static_argnums=1)
    def random(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        values = 0.02 * jax.random.normal(key, shape, jnp.float32)
        return (values.astype(CONFIG.dtype) + (len(shape) == 1)).astype(CONFIG.dtype)

    leaves, structure = jax.tree.flatten(abstract_model(CONFIG)[1])
    key = jax.random.key(0)
    arrays = [random(jax.random.fold_in(key, n), leaf.shape) for n, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, arrays)


def default_implementation(batch: int, length: int) -> Implementation:
    device = jax.devices("gpu")[0]
    return implementation_for(
        CONFIG,
        platform="gpu",
        batch=batch,
        length=length,
        cache_length=SLOTS,
        compute_capability=device.compute_capability,
        multiprocessors=device.core_count,
    )


@dataclass
class Repeated:
    """A step that is called again with the cache that it returned, which is donated."""

    step: Any
    params: Any
    cache: Any
    rest: tuple[Any, ...]

    def __call__(self, number: int) -> Any:
        # The state is donated too. A new one for each call resets the positions.
        state = jax.tree.map(jnp.asarray, self.rest[0])
        out = self.step(self.params, self.cache, state, *self.rest[1:])
        self.cache = out["cache"]
        return out["tokens"]


@dataclass(frozen=True)
class Program:
    """A step for `batch` sequences: `tokens` tokens of each, or its prompt if `tokens` is 0."""

    batch: int
    tokens: int
    implementation: Implementation


@functools.cache
def lowered(program: Program) -> Any:
    """The step, traced for the sizes of the cases; cache and state are donated."""
    sizes = GenerationSizes(
        batch=program.batch, cache_length=SLOTS, bucket=PROMPT, steps=program.tokens
    )
    for_prompts, for_decode = abstract_arguments(CONFIG, sizes)
    implementation = program.implementation
    step: Callable[..., Any] = (
        decode_loop(CONFIG, steps=program.tokens, implementation=implementation)
        if program.tokens
        else prompt_step(CONFIG, implementation=implementation)
    )
    arguments = for_decode if program.tokens else for_prompts
    return jax.jit(step, donate_argnums=(1, 2)).lower(*arguments)


@functools.cache
def compiled(program: Program) -> Any:
    return lowered(program).compile(compiler_options=xla_options(program.implementation))


def decode(case: Decode, params: Any, implementation: Implementation) -> Timing:
    state = first_state(SamplingSettings(greedy=True), (), batch=case.batch)
    state |= {"token_ids": np.zeros(case.batch, np.int32)}
    state |= {"positions": np.full(case.batch, case.position, np.int32)}
    step = compiled(Program(case.batch, case.tokens, implementation))
    cache = jax.tree.map(
        lambda leaf: leaf + 0.1, init_cache(CONFIG, batch=case.batch, cache_length=SLOTS)
    )
    leaf = cache_leaf_bytes(CONFIG, batch=case.batch, cache_length=case.position + case.tokens // 2)
    return timed(
        str(case),
        implementation,
        Repeated(step, params, cache, (state,)),
        jax.block_until_ready,
        parts=case.tokens,
        least_bytes=weight_bytes(CONFIG) + 2 * CONFIG.num_hidden_layers * leaf,
    )


def prefill(params: Any, implementation: Implementation) -> Timing:
    ids = jax.random.randint(jax.random.key(1), (1, PROMPT), 0, CONFIG.vocab_size, jnp.int32)
    step = compiled(Program(1, 0, implementation))
    state = first_state(SamplingSettings(greedy=True), (), batch=1)
    cache = init_cache(CONFIG, batch=1, cache_length=SLOTS)
    call = Repeated(step, params, cache, (state, ids, jnp.array([PROMPT], jnp.int32)))
    return timed(PREFILL, implementation, call, jax.block_until_ready)


def timings(names: Collection[str]) -> Iterator[Timing]:
    """Compiles the programs with kernels at the same time, before the side's turn.

    Those of XLA alone are compiled in its turn: XLA tunes their gemms on the GPU, which must be
    quiet.
    """
    cases: list[tuple[Decode | None, Implementation]] = []
    for case in (*(None for _ in PREFILLS), *DECODES):
        batch, length = (1, PROMPT) if case is None else (case.batch, 1)
        default = default_implementation(batch, length)
        chosen: dict[str, Implementation] = {"default": default, "xla": "xla", "triton": "triton"}
        cases += [(case, chosen[name]) for name in NAMES if name in names]
    cases = sorted(dict.fromkeys(cases), key=lambda it: it[1] == "xla")
    programs = {
        Program(case.batch, case.tokens, implementation) if case else Program(1, 0, implementation)
        for case, implementation in cases
        if implementation != "xla"
    }
    for program in programs:
        lowered(program)
    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, programs))
    # Not before: together the sides of all sizes would not fit the GPU.
    params = random_params()
    for case, implementation in cases:
        if case is None:
            yield prefill(params, implementation)
        else:
            yield decode(case, params, implementation)


if __name__ == "__main__":
    selected = sys.argv[1:] or NAMES[:2]
    if unknown := set(selected) - set(NAMES):
        sys.exit(f"expected {', '.join(NAMES)}; found {', '.join(sorted(unknown))}")
    device = jax.devices("gpu")[0].device_kind
    print_timings(
        framework=f"jax {jax.__version__}",
        device=device,
        timings=timings(selected),
    )
