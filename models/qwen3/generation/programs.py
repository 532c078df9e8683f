"""The two programs of a generation, compiled in this process or built ahead.

Both kinds are called alike, with pytrees on the device, and tell what memory they need before
anything is put there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.decode_loop import abstract_state, decode_loop, prompt_step
from models.qwen3.generation.sizes import GenerationSizes
from models.qwen3.modules.cache import init_cache
from models.qwen3.steps import Implementation, abstract_model, implementation_for, xla_options
from xlapipe.errors import XlapipeError
from xlapipe.running.executable import LoadedExecutable

# Cache and state, of both programs.
DONATED = (1, 2)


class Program(ABC):
    """A compiled step."""

    @property
    @abstractmethod
    def needed_bytes(self) -> int:
        """Arguments, outputs and temporary memory of a call, by XLA's own account."""

    @abstractmethod
    def __call__(self, *arguments: Any) -> Any:
        """The outputs, on the device and not waited for; donated arguments are gone."""


@dataclass(frozen=True)
class Programs:
    """What generates: prompts to first tokens, and the loop behind them."""

    sizes: GenerationSizes
    prompts: Program
    decode: Program

    @property
    def needed_bytes(self) -> int:
        """Of whichever needs more; weights and cache are arguments of both."""
        return max(self.prompts.needed_bytes, self.decode.needed_bytes)


def abstract_arguments(
    config: Qwen3Config, sizes: GenerationSizes
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of the arguments of `prompt_step` and of `decode_loop`."""
    params = abstract_model(config)[1]
    cache = jax.eval_shape(
        lambda: init_cache(config, batch=sizes.batch, cache_length=sizes.cache_length)
    )
    per_sequence = jax.ShapeDtypeStruct((sizes.batch,), "int32")
    first, whole = (
        abstract_state(batch=sizes.batch, candidates=sizes.candidates, whole=whole)
        for whole in (False, True)
    )
    token_ids = jax.ShapeDtypeStruct((sizes.batch, sizes.bucket), "int32")
    return (params, cache, first, token_ids, per_sequence), (params, cache, whole)


def compiled_here(
    config: Qwen3Config,
    sizes: GenerationSizes,
    device: jax.Device,
    *,
    hopper_kernels: bool = True,
) -> Programs:
    """Compiles both programs for `device`; nothing is allocated.

    Args:
      hopper_kernels: take those that are for Hopper alone, where the device is one.
    """
    capability = getattr(device, "compute_capability", None)
    prompt_arguments, decode_arguments = abstract_arguments(config, sizes)

    def implementation(length: int) -> Implementation:
        return implementation_for(
            config,
            platform=device.platform,
            batch=sizes.batch,
            length=length,
            cache_length=sizes.cache_length,
            compute_capability=capability if hopper_kernels else None,
        )

    chosen = {length: implementation(length) for length in (sizes.bucket, 1)}
    prompts = prompt_step(config, candidates=sizes.candidates, implementation=chosen[sizes.bucket])
    decode = decode_loop(
        config, steps=sizes.steps, candidates=sizes.candidates, implementation=chosen[1]
    )
    return Programs(
        sizes,
        _compile(prompts, prompt_arguments, device, xla_options(chosen[sizes.bucket])),
        _compile(decode, decode_arguments, device, xla_options(chosen[1])),
    )


def _compile(
    fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    device: jax.Device,
    options: dict[str, bool],
) -> Program:
    sharding = jax.sharding.SingleDeviceSharding(device)
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    lowered = jax.jit(fn, donate_argnums=DONATED).lower(*placed)
    return _CompiledHere(lowered.compile(compiler_options=options))


@dataclass(frozen=True)
class _CompiledHere(Program):
    compiled: jax.stages.Compiled

    @property
    def needed_bytes(self) -> int:
        memory: Any = self.compiled.memory_analysis()
        sizes = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
        total: int = sum(getattr(memory, size) for size in sizes) - memory.alias_size_in_bytes
        return total

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)


def loaded(executable: LoadedExecutable, arguments: Sequence[Any]) -> Program:
    """A program that was built ahead.

    Args:
      arguments: what it will be called with, abstract or not.

    Raises:
      XlapipeError: it was built for other shapes or dtypes.
    """
    manifest = executable.manifest
    given = [(tuple(x.shape), str(x.dtype)) for x in jax.tree.leaves(arguments)]
    built = [(leaf.shape, leaf.dtype) for leaf in manifest.arguments]
    if given != built:
        differing = [
            leaf.path
            for leaf, one in zip(manifest.arguments, given, strict=False)
            if (leaf.shape, leaf.dtype) != one
        ]
        raise XlapipeError(
            f"{executable.path}: built for {len(built)} arrays, here are {len(given)}, and "
            f"{', '.join(differing[:3]) or 'none'} differ; build it again for this model"
        )
    _, cache, state, *_ = arguments
    whole = {**state, "token_ids": 0, "positions": 0}
    return _Loaded(executable, jax.tree.structure({"tokens": 0, "state": whole, "cache": cache}))


@dataclass(frozen=True)
class _Loaded(Program):
    executable: LoadedExecutable
    outputs: Any

    @property
    def needed_bytes(self) -> int:
        analysis = self.executable.manifest.memory_analysis
        total = analysis["argument_bytes"] + analysis["output_bytes"] + analysis["temp_bytes"]
        return total - analysis["alias_bytes"]

    def __call__(self, *arguments: Any) -> Any:
        leaves = self.executable.call(jax.tree.leaves(arguments))
        return jax.tree.unflatten(self.outputs, leaves)
