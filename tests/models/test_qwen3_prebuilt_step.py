"""Steps that were built in advance: arguments are matched by path, shape and dtype."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from models.qwen3.checkpoint.leaf_tensors import dtype_named
from models.qwen3.checkpoint.random_checkpoint import SMALL
from models.qwen3.generation.abstract_arguments import abstract_arguments
from models.qwen3.generation.compiled_steps import CompiledStep
from models.qwen3.generation.load_prebuilt import ArrayTypes, prebuilt_step, types_of
from models.qwen3.generation.static_sizes import GenerationSizes
from xlapipe import LoadedStep, XlapipeError
from xlapipe.dump.manifest import Manifest
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf
from xlapipe.run.built_executable import BuiltExecutable

pytestmark = pytest.mark.jax

CONFIG = replace(SMALL, num_hidden_layers=2)
SIZES = GenerationSizes(batch=2, cache_length=32, bucket=16, steps=4, candidates=1)
OF_PROMPTS, OF_DECODE = abstract_arguments(CONFIG, SIZES)
PARAMS, CACHE, STATE = OF_DECODE
NAMES = ("params", "cache", "state", "token_ids", "lengths")
PROMPT, DECODE = (types_of(dict(zip(NAMES, it, strict=False))) for it in (OF_PROMPTS, OF_DECODE))


def outputs_of(steps: int) -> dict[str, Any]:
    tokens = jax.ShapeDtypeStruct((SIZES.batch, steps), "int32")
    return {"tokens": tokens, "state": STATE, "cache": CACHE}


DECODED = types_of({"out": outputs_of(SIZES.steps)})


class Executable:
    """An executable that takes its arguments in the order of `paths`."""

    def __init__(self, arguments: ArrayTypes, outputs: ArrayTypes) -> None:
        # The order is not that of the arguments' names, as manifests may have any.
        self.paths = [*reversed(arguments)]
        self.results = [*reversed(outputs)]
        self.calls: list[Sequence[Any]] = []

    def execute(self, arguments: Sequence[Any]) -> list[Any]:
        self.calls.append(arguments)
        return []


def on_host(executable: Executable, arguments: ArrayTypes, outputs: ArrayTypes) -> LoadedStep:
    """A step whose executable is `executable`."""
    manifest = Manifest.__new__(Manifest)
    sizes = {"argument_bytes": 7, "output_bytes": 5, "temp_bytes": 3, "alias_bytes": 4}
    for field, value in {
        "arguments": tuple(
            ArgumentLeaf(path, *given, 0, False, executable.paths.index(path))
            for path, given in arguments.items()
        ),
        "outputs": tuple(
            OutputLeaf(path, *outputs[path], 0, index)
            for index, path in enumerate(executable.results)
        ),
        "memory_analysis": sizes,
    }.items():
        object.__setattr__(manifest, field, value)
    future: Future[Any] = Future()
    future.set_result(SimpleNamespace(place=lambda leaf, array: array, execute=executable.execute))
    return LoadedStep(BuiltExecutable(Path("decode"), manifest, b""), jax.devices()[0], future)


def loaded(arguments: ArrayTypes, trees: Any, steps: int) -> tuple[CompiledStep, Executable]:
    outputs = outputs_of(steps)
    executable = Executable(arguments, types_of({"out": outputs}))
    step = on_host(executable, arguments, types_of({"out": outputs}))
    return prebuilt_step(step, trees, outputs), executable


def zeros(trees: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, dtype_named(leaf.dtype.name)), trees)


QKV = "params['layers'][0]['attention']['qkv_proj']['weight']"
Q_NORM = "params['layers'][1]['attention']['q_norm']['scale']"
EMBED, KEY, TOKENS = "params['embed']['weight']", "out['cache'][0]['k']", "out['tokens']"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({EMBED: None}, r"embed'\]\['weight'\] is missing"),
        (
            {QKV: None, "params['other']": DECODE[QKV]},
            "qkv_proj.* is missing; params.'other'.* is unknown",
        ),
        ({QKV: DECODE[Q_NORM]}, r"qkv_proj.* is bfloat16\[32\], expected bfloat16\[256, 64\]"),
        ({QKV: (DECODE[QKV][0], "float32")}, r"is float32\[256, 64\], expected bfloat16"),
        ({KEY: None}, r"out\['cache'\]\[0\]\['k'\] is missing"),
        ({TOKENS: ((2, 5), "int32")}, "out.'tokens'. is int32"),
    ],
)
def test_an_executable_of_other_arrays_is_refused(change: dict[str, Any], expected: str) -> None:
    def changed(types: ArrayTypes) -> ArrayTypes:
        mine = {path: it for path, it in change.items() if path[:3] == next(iter(types))[:3]}
        return {path: it for path, it in {**types, **mine}.items() if it is not None}

    takes, returns = changed(DECODE), changed(DECODED)
    step = on_host(Executable(takes, returns), takes, returns)
    with pytest.raises(XlapipeError, match=f"decode: not built for this model: .*{expected}"):
        prebuilt_step(step, OF_DECODE, outputs_of(SIZES.steps))


def test_a_call_with_other_arrays_is_refused() -> None:
    step, executable = loaded(DECODE, OF_DECODE, SIZES.steps)
    weights, cache, state = zeros(OF_DECODE)
    norm = weights["layers"][1]["attention"]["q_norm"]
    norm["scale"] = norm["scale"].astype(np.float32)
    with pytest.raises(XlapipeError, match=r"is float32\[32\], expected bfloat16\[32\]"):
        step(weights, cache, state)
    del weights["embed"]
    with pytest.raises(XlapipeError, match=r"called with other arrays.*embed"):
        step(weights, cache, state)
    assert executable.calls == []


def test_the_command_starts_without_what_takes_long_to_import() -> None:
    code = (
        "import models.qwen3.generate, models.qwen3.cli.run, "
        "models.qwen3.generation.start_loading; import sys; "
        "print({'flax', 'jax', 'jaxlib', 'ml_dtypes', 'numpy'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "set()\n"
