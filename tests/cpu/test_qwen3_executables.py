"""Executables built ahead: made without a GPU, held against expectations, loaded by generation.

No GPU is here to load them: in its place the same program is compiled for the CPU, and called
through the leaves of the built one's manifest.
"""

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from xlapipe.dumps.dump import open_dump
from xlapipe.expect import TempAtMost
from xlapipe.lowering.lower import load_workload
from xlapipe.registry import find_workload
from xlapipe.running import executable

CACHE_LENGTH = 64


def main(arguments: list[str]) -> int:
    # Imported late: other tests import the models anew, with checks of their own.
    from models.qwen3.generate import main as command

    return command(arguments)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dataclasses import replace

    from models.qwen3.checkpoint.random import SMALL, write_random_checkpoint

    config = replace(SMALL, num_hidden_layers=1)
    return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small", config)


@pytest.fixture(scope="module")
def built(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts at once, of up to 16 tokens."""
    path = tmp_path_factory.mktemp("built") / "executables"
    arguments = ["--checkpoint", str(checkpoint), "--build-executables", str(path), "--batch", "2"]
    arguments += ["--prompt-length", "16", "--cache-length", str(CACHE_LENGTH), "--json"]
    assert main(arguments) == 0
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


@pytest.fixture
def on_the_cpu(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the attached GPU, and of loading what was built for it."""
    prebuilt = importlib.import_module("models.qwen3.generation.prebuilt_index")
    common = f"config={str(checkpoint)!r}, layers=None, batch=2, cache_length={CACHE_LENGTH}"
    # The kernels that were built run on a GPU alone.
    common += ", implementation='xla'"
    references = {
        "qwen3-prompts-layers1-batch2-length16-cache64": f"qwen3_prompts({common}, length=16)",
        "qwen3-generate-layers1-batch2-cache64": f"qwen3_generate({common})",
    }

    def load(path: Path) -> executable.LoadedExecutable:
        manifest = executable.built_manifest(path)
        reference = f"models.qwen3.workloads:{references[manifest.workload]}"
        workload = load_workload(find_workload(reference))
        jitted = jax.jit(workload.fn, donate_argnums=workload.donated)
        compiled = jitted.lower(*workload.args).compile()
        devices = (jax.devices("cpu")[0],)
        return executable.LoadedExecutable(path, manifest, devices, compiled.runtime_executable())

    monkeypatch.setattr(prebuilt, "load_executable", load)


def outputs(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["outputs"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_a_build_has_an_index_and_two_dumps_whose_expectations_hold(built: Path) -> None:
    from xlapipe.expect import check_all

    assert {each.name for each in built.iterdir()} == {"executables.json", "prompts-16", "decode"}
    index = json.loads((built / "executables.json").read_text())
    assert index["sizes"] == {"batch": 2, "cache_length": 64, "steps": 16, "candidates": 1}
    assert index["buckets"] == [16]
    for name in ("prompts-16", "decode"):
        dump = open_dump(built / name)
        assert dump.manifest.target == "h200"
        findings = check_all(dump.expectations, dump.program)
        assert findings and all(finding.holds for finding in findings)
    kinds = {type(each).__name__ for each in dump.expectations}
    assert {"NoCopyInLoopAbove", "LoopOfTrips", "Aliased", "MatmulsAccounted"} <= kinds


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("prompts", [["1,2,3"], ["1,2,3", "7"]])
def test_generation_with_what_was_built_is_that_without(
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
        (["--prompt-ids", "1", "--prompt-ids", "2", "--prompt-ids", "3"], "3 prompts; the exec"),
        (["--prompt-ids", ",".join(["1"] * 17)], "a prompt of 17 tokens; the executables are for"),
        (["--prompt-ids", ",".join(["1"] * 65)], "65 tokens, 1 more than the cache's 64 slots"),
        (["--prompt-ids", "1", "--seed", "1"], "draw from the likeliest token (greedy)"),
        (["--prompt-ids", "1", "--cache-length", "65"], "--cache-length 65: the executables are"),
        (["--prompt-ids", "1", "--dtype", "float32"], "built for another model: dtype 'bfloat16'"),
        (["--prompt-ids", "1", "--memory-limit", "5"], "the model does not fit the device"),
    ],
)
def test_what_the_executables_are_not_for(
    arguments: list[str],
    expected: str,
    built: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ["--checkpoint", str(checkpoint), "--executables", str(built)]
    assert expected in refused(capsys, *common, *arguments)


def test_executables_of_other_shapes_are_refused(built: Path) -> None:
    """An index that lies about its sizes does not get the arrays into the wrong program."""
    from models.qwen3.generation.programs import loaded

    manifest = executable.built_manifest(built / "decode")
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in manifest.arguments]
    shapes[-1] = jax.ShapeDtypeStruct((3,), "int32")
    fake = executable.LoadedExecutable(built / "decode", manifest, (), None)
    from xlapipe.errors import XlapipeError

    with pytest.raises(XlapipeError, match=r"decode: built for 15 arrays.* state\['token_ids'\]"):
        loaded(fake, (shapes, [], {}))


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
        (lambda folder: shutil.rmtree(folder / "prompts-16"), "16/manifest.json: cannot be read"),
        (
            lambda folder: (folder / "prompts-16" / "executable.pjrt").write_bytes(b"other"),
            "SHA-256",
        ),
    ],
)
def test_damaged_folders(
    damage: Callable[[Path], Any],
    expected: str,
    copy: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(copy)
    common = ["--checkpoint", str(checkpoint), "--executables", str(copy), "--prompt-ids", "1"]
    assert expected in refused(capsys, *common)


def test_a_folder_of_something_else_is_left_alone(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("kept")
    common = ["--checkpoint", str(checkpoint), "--build-executables", str(tmp_path)]
    assert "holds something else" in refused(capsys, *common)
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_executables_have_the_kernels_that_they_were_built_with(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--executables", str(tmp_path), "--prompt-ids", "1", "--no-hopper-kernels"]
    said = refused(capsys, "--checkpoint", str(checkpoint), *given)
    assert "--executables have the kernels" in said


@pytest.mark.parametrize(
    ("target", "options", "kernels"),
    [
        ("h200", {}, {"prompts-128": True, "prompts-64": False, "decode": False}),
        ("h200", {"hopper_kernels": False}, dict.fromkeys(("prompts-128", "prompts-64"), False)),
        ("b200", {}, dict.fromkeys(("prompts-128", "prompts-64"), False)),
    ],
    ids=["h200", "h200, without", "b200"],
)
def test_prompts_of_whole_blocks_are_built_with_the_kernels_for_hopper(
    target: str,
    options: dict[str, bool],
    kernels: dict[str, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Hopper alone, as `compiled_here` chooses there; nothing is compiled."""
    from dataclasses import replace
    from types import SimpleNamespace

    from models.qwen3.checkpoint.random import SMALL
    from models.qwen3.generation import build_prebuilt as building
    from models.qwen3.generation.load_prebuilt import Executables
    from models.qwen3.generation.sizes import GenerationSizes
    from models.qwen3.kernels import tiling

    arguments = {}

    def made(job: Any, folder: Path) -> Any:
        arguments[folder.name] = job.reference.arguments
        folder.mkdir()
        return SimpleNamespace(dump=SimpleNamespace(expectations=(), program=None))

    monkeypatch.setattr(building, "build", made)
    monkeypatch.setattr(tiling, "version", lambda package: "0.11.2")
    config = replace(SMALL, head_dim=128, intermediate_size=256, dtype="bfloat16")
    sizes = GenerationSizes(batch=1, cache_length=128, bucket=128, steps=4, candidates=1)
    asked_for = Executables(path=tmp_path / "built", config=config, sizes=sizes, buckets=(64, 128))
    building.build_executables(tmp_path, asked_for, target=target, **options)
    found = {name: given.get("implementation") == "hopper" for name, given in arguments.items()}
    assert kernels.items() <= found.items()


def test_an_executable_that_is_not_as_expected_is_not_kept(
    checkpoint: Path,
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was built before is held against an expectation that it breaks."""
    from types import SimpleNamespace

    from models.qwen3.generation import build_prebuilt as build_executables

    dump = open_dump(built / "decode")
    broken = SimpleNamespace(expectations=(TempAtMost(1),), program=dump.program)
    made = SimpleNamespace(dump=broken)
    monkeypatch.setattr(build_executables, "build", lambda job, folder: made)
    path = tmp_path / "executables"
    common = ["--checkpoint", str(checkpoint), "--build-executables", str(path)]
    said = refused(capsys, *common)
    assert "prompts-512: the executable is not as expected" in said
    assert "TempAtMost(limit_bytes=1): expected temp of at most 1 B" in said
    assert list(tmp_path.iterdir()) == []
