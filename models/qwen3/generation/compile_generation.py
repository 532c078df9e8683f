"""Compiles the two steps of generation in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.abstract_arguments import abstract_arguments
from models.qwen3.generation.compiled_steps import CompiledGeneration, CompiledStep, StepOutputs
from models.qwen3.generation.decode_loop import decode_loop, prompt_step
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.kernels.all_layers.residency import why_not_resident
from models.qwen3.steps import Implementation, implementation_for, xla_options

# Cache and state, in both steps.
DONATED = (1, 2)


def compile_generation(
    config: Qwen3Config,
    sizes: GenerationSizes,
    device: jax.Device,
    *,
    hopper_kernels: bool = True,
    persistent_kernel: bool = True,
) -> CompiledGeneration:
    """Compiles both steps for `device`, in this process; allocates nothing there."""
    capability = getattr(device, "compute_capability", None)
    multiprocessors = getattr(device, "core_count", None)
    prompt_arguments, decode_arguments = abstract_arguments(config, sizes)
    persistent = persistent_kernel and why_not_resident(multiprocessors) is None

    def implementation(length: int) -> Implementation:
        uses_capability = persistent if length == 1 else hopper_kernels
        return implementation_for(
            config,
            platform=device.platform,
            batch=sizes.batch,
            length=length,
            cache_length=sizes.cache_length,
            compute_capability=capability if uses_capability else None,
            multiprocessors=multiprocessors,
        )

    for_prompts, for_decode = implementation(sizes.bucket), implementation(1)
    prompts = prompt_step(config, candidates=sizes.candidates, implementation=for_prompts)
    decode = decode_loop(
        config, steps=sizes.steps, candidates=sizes.candidates, implementation=for_decode
    )
    return CompiledGeneration(
        sizes,
        _compile(prompts, prompt_arguments, device, xla_options(for_prompts)),
        _compile(decode, decode_arguments, device, xla_options(for_decode)),
        {"prompts": for_prompts, "decode": for_decode},
    )


def _compile(
    fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    device: jax.Device,
    options: dict[str, bool],
) -> CompiledStep:
    sharding = jax.sharding.SingleDeviceSharding(device)
    on_device = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    lowered = jax.jit(fn, donate_argnums=DONATED).lower(*on_device)
    return _JustCompiled(lowered.compile(compiler_options=options))


@dataclass(frozen=True)
class _JustCompiled(CompiledStep):
    """A step that this process compiled."""

    compiled: jax.stages.Compiled

    @property
    def needed_bytes(self) -> int:
        memory: Any = self.compiled.memory_analysis()
        sizes = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
        total: int = sum(getattr(memory, size) for size in sizes) - memory.alias_size_in_bytes
        return total

    def __call__(self, params: Any, cache: Any, state: Any, *inputs: Any) -> StepOutputs:
        outputs: StepOutputs = self.compiled(params, cache, state, *inputs)
        return outputs
