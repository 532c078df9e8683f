"""A step that was built in advance: its arguments are matched by path. Imports no jax.

The manifest of an executable holds the path, shape, dtype and position of each argument and output.
They are compared with those of the model when the executable is read, and the arrays of every call
with them again: arguments in another order would give wrong tokens without an error.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.qwen3.generation.compiled_steps import CompiledStep, StepOutputs
from models.qwen3.generation.device_protocols import ArrayType, DeviceExecutable
from models.qwen3.generation.step_arrays import (
    LENGTHS,
    TOKEN_IDS,
    TOKENS,
    ArrayTypes,
    check_leaves,
    described,
    output_path,
    position,
)
from xlapipe import XlapipeError
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf
from xlapipe.running.built_executable import BuiltExecutable


def prebuilt_step(
    built: BuiltExecutable,
    arguments: ArrayTypes,
    outputs: ArrayTypes,
    loading: "Future[DeviceExecutable]",
) -> CompiledStep:
    """A step that was built in advance, and that returns what the steps of `decode_loop` do.

    Args:
      built: the executable, in host memory.
      arguments: what the step takes.
      outputs: what it returns.
      loading: the executable on the device, when it is loaded.

    Raises:
      XlapipeError: the executable was built for other arrays.
    """
    manifest = built.manifest
    check_leaves(built.path, arguments, manifest.arguments)
    check_leaves(built.path, outputs, manifest.outputs)
    return _Prebuilt(
        built.path,
        manifest.memory_analysis,
        loading,
        _in_order(manifest.arguments),
        _in_order(manifest.outputs),
        frozenset(arguments),
    )


@dataclass(frozen=True)
class _Prebuilt(CompiledStep):
    """A step whose executable was built in advance.

    Attributes:
      parameters: path and type of each parameter of the program, in its order.
      results: the same of its outputs.
      paths: of all arguments, also of those that the program does not use.
    """

    path: Path
    memory_analysis: Mapping[str, int]
    executable: "Future[DeviceExecutable]"
    parameters: tuple[tuple[str, ArrayType], ...]
    results: tuple[tuple[str, ArrayType], ...]
    paths: frozenset[str]

    @property
    def needed_bytes(self) -> int:
        analysis = self.memory_analysis
        total = analysis["argument_bytes"] + analysis["output_bytes"] + analysis["temp_bytes"]
        return total - analysis["alias_bytes"]

    @property
    def loading(self) -> "Future[DeviceExecutable]":
        return self.executable

    def __call__(self, params: Any, cache: Any, state: Any, *inputs: Any) -> StepOutputs:
        """As in `CompiledStep`; params, cache and state are arrays by path."""
        named = dict(zip((TOKEN_IDS, LENGTHS), inputs, strict=True)) if inputs else {}
        arguments = self._ordered({**params, **cache, **state, **named})
        executable = self.executable.result()
        if tuple(executable.outputs) != tuple(array_type for _, array_type in self.results):
            raise XlapipeError(
                f"{self.path}: its outputs have other shapes or dtypes than the manifest lists; "
                "fix: build it again"
            )
        arrays = executable.execute(arguments)
        outputs = {path: array for (path, _), array in zip(self.results, arrays, strict=True)}
        return {
            "tokens": outputs[output_path(TOKENS)],
            "state": _passed_on("state", outputs),
            "cache": _passed_on("cache", outputs),
        }

    def _ordered(self, given: Mapping[str, Any]) -> list[Any]:
        """The arrays in the order of the program's parameters.

        Raises:
          XlapipeError: an array is missing or unknown, or has another shape or dtype.
        """
        if given.keys() != self.paths:
            differing = sorted(given.keys() ^ self.paths)
            raise XlapipeError(
                f"{self.path}: called with other arrays than it was built for: "
                f"{', '.join(differing[:3])}"
            )
        arguments = []
        for path, expected in self.parameters:
            array = given[path]
            found = tuple(array.shape), str(array.dtype)
            if found != expected:
                raise XlapipeError(
                    f"{self.path}: {path} is {described(found)}, expected {described(expected)}"
                )
            arguments.append(array)
        return arguments


def _in_order(
    leaves: Sequence[ArgumentLeaf] | Sequence[OutputLeaf],
) -> tuple[tuple[str, ArrayType], ...]:
    """Path and type of each leaf that the program uses, in its order."""
    numbered = {
        number: (leaf.path, (leaf.shape, leaf.dtype))
        for leaf in leaves
        if (number := position(leaf)) is not None
    }
    return tuple(numbered[number] for number in sorted(numbered))


def _passed_on(name: str, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs that are this argument of the next step, by the argument's paths."""
    prefix = output_path(name)
    return {
        name + path.removeprefix(prefix): array
        for path, array in outputs.items()
        if path.startswith(prefix)
    }
