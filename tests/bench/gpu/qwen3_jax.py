"""This repository's Qwen3: the programs that `models.qwen3.generate` runs on a GPU."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from qwen3_cases import DECODES, PREFILL, PROMPT, SLOTS, Decode
from timing import Timing, print_timings, timed

from models.qwen3.argument_bytes import cache_leaf_bytes, weight_bytes
from models.qwen3.config import QWEN3_0_6B
from models.qwen3.generation.decode_loop import decode_loop, prompt_step
from models.qwen3.generation.sampling_settings import SamplingSettings
from models.qwen3.generation.state import first_state
from models.qwen3.modules.cache import init_cache
from models.qwen3.steps import Implementation, abstract_model, implementation_for, xla_options

CONFIG = QWEN3_0_6B


def random_params() -> Any:
    leaves, structure = jax.tree.flatten(abstract_model(CONFIG)[1])
    key = jax.random.key(0)
    arrays = [
        (0.02 * jax.random.normal(jax.random.fold_in(key, n), leaf.shape, jnp.float32)).astype(
            leaf.dtype
        )
        + (leaf.ndim == 1)
        for n, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, [x.astype(CONFIG.dtype) for x in arrays])


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


def decode(case: Decode, params: Any, implementation: Implementation) -> Timing:
    state = first_state(SamplingSettings(greedy=True), (), batch=case.batch)
    state |= {"token_ids": np.zeros(case.batch, np.int32)}
    state |= {"positions": np.full(case.batch, case.position, np.int32)}
    step = jax.jit(
        decode_loop(CONFIG, steps=case.tokens, implementation=implementation), donate_argnums=(1, 2)
    )
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
    step = jax.jit(
        prompt_step(CONFIG, implementation=implementation),
        donate_argnums=(1, 2),
        compiler_options=xla_options(implementation),
    )
    state = first_state(SamplingSettings(greedy=True), (), batch=1)
    cache = init_cache(CONFIG, batch=1, cache_length=SLOTS)
    call = Repeated(step, params, cache, (state, ids, jnp.array([PROMPT], jnp.int32)))
    return timed(PREFILL, implementation, call, jax.block_until_ready)


def timings(weights: Any) -> Iterator[Timing]:
    for implementation in (default_implementation(1, PROMPT), "xla"):
        yield prefill(weights, implementation)
    for case in DECODES:
        by_xla = ("xla",) if case.position else ()
        for implementation in dict.fromkeys((default_implementation(case.batch, 1), *by_xla)):
            yield decode(case, weights, implementation)


if __name__ == "__main__":
    device = jax.devices("gpu")[0].device_kind
    print_timings(
        framework=f"jax {jax.__version__}", device=device, timings=timings(random_params())
    )
