"""The two compiled steps of generation, compiled in this process or built in advance.

Both kinds are called with pytrees on the device, and report the memory that they need before
anything is allocated there. Steps are compiled in `compile_generation`: this module imports
neither flax nor the model, so that executables that were built in advance are loaded without them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.state import abstract_state
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.params import abstract_params
from xlapipe.dumps.manifest import Manifest
from xlapipe.errors import XlapipeError
from xlapipe.running.executable import BuiltExecutable, LoadedExecutable


class CompiledStep(ABC):
    """A compiled step."""

    @property
    @abstractmethod
    def needed_bytes(self) -> int:
        """Arguments, outputs and temporary memory of a call, as XLA reports them."""

    @property
    def loading(self) -> "Future[LoadedExecutable] | None":
        """The executable while it is being loaded; None if it was compiled in this process."""
        return None

    @abstractmethod
    def __call__(self, *arguments: Any) -> Any:
        """Starts the step and returns its outputs, on the device. Donated arguments are deleted."""


@dataclass(frozen=True)
class CompiledGeneration:
    """The two steps of generation.

    Attributes:
      sizes: what both are compiled for.
      prompts: `decode_loop.prompt_step`: from prompts to first tokens.
      decode: `decode_loop.decode_loop`: the following tokens, `sizes.steps` for each call.
      implementations: `steps.Implementation` of both, by name; None if built in advance
        before the index recorded them.
    """

    sizes: GenerationSizes
    prompts: CompiledStep
    decode: CompiledStep
    implementations: Mapping[str, str] | None = None

    @property
    def needed_bytes(self) -> int:
        """The larger of the two steps' needs; weights and cache are arguments of both."""
        return max(self.prompts.needed_bytes, self.decode.needed_bytes)

    def when_loaded(self, callback: Callable[[], Any]) -> None:
        """Calls `callback` whenever an executable that was built in advance is loaded."""
        for step in (self.prompts, self.decode):
            if step.loading is not None:
                step.loading.add_done_callback(lambda _: callback())

    def check_loaded(self, *, wait: bool) -> None:
        """Raises the error of an executable that could not be loaded.

        Args:
          wait: wait until both are loaded; otherwise, only check those that are.

        Raises:
          XlapipeError: this jaxlib cannot load an executable.
        """
        for step in (self.prompts, self.decode):
            if step.loading is not None and (wait or step.loading.done()):
                step.loading.result()


def abstract_arguments(
    config: Qwen3Config, sizes: GenerationSizes
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of the arguments of `prompt_step` and of `decode_loop`."""
    params = abstract_params(config)
    cache_shape = config.cache_shape(batch=sizes.batch, cache_length=sizes.cache_length)
    cache = [
        {name: jax.ShapeDtypeStruct(cache_shape, config.dtype) for name in ("k", "v")}
        for _ in range(config.num_hidden_layers)
    ]
    lengths = jax.ShapeDtypeStruct((sizes.batch,), "int32")
    prompt_state, decode_state = (
        abstract_state(batch=sizes.batch, candidates=sizes.candidates, whole=whole)
        for whole in (False, True)
    )
    token_ids = jax.ShapeDtypeStruct((sizes.batch, sizes.bucket), "int32")
    return (params, cache, prompt_state, token_ids, lengths), (params, cache, decode_state)


def prebuilt_step(
    built: BuiltExecutable, arguments: Sequence[Any], loading: "Future[LoadedExecutable]"
) -> CompiledStep:
    """A step that was built in advance, and that returns what the steps of `decode_loop` do.

    Args:
      built: the executable, in host memory.
      arguments: the step's arguments, abstract or not.
      loading: the executable on the device, when it is loaded.

    Raises:
      XlapipeError: the executable was built for other shapes or dtypes.
    """
    manifest = built.manifest
    given = [(tuple(x.shape), str(x.dtype)) for x in jax.tree.leaves(arguments)]
    expected = [(leaf.shape, leaf.dtype) for leaf in manifest.arguments]
    if given != expected:
        differing = [
            leaf.path
            for leaf, shape_and_dtype in zip(manifest.arguments, given, strict=False)
            if (leaf.shape, leaf.dtype) != shape_and_dtype
        ]
        raise XlapipeError(
            f"{built.path}: built for {len(expected)} arrays, given {len(given)}; shapes or "
            f"dtypes that differ: {', '.join(differing[:3]) or 'none'}; fix: build it again for "
            "this model"
        )
    _, cache, state, *_ = arguments
    output_state = {**state, "token_ids": 0, "positions": 0}
    outputs = {"tokens": 0, "state": output_state, "cache": cache}
    return _Prebuilt(manifest, loading, jax.tree.structure(outputs))


@dataclass(frozen=True)
class _Prebuilt(CompiledStep):
    """A step whose executable was built in advance."""

    manifest: Manifest
    executable: "Future[LoadedExecutable]"
    output_structure: Any

    @property
    def needed_bytes(self) -> int:
        analysis = self.manifest.memory_analysis
        total = analysis["argument_bytes"] + analysis["output_bytes"] + analysis["temp_bytes"]
        return total - analysis["alias_bytes"]

    @property
    def loading(self) -> "Future[LoadedExecutable] | None":
        return self.executable

    def __call__(self, *arguments: Any) -> Any:
        leaves = self.executable.result().call(jax.tree.leaves(arguments))
        return jax.tree.unflatten(self.output_structure, leaves)
