"""The two compiled steps of generation, compiled in this process or built in advance.

Both kinds are called with arrays on the device, and report the memory that they need before
anything is allocated there: `compile_generation` and `load_prebuilt` make them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypedDict

from models.qwen3.generation.static_sizes import GenerationSizes


class StepOutputs(TypedDict):
    """What a step returns: arrays on the device.

    `tokens` is s32[B, steps], and converts to NumPy, which waits for it. `state` and `cache` are
    arguments of the next step.
    """

    tokens: Any
    state: Any
    cache: Any


class CompiledStep(ABC):
    """A compiled step."""

    @property
    @abstractmethod
    def needed_bytes(self) -> int:
        """Arguments, outputs and temporary memory of a call, as XLA reports them."""

    @property
    def loading(self) -> "Future[Any] | None":
        """The executable while it is being loaded; None if it was compiled in this process."""
        return None

    @abstractmethod
    def __call__(self, params: Any, cache: Any, state: Any, *inputs: Any) -> StepOutputs:
        """Starts the step and returns its outputs. Cache and state are donated."""


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

        Raises:
          XlapipeError: this jaxlib cannot load an executable.
        """
        for step in (self.prompts, self.decode):
            if step.loading is not None and (wait or step.loading.done()):
                step.loading.result()
