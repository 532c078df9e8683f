"""The two compiled steps of generation, compiled in this process or built in advance.

Both kinds are called with arrays on the device, and report the memory that they need before
anything is allocated there. `compile_generation` compiles them through jax, `prebuilt_step` runs
executables without it: this module imports no jax.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypedDict, runtime_checkable

import numpy as np
import numpy.typing as npt

from models.qwen3.config import Qwen3Config
from models.qwen3.generation.static_sizes import GenerationSizes

# Called with the path of each leaf of the weights that is on the device, and its stored bytes.
OnLeaf: TypeAlias = Callable[[str, int], None]


class StepOutputs(TypedDict):
    """What a step returns: arrays on the device.

    `tokens` is s32[B, steps], and converts to NumPy, which waits for it. `state` and `cache` are
    arguments of the next step.
    """

    tokens: Any
    state: Any
    cache: Any


@runtime_checkable
class StepDevice(Protocol):
    """A device that steps run on. Puts their arguments there, in the form that they take."""

    @property
    def platform(self) -> str:
        """`gpu` or `cpu`."""

    @property
    def device_kind(self) -> str:
        """Its name, e.g. `NVIDIA H200`."""

    def memory_stats(self) -> Mapping[str, int] | None:
        """Bytes in use, their peak and limit, by jax's names; None if not reported."""

    def put(
        self, state: Any, token_ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
    ) -> tuple[Any, Any, Any]:
        """The state of a batch and its prompts."""

    def empty_cache(self, config: Qwen3Config, sizes: GenerationSizes) -> Any:
        """A zeroed cache."""

    def load_params(self, checkpoint: Path, config: Qwen3Config, on_leaf: OnLeaf) -> Any:
        """The weights of a checkpoint.

        Raises:
          CheckpointError: the checkpoint is damaged, or does not match `config`.
        """


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
        """Starts the step and returns its outputs. Cache and state are donated.

        Args:
          inputs: token ids and lengths of prompts, for the step that takes them.
        """


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
