"""Results of earlier compiles are taken only where nothing changed that the plan depends on."""

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.compile import compile_cache
from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.compile_cache import CompileCache, compile_key
from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.messages import ChildError, LoweredProgram, to_json
from xlapipe.compile.pipeline import CompiledDump, compile_dump
from xlapipe.compile.reused_compiles import COMPILED_AT, take_note
from xlapipe.dump.dump import EXECUTABLE
from xlapipe.expect import ParameterBytes
from xlapipe.files.typed_data import typed
from xlapipe.plans.program import ArgumentLeaf
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax

STEP = """
import os
from pathlib import Path
import jax
import jax.numpy as jnp
from xlapipe import Workload
from xlapipe.expect import ParameterBytes
from xlapipe.files.typed_data import typed
from library import scale

WIDTH = int(Path(__file__).with_name("width.txt").read_text())
FACTOR = float(os.environ.get("OWN_FACTOR", "1"))

def step(x):
    return jnp.tanh(scale(x) @ x.T) * FACTOR

def workload():
    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    return Workload(name="cached", fn=step, args=(x,), expectations=[])
"""
LIBRARY = "def scale(x):\n    return x * 2.0\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workload that imports a module, and reads a file and a variable while it is imported."""
    (tmp_path / "cached_step.py").write_text(STEP)
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "width.txt").write_text("64")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XLAPIPE_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Python compares modules by seconds and size: an edit within one second might not be seen.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_path


@pytest.fixture
def compiled_now() -> Iterator[Callable[[], list[bool]]]:
    """For each compile since the last call: False if it came from the cache."""
    take_note()

    def take() -> list[bool]:
        ended = [when is None for when in COMPILED_AT]
        take_note()
        return ended

    yield take
    take_note()


def job(**changes: object) -> Job:
    (made,) = jobs_of(["cached_step:workload"], CompileSettings(target="h200"))
    return replace(made, **changes)  # type: ignore[arg-type]


def contents(compiled: CompiledDump) -> tuple[object, dict[str, bytes]]:
    """All that is written of a dump."""
    return compiled.dump.manifest, compiled.files


def test_only_what_is_unchanged_comes_from_the_cache(
    project: Path, compiled_now: Callable[[], list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_dump(job(), None)
    again = compile_dump(job(), None)
    assert compiled_now() == [True, False]
    assert contents(again) == contents(first)

    # What has no effect on the program, and expectations, which are no part of it.
    (project / "cached_step.py").write_text(
        STEP.replace("expectations=[]", "expectations=[ParameterBytes(1)]") + "\n# the end\n"
    )
    expecting = compile_dump(job(), None)
    assert compiled_now() == [False]
    assert expecting.files == first.files
    assert expecting.dump.expectations == (ParameterBytes(1),)

    # An imported module, a file and a variable that the module reads, and then each as it was.
    (project / "library.py").write_text(LIBRARY.replace("2.0", "3.0"))
    imported = compile_dump(job(), None)
    (project / "library.py").write_text(LIBRARY)
    (project / "width.txt").write_text("32")
    from_file = compile_dump(job(), None)
    (project / "width.txt").write_text("64")
    monkeypatch.setenv("OWN_FACTOR", "5")
    from_variable = compile_dump(job(), None)
    monkeypatch.delenv("OWN_FACTOR")
    assert compiled_now() == [True, True, True]
    for changed in (imported, from_file, from_variable):
        assert changed.normal != first.normal
    assert compile_dump(job(), None).files == first.files
    assert compiled_now() == [False]


def test_what_the_cache_gives_is_what_a_compile_gives(
    project: Path, compiled_now: Callable[[], list[bool]]
) -> None:
    """Also where only the plan is wanted, and with the executable."""
    for kept in (job(plan_only=True), job(serialize=True)):
        given = []
        for one in (kept, kept, replace(kept, cache_folder=None)):
            with compile_workload(one) as (started, record):
                texts = {path.name for path in started.dump_folder.iterdir()}
                facts = replace(record, seconds={}, compiled_at=None)
                given.append((facts, texts, started.executable_path.exists()))
        assert given[0] == given[1] == given[2]
        assert compiled_now() == [True, False, True]
    first, again = (compile_dump(job(serialize=True), None) for _ in range(2))
    assert again.files[EXECUTABLE] == first.files[EXECUTABLE]


def test_commands_say_what_came_from_the_cache(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["dump", "cached_step:workload", "--gemm", "auto", "--gemm", "cublas"]
    assert main(command[:4]) == 0
    assert "from the cache" not in capsys.readouterr().err
    assert main(command) == 0
    error = capsys.readouterr().err
    assert "xlapipe: unchanged: 1 of 2 plans are from the cache, compiled 20" in error
    assert error.rstrip().endswith("--no-cache compiles it again")
    assert main(["check", "cached_step:workload", "--json"]) == 0
    output = capsys.readouterr()
    assert "unchanged: its plan is from the cache" in output.err
    assert json.loads(output.out)
    assert main(["check", "cached_step:workload", "--no-cache"]) == 0
    assert "from the cache" not in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_left_out(
    project: Path, compiled_now: Callable[[], list[bool]]
) -> None:
    nowhere = job(cache_folder=Path("/proc/nowhere"))
    compile_dump(nowhere, None)
    compile_dump(nowhere, None)
    assert compiled_now() == [True, True]


PROGRAM = LoweredProgram(workload="w", stablehlo=b"module", arguments=(), outputs=())


def test_everything_that_affects_a_plan_is_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STEPS)
    monkeypatch.delenv("XLAPIPE_NO_CACHE")
    options = CompileSettings(target="h200")
    (base,) = jobs_of(["small_step:small_step"], options)
    (hopper,) = jobs_of(["small_step:small_step"], replace(options, target="h100_sxm"))
    (cublas,) = jobs_of(["small_step:small_step"], replace(options, policies=("cublas",)))
    (two,) = jobs_of(["small_step:small_step"], replace(options, topology="1x2"))
    leaf = ArgumentLeaf(
        path="x", shape=(1,), dtype="float32", size_bytes=4, donated=False, parameter_number=0
    )
    environment = {"PATH": "/usr/bin"}

    def key(
        made: Job = base,
        program: LoweredProgram = PROGRAM,
        variables: dict[str, str] = environment,
        scratch: str = "a",
    ) -> str:
        return compile_key(replace(made, scratch=tmp_path / scratch), program, variables)

    keys = [
        key(),
        key(hopper),
        key(cublas),
        key(two),
        key(replace(base, options={"xla_gpu_autotune_level": 0})),
        key(replace(base, plan_only=True)),
        key(replace(base, serialize=True)),
        key(replace(base, memory_fraction=0.5)),
        key(replace(base, without_xla_patches=frozenset({"cub-table"}))),  # type: ignore[arg-type]
        key(program=replace(PROGRAM, stablehlo=b"module ")),
        key(program=replace(PROGRAM, workload="v")),
        key(program=replace(PROGRAM, arguments=(leaf,))),
        key(program=replace(PROGRAM, options={"xla_gpu_autotune_level": 0})),
        key(program=replace(PROGRAM, compile_options={"num_replicas": 2})),
        key(program=replace(PROGRAM, settings={"jax_use_shardy_partitioner": False})),
        key(variables={**environment, "TF_ENABLE_ONEDNN_OPTS": "0"}),
        key(variables={**environment, "LD_LIBRARY_PATH": "/elsewhere"}),
        key(variables={**environment, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}),
    ]
    for name, value in (("_package", ["9"]), ("_xlapipe_sources", "edited")):
        with monkeypatch.context() as patch:
            patch.setattr(compile_cache, name, lambda *_, value=value: value)
            keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(compile_cache.sys, "version", "3.99")
        keys.append(key())
    assert len(set(keys)) == len(keys)
    # Where the compile writes, how long it may take, and what is expected.
    assert key(scratch="b") == keys[0]
    assert key(replace(base, timeout_seconds=1.0)) == keys[0]
    assert key(program=replace(PROGRAM, expectations=({},))) == keys[0]
    assert key(variables={**environment, "WINDOWID": "7"}) == keys[0]


def test_texts_that_are_not_utf8_are_in_messages_and_keys(tmp_path: Path) -> None:
    """A folder's name need not be UTF-8, nor what the user's code raises."""
    folder = tmp_path / "\udcff"
    (made,) = jobs_of([find_workload("qwen3-step")], CompileSettings(target="h200"))
    of_folder = replace(made, reference=replace(made.reference, folder=folder), scratch=folder)
    assert Job.from_bytes(of_folder.to_bytes()) == of_folder
    error = ChildError("import", "ValueError", "a \udc80 b", f"{folder}/step.py:6")
    assert typed(ChildError, json.loads(to_json(error))) == error
    variables = {"LD_LIBRARY_PATH": str(folder)}  # PATH is not in the key where it has no ptxas
    assert compile_key(of_folder, PROGRAM, variables) != compile_key(of_folder, PROGRAM, {})


def test_compiles_for_which_the_cache_is_off_have_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XLAPIPE_NO_CACHE")
    monkeypatch.chdir(STEPS)
    (made,) = jobs_of(["small_step:small_step"], CompileSettings(target="h200"))
    assert made.cache_folder is not None
    (off,) = jobs_of(["small_step:small_step"], CompileSettings(target="h200", use_cache=False))
    assert off.cache_folder is None
    monkeypatch.setenv("XLAPIPE_NO_CACHE", "1")
    (off,) = jobs_of([find_workload("small_step:small_step")], CompileSettings(target="h200"))
    assert off.cache_folder is None


def test_the_longest_unused_results_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result(name: str, age_seconds: float) -> Path:
        path = tmp_path / f"{name}.zip"
        path.write_bytes(bytes(100))
        now = path.stat().st_mtime
        os.utime(path, (now - age_seconds, now - age_seconds))
        return path

    new, older, oldest = result("new", 0), result("older", 60), result("oldest", 40 * 86400)
    CompileCache(tmp_path)._remove_unused()
    assert [path.exists() for path in (new, older, oldest)] == [True, True, False]
    monkeypatch.setattr(compile_cache, "_LARGEST_CACHE_BYTES", 150)
    CompileCache(tmp_path)._remove_unused()
    assert [path.exists() for path in (new, older)] == [True, False]


def test_a_result_writes_nothing_outside_of_its_folders(tmp_path: Path) -> None:
    (made,) = jobs_of([find_workload("qwen3-step")], CompileSettings(target="h200"))
    made = replace(made, scratch=tmp_path / "scratch")
    for name in ("dump/../../outside", "/tmp/outside", "executable"):
        with zipfile.ZipFile(tmp_path / "key.zip", "w") as archive:
            archive.writestr("record.json", "{}")
            archive.writestr(name, "x")
        assert CompileCache(tmp_path).restore("key", made, ()) is None
        with pytest.raises(ValueError, match=r"outside|executable"):
            compile_cache._place(name, made)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key.zip"]
