"""A step that was built in advance, with arrays by path. Imports no jax.

The arrays that the executable was built for are compared with those of the model when it is read;
`xlapipe.load` compares those of every call with it: arguments in another order would give wrong
tokens without an error.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from models.qwen3.generation.compiled_steps import CompiledStep, StepOutputs
from models.qwen3.generation.step_arrays import (
    LENGTHS,
    TOKEN_IDS,
    TOKENS,
    ArrayTypes,
    check_types,
    output_path,
)
from xlapipe import LoadedStep


def prebuilt_step(step: LoadedStep, arguments: ArrayTypes, outputs: ArrayTypes) -> CompiledStep:
    """A step that was built in advance, and that returns what the steps of `decode_loop` do.

    Args:
      step: its executable, which may still be being loaded.
      arguments: what the step takes.
      outputs: what it returns.

    Raises:
      XlapipeError: the executable was built for other arrays.
    """
    check_types(step.folder, arguments, step.arguments)
    check_types(step.folder, outputs, step.outputs)
    return _Prebuilt(step)


@dataclass(frozen=True)
class _Prebuilt(CompiledStep):
    """A step whose executable was built in advance."""

    step: LoadedStep

    @property
    def needed_bytes(self) -> int:
        return self.step.needed_bytes

    @property
    def loading(self) -> "Future[Any]":
        return self.step.loading

    def __call__(self, params: Any, cache: Any, state: Any, *inputs: Any) -> StepOutputs:
        """As in `CompiledStep`; params, cache and state are arrays by path."""
        named = dict(zip((TOKEN_IDS, LENGTHS), inputs, strict=True)) if inputs else {}
        outputs = self.step.call_named({**params, **cache, **state, **named})
        return {
            "tokens": outputs[output_path(TOKENS)],
            "state": _passed_on("state", outputs),
            "cache": _passed_on("cache", outputs),
        }


def _passed_on(name: str, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs that are this argument of the next step, by the argument's paths."""
    prefix = output_path(name)
    return {
        name + path.removeprefix(prefix): array
        for path, array in outputs.items()
        if path.startswith(prefix)
    }
