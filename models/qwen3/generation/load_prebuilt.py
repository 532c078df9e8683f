"""The steps of executables that were built in advance and are being loaded."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax

from models.qwen3.generation.abstract_arguments import abstract_arguments
from models.qwen3.generation.compiled_steps import CompiledGeneration, CompiledStep, StepOutputs
from models.qwen3.generation.jax_device import JaxDevice
from models.qwen3.generation.prebuilt_index import PrebuiltExecutables
from models.qwen3.generation.start_loading import LoadingSteps
from xlapipe import LoadedStep, XlapipeError

# Shape, and name of the dtype, by path as manifests have it: `cache[3]['k']`, `out['tokens']`.
ArrayTypes: TypeAlias = dict[str, tuple[tuple[int, ...], str]]

_ARGUMENTS = ("params", "cache", "state", "token_ids", "lengths")
_NAMED = 3


def load_prebuilt(
    prebuilt: PrebuiltExecutables, longest: int, steps: LoadingSteps
) -> tuple[CompiledGeneration, JaxDevice]:
    """The steps for prompts of up to `longest` tokens, and the device that they are loaded on.

    `CompiledGeneration.check_loaded` reports errors of loading.

    Raises:
      XlapipeError: an executable is for another model.
    """
    sizes = prebuilt.sizes_for(longest)
    of_prompts, of_decode = abstract_arguments(prebuilt.config, sizes)
    _, cache, state = of_decode
    both: list[CompiledStep] = []
    for step, arguments, count in (
        (steps.prompts, of_prompts, 1),
        (steps.decode, of_decode, sizes.steps),
    ):
        tokens = jax.ShapeDtypeStruct((sizes.batch, count), "int32")
        outputs = {"tokens": tokens, "state": state, "cache": cache}
        both.append(prebuilt_step(step, arguments, outputs))
    prompts, decode = both
    implementations = prebuilt.implementations_for(longest)
    compiled = CompiledGeneration(sizes, prompts, decode, implementations)
    return compiled, JaxDevice(steps.prompts.device)


def prebuilt_step(step: LoadedStep, arguments: tuple[Any, ...], outputs: Any) -> CompiledStep:
    """A step that was built in advance.

    The arrays of every call are compared with the executable's by `xlapipe.load`.

    Args:
      arguments, outputs: shapes of what the step takes and returns, as trees.

    Raises:
      XlapipeError: the executable was built for other arrays.
    """
    returned = types_of({"out": outputs})
    named = dict(zip(_ARGUMENTS, arguments, strict=False))
    _check_types(step.folder, types_of(named), step.arguments)
    _check_types(step.folder, returned, step.outputs)
    return _Prebuilt(step, tuple(returned), jax.tree.structure(outputs))


def types_of(trees: Mapping[str, Any]) -> ArrayTypes:
    """Shape and dtype of each leaf, by path."""
    return {
        name + jax.tree_util.keystr(path): (tuple(leaf.shape), leaf.dtype.name)
        for name, tree in trees.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@dataclass(frozen=True)
class _Prebuilt(CompiledStep):
    """A step whose executable was built in advance.

    Attributes:
      paths: of the outputs, as leaves of `structure`.
    """

    step: LoadedStep
    paths: tuple[str, ...]
    structure: Any

    @property
    def needed_bytes(self) -> int:
        return self.step.needed_bytes

    @property
    def loading(self) -> "Future[Any]":
        return self.step.loading

    def __call__(self, params: Any, cache: Any, state: Any, *inputs: Any) -> StepOutputs:
        arrays = self.step(params, cache, state, *inputs)
        by_path = dict(zip(self.step.outputs, arrays, strict=True))
        outputs: StepOutputs
        outputs = jax.tree.unflatten(self.structure, [by_path[path] for path in self.paths])
        return outputs


def _check_types(folder: Path, expected: ArrayTypes, built_for: ArrayTypes) -> None:
    """Raises XlapipeError where an executable takes or returns other arrays than are expected."""
    problems = [
        *(f"{path} is missing" for path in expected if path not in built_for),
        *(f"{path} is unknown" for path in built_for if path not in expected),
        *(
            f"{path} is {_text(*built_for[path])}, expected {_text(*expected[path])}"
            for path in expected
            if path in built_for and built_for[path] != expected[path]
        ),
    ]
    if problems:
        more = f", and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise XlapipeError(
            f"{folder}: not built for this model: {'; '.join(problems[:_NAMED])}{more}; fix: build "
            "it again for this model"
        )


def _text(shape: tuple[int, ...], dtype: str) -> str:
    """E.g. `bfloat16[8, 128]`."""
    return f"{dtype}{list(shape)}"
