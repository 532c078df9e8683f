"""Steps that were built in advance: arguments are matched by path, and Generator runs them.

A client of NumPy arrays is in place of PJRT's, and a rule in place of the model: the token after t
is t + 1, and the first one is the sum of the prompt.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.qwen3.checkpoint.map_leaves import checkpoint_bytes, dtype_named, map_leaves
from models.qwen3.checkpoint.random_checkpoint import SMALL, write_random_checkpoint
from models.qwen3.generation.compiled_steps import CompiledGeneration, CompiledStep
from models.qwen3.generation.generator import Generator
from models.qwen3.generation.loaded_device import LoadedDevice
from models.qwen3.generation.prebuilt_step import prebuilt_step
from models.qwen3.generation.sampling_settings import SamplingSettings
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.generation.step_arrays import (
    ArrayTypes,
    decode_arguments,
    prompt_arguments,
    step_outputs,
)
from xlapipe import LoadedStep, XlapipeError
from xlapipe.dump.manifest import Manifest
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf
from xlapipe.run.built_executable import BuiltExecutable
from xlapipe.run.start_loading import LoadingExecutable

pytestmark = pytest.mark.jax

CONFIG = replace(SMALL, num_hidden_layers=2)
SIZES = GenerationSizes(batch=2, cache_length=32, bucket=16, steps=4, candidates=1)
PROMPT, DECODE = prompt_arguments(CONFIG, SIZES), decode_arguments(CONFIG, SIZES)
DECODED = step_outputs(CONFIG, SIZES, steps=SIZES.steps)


class HostDevice:
    """A device whose arrays are NumPy's."""

    platform, device_kind = "gpu", "a host"

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 1000, "bytes_in_use": 10, "peak_bytes_in_use": 20}


class Counting:
    """An executable that counts up; it takes its arguments in the order of `paths`."""

    def __init__(self, arguments: ArrayTypes, outputs: ArrayTypes) -> None:
        # The order is not that of the arguments' names, as manifests may have any.
        self.paths = [*reversed(arguments)]
        self.results = [*reversed(outputs)]
        self.steps = outputs["out['tokens']"][0][1]
        self.calls: list[dict[str, Any]] = []

    def execute(self, arguments: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.paths, arguments, strict=True))
        self.calls.append(given)
        if "token_ids" in given:
            first = given["token_ids"].sum(axis=1, dtype=np.int32)
            positions = given["lengths"]
        else:
            first, positions = given["state['token_ids']"] + 1, given["state['positions']"] + 1
        tokens = first[:, None] + np.arange(self.steps, dtype=np.int32)
        values = {path: given.get(_argument(path)) for path in self.results}
        values["out['tokens']"] = tokens
        values["out['state']['token_ids']"] = tokens[:, -1]
        values["out['state']['positions']"] = positions + np.int32(self.steps - 1)
        return [values[path] for path in self.results]


def _argument(path: str) -> str:
    name, _, keys = path.removeprefix("out['").partition("']")
    return name + keys


def leaves(types: ArrayTypes, order: Sequence[str]) -> tuple[ArgumentLeaf, ...]:
    return tuple(ArgumentLeaf(path, *types[path], 0, False, order.index(path)) for path in types)


def output_leaves(types: ArrayTypes) -> tuple[OutputLeaf, ...]:
    """In the order of `types`, which is that of the program."""
    return tuple(OutputLeaf(path, *types[path], 0, index) for index, path in enumerate(types))


def on_host(executable: Counting, arguments: ArrayTypes, outputs: ArrayTypes) -> LoadedStep:
    """A step whose executable is `executable`, on a device of the host."""
    manifest = Manifest.__new__(Manifest)
    sizes = {"argument_bytes": 7, "output_bytes": 5, "temp_bytes": 3, "alias_bytes": 4}
    for field, value in {
        "arguments": leaves(arguments, executable.paths),
        "outputs": output_leaves({path: outputs[path] for path in executable.results}),
        "memory_analysis": sizes,
    }.items():
        object.__setattr__(manifest, field, value)
    future: Future[Any] = Future()
    future.set_result(executable.execute)
    loading = LoadingExecutable(HostDevice(), lambda leaf, array: np.asanyarray(array), future)
    return LoadedStep(BuiltExecutable(Path("decode"), manifest, b""), loading)


def loaded(arguments: ArrayTypes, outputs: ArrayTypes) -> tuple[CompiledStep, Counting, LoadedStep]:
    executable = Counting(arguments, outputs)
    step = on_host(executable, arguments, outputs)
    return prebuilt_step(step, arguments, outputs), executable, step


def params() -> dict[str, Any]:
    return {
        path: np.zeros(shape, dtype_named(dtype))
        for path, (shape, dtype) in PROMPT.items()
        if path.startswith("params")
    }


def test_generator_runs_prebuilt_steps() -> None:
    """Through executables whose parameters and outputs have another order than the arguments."""
    prompts, prefill, step = loaded(PROMPT, step_outputs(CONFIG, SIZES, steps=1))
    decode, loop, _ = loaded(DECODE, DECODED)
    device = LoadedDevice(step)
    shown: list[tuple[int, list[int]]] = []
    generated = Generator(
        CONFIG, CompiledGeneration(SIZES, prompts, decode), params(), device
    ).generate(
        [[5, 6, 7], [40]],
        max_new_tokens=7,
        settings=SamplingSettings(),
        eos_token_ids=(43,),
        on_tokens=lambda index, token_ids: shown.append((index, token_ids)),
    )
    assert generated.token_ids == [[18, 19, 20, 21, 22, 23, 24], [40, 41, 42, 43]]
    assert generated.finish == ["length", "eos"]
    assert shown[:2] == [(0, [18]), (1, [40])]
    (first,) = prefill.calls
    assert first["lengths"].tolist() == [3, 1]
    assert first["token_ids"][0].tolist() == [5, 6, 7, *[0] * 13]
    assert first["state['eos']"].tolist() == [43, *[-1] * 7]
    assert len(loop.calls) == 2
    for path in first.keys() & loop.calls[0].keys():
        assert loop.calls[0][path] is loop.calls[1][path], path
        assert loop.calls[0][path] is first[path], path


def test_both_steps_report_memory_and_loading() -> None:
    step, _, _ = loaded(DECODE, DECODED)
    assert step.needed_bytes == 7 + 5 + 3 - 4
    assert step.loading is not None and step.loading.done()


QKV = "params['layers'][0]['attention']['qkv_proj']['weight']"
Q_NORM = "params['layers'][1]['attention']['q_norm']['scale']"
K_NORM = Q_NORM.replace("q_norm", "k_norm")
EMBED = "params['embed']['weight']"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({EMBED: None}, "embed'\\]\\['weight'\\] is missing"),
        (
            {QKV: None, "params['other']": DECODE[QKV]},
            "qkv_proj.* is missing; params.'other'.* is unknown",
        ),
        ({QKV: DECODE[Q_NORM]}, r"qkv_proj.* is bfloat16\[32\], expected bfloat16\[256, 64\]"),
        (
            {QKV: (DECODE[QKV][0], "float32")},
            r"is float32\[256, 64\], expected bfloat16\[256, 64\]",
        ),
    ],
)
def test_an_executable_that_takes_other_arrays_is_refused(
    change: dict[str, Any], expected: str
) -> None:
    built_for = {path: given for path, given in {**DECODE, **change}.items() if given is not None}
    step = on_host(Counting(built_for, DECODED), built_for, DECODED)
    with pytest.raises(XlapipeError, match=f"decode: not built for this model: .*{expected}"):
        prebuilt_step(step, DECODE, DECODED)


def test_an_executable_that_returns_other_arrays_is_refused() -> None:
    key, tokens = "out['cache'][0]['k']", "out['tokens']"
    for change, expected in (
        ({key: None}, r"out\['cache'\]\[0\]\['k'\] is missing"),
        ({tokens: ((2, 5), "int32")}, "out.'tokens'. is int32"),
    ):
        returned = {path: t for path, t in {**DECODED, **change}.items() if t is not None}
        step = on_host(Counting(DECODE, returned), DECODE, returned)
        with pytest.raises(XlapipeError, match=f"not built for this model: .*{expected}"):
            prebuilt_step(step, DECODE, DECODED)


def arrays(types: ArrayTypes, name: str) -> dict[str, Any]:
    return {
        path: np.zeros(shape, dtype_named(dtype))
        for path, (shape, dtype) in types.items()
        if path.startswith(name)
    }


def test_arrays_of_a_call_are_matched_by_name_not_by_order() -> None:
    step, executable, _ = loaded(DECODE, DECODED)
    cache, state = arrays(DECODE, "cache"), arrays(DECODE, "state")
    weights = dict(reversed(params().items()))
    weights[Q_NORM] = weights[Q_NORM] + 1
    step(weights, cache, state)
    (call,) = executable.calls
    assert call[Q_NORM] is weights[Q_NORM] and call[K_NORM] is weights[K_NORM]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda weights: weights.pop(QKV), "called with other arrays.*qkv_proj"),
        (lambda weights: weights.update(other=weights.pop(QKV)), "called with other arrays.*other"),
        (lambda weights: weights.update({QKV: weights[Q_NORM]}), r"bfloat16\[32\], expected"),
        (
            lambda weights: weights.update({Q_NORM: weights[Q_NORM].astype(np.float32)}),
            r"is float32\[32\], expected bfloat16\[32\]",
        ),
    ],
)
def test_a_call_with_other_arrays_is_refused(
    change: Callable[[dict[str, Any]], Any], expected: str
) -> None:
    step, executable, _ = loaded(DECODE, DECODED)
    weights = params()
    change(weights)
    with pytest.raises(XlapipeError, match=expected):
        step(weights, arrays(DECODE, "cache"), arrays(DECODE, "state"))
    assert executable.calls == []


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mapped_leaves_are_those_that_jax_loads(tmp_path: Path, stored: str, dtype: str) -> None:
    """Stacked, and rounded as the device rounds them."""
    import jax

    from models.qwen3.checkpoint.load_params import load_params

    config = replace(CONFIG, tie_word_embeddings=False, num_hidden_layers=1)
    folder = write_random_checkpoint(tmp_path / "model", replace(config, dtype=stored), seed=4)
    config = replace(config, dtype=dtype)
    arguments, outputs = prompt_arguments(config, SIZES), step_outputs(config, SIZES, steps=1)
    step = on_host(Counting(arguments, outputs), arguments, outputs)
    by_jax = jax.tree_util.tree_leaves_with_path(load_params(folder, config))
    expected = {"params" + jax.tree_util.keystr(path): leaf for path, leaf in by_jax}
    reported: dict[str, int] = {}
    mapped = LoadedDevice(step).load_params(folder, config, reported.__setitem__)
    assert mapped.keys() == expected.keys()
    for path, leaf in expected.items():
        assert mapped[path].dtype == leaf.dtype
        np.testing.assert_array_equal(
            mapped[path].view(np.uint8), np.asarray(leaf).view(np.uint8), err_msg=path
        )
    assert sum(reported.values()) == checkpoint_bytes(folder, config)
    tensors = map_leaves(folder, config, lambda path, array: isinstance(array, np.memmap))
    assert tensors["embed.weight"] == (stored == dtype)


IMPORTS = (
    "import models.qwen3.generation.load_prebuilt, models.qwen3.generation.generator, "
    "models.qwen3.generation.device_memory, models.qwen3.cli.run; "
    "import sys; print({'flax', 'jax', 'jaxlib'} & {*sys.modules})"
)


STARTS = (
    "import models.qwen3.generate, models.qwen3.cli.run, models.qwen3.generation.start_loading; "
    "import sys; print({'flax', 'jax', 'jaxlib', 'ml_dtypes', 'numpy'} & {*sys.modules})"
)


@pytest.mark.parametrize("imports", [IMPORTS, STARTS])
def test_running_prebuilt_executables_imports_no_jax_and_starts_without_numpy(imports: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", imports], check=True, capture_output=True, text=True
    )
    assert run.stdout == "set()\n"
