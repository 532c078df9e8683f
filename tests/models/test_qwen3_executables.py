"""Executables built in advance: built without a GPU, checked, and loaded by generation.

Loading needs a GPU. These tests compile the same program for the CPU instead, and call it through
the leaves in the manifest of the built one.
"""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import xlapipe
from models.qwen3.checkpoint.random_checkpoint import SMALL, write_random_checkpoint
from models.qwen3.generate import main
from models.qwen3.generation.build_prebuilt import build_prebuilt
from models.qwen3.generation.prebuilt_index import PrebuiltExecutables
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.kernels import tiling
from xlapipe import StepPlan, WorkloadReference
from xlapipe.api import loaded_step
from xlapipe.compile.lowering.load_workload import load_workload
from xlapipe.dump.dump import Dump, open_dump
from xlapipe.errors import DumpError
from xlapipe.expect import Expectation, TempAtMost, check_all
from xlapipe.registry import find_workload
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.run.built_executable import BuiltExecutable

pytestmark = [pytest.mark.jax, pytest.mark.slow]

CACHE_LENGTH = 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(SMALL, num_hidden_layers=1)
    return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small", config)


@pytest.fixture(scope="module")
def built(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Executables for two prompts of up to 16 tokens."""
    path = tmp_path_factory.mktemp("built") / "executables"
    arguments = ["--checkpoint", str(checkpoint), "--build-executables", str(path), "--batch", "2"]
    arguments += ["--prompt-length", "16", "--cache-length", str(CACHE_LENGTH), "--json"]
    assert main(arguments) == 0
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def plan_with(dump: Dump, expectations: tuple[Expectation, ...]) -> StepPlan:
    """The plan of a build with these expectations."""
    return StepPlan(XlaSubject(dump), expectations)


def place(leaf: Any, array: Any) -> jax.Array:
    # A copy: on the CPU, jax may share the memory of its source, here of a mapped file.
    given = array if isinstance(array, jax.Array) else np.array(array)
    on_cpu: jax.Array = jax.device_put(given, jax.devices("cpu")[0])
    return on_cpu


@pytest.fixture
def on_the_cpu(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles for the CPU instead of loading the executables onto a GPU."""
    common = f"config={str(checkpoint)!r}, layers=None, batch=2, cache_length={CACHE_LENGTH}"
    # The kernels that were built run only on a GPU.
    common += ", implementation='xla'"
    references = {
        "qwen3-prompts-layers1-batch2-length16-cache64": f"qwen3_prompts({common}, length=16)",
        "qwen3-generate-layers1-batch2-cache64": f"qwen3_generate({common})",
    }

    def start_loading(built: BuiltExecutable) -> tuple[Any, Future[Any]]:
        reference = f"models.qwen3.workloads:{references[built.manifest.workload]}"
        workload = load_workload(find_workload(reference))
        jitted = jax.jit(workload.fn, donate_argnums=workload.donated)
        executable = jitted.lower(*workload.args).compile().runtime_executable()

        def execute(arguments: list[jax.Array]) -> list[jax.Array]:
            results = executable.execute_sharded(arguments)
            return [shard[0] for shard in results.disassemble_into_single_device_arrays()]

        loaded: Future[Any] = Future()
        loaded.set_result(SimpleNamespace(place=place, execute=execute))
        return jax.devices("cpu")[0], loaded

    monkeypatch.setattr(loaded_step, "start_loading", start_loading)


def outputs(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["outputs"]


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_a_build_has_an_index_and_two_dumps_whose_expectations_hold(built: Path) -> None:
    assert {path.name for path in built.iterdir()} == {"executables.json", "prompts-16", "decode"}
    index = json.loads((built / "executables.json").read_text())
    assert index["sizes"] == {"batch": 2, "cache_length": 64, "steps": 16, "candidates": 1}
    assert index["buckets"] == [16]
    for name in ("prompts-16", "decode"):
        dump = open_dump(built / name)
        assert dump.manifest.target == "h200"
        findings = check_all(dump.expectations, dump)
        assert findings and all(finding.holds for finding in findings)
    kinds = {type(expectation).__name__ for expectation in dump.expectations}
    assert {"NoCopyInLoopAbove", "LoopOfTrips", "Aliased", "MatmulsAccounted"} <= kinds


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("prompts", [["1,2,3"], ["1,2,3", "7"]])
def test_prebuilt_executables_generate_the_same_tokens(
    prompts: list[str], built: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--checkpoint", str(checkpoint), "--max-new-tokens", "20"]
    common += [part for prompt in prompts for part in ("--prompt-ids", prompt)]
    with_built = outputs(capsys, *common, "--executables", str(built))
    assert with_built == outputs(capsys, *common, "--cache-length", str(CACHE_LENGTH))


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--prompt-ids", "1", "--prompt-ids", "2", "--prompt-ids", "3"], "found 3 prompts"),
        (["--prompt-ids", ",".join(["1"] * 17)], "at most 16 tokens; found a prompt of 17 tokens"),
        (["--prompt-ids", ",".join(["1"] * 65)], "65 tokens, but the cache has 64 slots"),
        (["--prompt-ids", "1", "--seed", "1"], "take the most probable token (greedy)"),
        (["--prompt-ids", "1", "--cache-length", "65"], "--cache-length 65: the executables are"),
        (["--prompt-ids", "1", "--dtype", "float32"], "built for another model: dtype 'bfloat16'"),
        (["--prompt-ids", "1", "--memory-limit", "5"], "the model does not fit the device"),
    ],
)
def test_requests_that_the_executables_are_not_compiled_for_are_errors(
    arguments: list[str],
    expected: str,
    built: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ["--checkpoint", str(checkpoint), "--executables", str(built)]
    assert expected in error_of(capsys, *common, *arguments)


@pytest.mark.usefixtures("on_the_cpu")
def test_an_executable_that_cannot_be_loaded_is_one_error(
    built: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Executables are loaded in threads while the weights are; here the second one fails."""
    start_loading = loaded_step.start_loading

    def fail(executable: BuiltExecutable) -> tuple[Any, Future[Any]]:
        if executable.path.name != "decode":
            return start_loading(executable)  # type: ignore[return-value]
        failed: Future[Any] = Future()
        failed.set_exception(DumpError(f"{executable.path}: this jaxlib cannot load it"))
        return jax.devices("cpu")[0], failed

    monkeypatch.setattr(loaded_step, "start_loading", fail)
    common = ["--checkpoint", str(checkpoint), "--executables", str(built), "--prompt-ids", "1"]
    error = error_of(capsys, *common)
    assert error.splitlines() == [f"generate: error: {built}/decode: this jaxlib cannot load it"]


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "executables.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return edit


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda folder: (folder / "executables.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "executables.json").write_text("{"), "not JSON"),
        (edited(lambda data: data.pop("config")), "not an index of executables"),
        (edited(lambda data: data.update(schema_version=2)), "schema version 2"),
        (edited(lambda data: data.update(buckets=[])), "not an index of executables"),
        (edited(lambda data: data["sizes"].update(batch="2")), "not an index of executables"),
        (edited(lambda data: data["config"].update(rope_theta=5.0)), "rope_theta 5.0, not"),
        (lambda folder: shutil.rmtree(folder / "prompts-16"), "16/manifest.json: expected a file"),
        (
            lambda folder: (folder / "prompts-16" / "executable.pjrt").write_bytes(b"other"),
            "SHA-256",
        ),
    ],
)
def test_a_damaged_folder_is_an_error(
    damage: Callable[[Path], Any],
    expected: str,
    copy: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(copy)
    common = ["--checkpoint", str(checkpoint), "--executables", str(copy), "--prompt-ids", "1"]
    assert expected in error_of(capsys, *common)


def test_a_folder_with_other_files_is_not_replaced(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("kept")
    common = ["--checkpoint", str(checkpoint), "--build-executables", str(tmp_path)]
    assert "expected a new or empty folder" in error_of(capsys, *common)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "flag", ["--no-hopper-kernels", "--no-persistent-kernel", "--persistent-kernel"]
)
def test_kernels_of_executables_cannot_be_changed(
    flag: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--executables", str(tmp_path), "--prompt-ids", "1", flag]
    error = error_of(capsys, "--checkpoint", str(checkpoint), *options)
    assert f"{flag} cannot be used with --executables" in error


@pytest.mark.parametrize(
    ("target", "options", "kernels"),
    [
        ("h200", {}, {"prompts-128": True, "prompts-64": False, "decode": False}),
        ("h200", {"hopper_kernels": False}, dict.fromkeys(("prompts-128", "prompts-64"), False)),
        ("b200", {}, dict.fromkeys(("prompts-128", "prompts-64"), False)),
    ],
    ids=["h200", "h200, without", "b200"],
)
def test_prompts_that_fill_tiles_are_built_with_the_kernels_for_hopper(
    target: str,
    options: dict[str, bool],
    kernels: dict[str, bool],
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only on Hopper, as in `compile_generation`. This test compiles nothing."""
    arguments = {}

    def made(reference: WorkloadReference, *, out: Path, **options: Any) -> StepPlan:
        arguments[out.name] = reference.arguments
        return plan_with(open_dump(built / "decode"), (TempAtMost(1 << 40),))

    monkeypatch.setattr(xlapipe, "build", made)
    monkeypatch.setattr(tiling, "version", lambda package: "0.11.2")
    config = replace(SMALL, head_dim=128, intermediate_size=256, dtype="bfloat16")
    sizes = GenerationSizes(batch=1, cache_length=128, bucket=128, steps=4, candidates=1)
    prebuilt = PrebuiltExecutables(
        path=tmp_path / "built", config=config, sizes=sizes, buckets=(64, 128)
    )
    build_prebuilt(prebuilt, target=target, **options)
    with_hopper_kernels = {
        name: values.get("implementation") == "hopper" for name, values in arguments.items()
    }
    assert kernels.items() <= with_hopper_kernels.items()


def test_an_executable_that_breaks_an_expectation_is_not_kept(
    checkpoint: Path,
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Checks an executable that was built before against an expectation that it breaks."""
    made = plan_with(open_dump(built / "decode"), (TempAtMost(1),))
    monkeypatch.setattr(xlapipe, "build", lambda reference, **options: made)
    path = tmp_path / "executables"
    common = ["--checkpoint", str(checkpoint), "--build-executables", str(path)]
    error = error_of(capsys, *common)
    assert "prompts-512: the executable does not meet its expectations" in error
    assert "TempAtMost(limit_bytes=1) does not hold" in error
    assert "expected  temp memory of at most 1 B" in error
    assert list(tmp_path.iterdir()) == []
