"""Plans with predicted tuning: what they say, what is refused, and what XLA refuses."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.export
import pytest

import xlapipe
from tests.conftest import GOLDEN_JAXLIB
from tests.folders import STEPS
from tests.versions import jaxlibs_of_tables
from xlapipe.api.testing.goldens import Goldens
from xlapipe.api.testing.session import PlansOfTest
from xlapipe.cli import main
from xlapipe.compile import child_process, compile_program, failed_child
from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.messages import CompileRecord
from xlapipe.compile.pipeline import CompiledDump, compile_dump, dump_folder
from xlapipe.compile.tuning import Tuned
from xlapipe.dump.dump import open_dump, read_manifest
from xlapipe.errors import CompileError, EndedBySignalError
from xlapipe.time.predicted_locks.basis import Basis
from xlapipe.time.predicted_locks.known_results import TRITON_COMMITS
from xlapipe.time.predicted_locks.plan_error import WORKSPACE_BYTES

JAXLIB = version("jaxlib")
pytestmark = [
    pytest.mark.jax,
    pytest.mark.skipif(
        JAXLIB not in TRITON_COMMITS, reason=f"no results are used with jaxlib {JAXLIB}"
    ),
]
WORKLOAD = "qwen3-step-donated"
DOT = (
    jax.ShapeDtypeStruct((512, 1024), "bfloat16"),
    jax.ShapeDtypeStruct((1024, 4096), "bfloat16"),
)


@pytest.fixture(scope="module")
def job() -> Job:
    (job,) = jobs_of([WORKLOAD], CompileSettings(tuning=Tuned.AUTO, use_cache=False))
    assert job.known_results is not None
    return replace(job, known_results=job.known_results.without(WORKLOAD))


@pytest.fixture(scope="module")
def predicted(job: Job) -> CompiledDump:
    return compile_dump(job, None)


def test_the_plan_of_a_program_whose_lock_is_left_out_has_the_devices_bytes(
    predicted: CompiledDump, goldens: Path
) -> None:
    golden = open_dump(goldens / WORKLOAD / f"h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}")
    assert predicted.dump.plan.totals == golden.plan.totals
    backends = [gemm.backend for gemm in golden.plan.gemms]
    assert [gemm.backend for gemm in predicted.dump.plan.gemms] == backends


def test_the_dump_states_its_basis_and_is_no_lock(predicted: CompiledDump) -> None:
    manifest = predicted.dump.manifest
    assert manifest.predicted_lock is not None
    known = manifest.predicted_lock[Basis.KNOWN]
    assert (known > 0) == (JAXLIB in jaxlibs_of_tables()["h200"])
    assert known + manifest.predicted_lock[Basis.OTHER_JAXLIB] >= 8
    assert not manifest.tuned
    assert manifest.autotuning.startswith("predicted tuning (results of tuned instructions: ")
    assert dump_folder(Path(), manifest).name == f"h200-auto-predicted-jax{JAXLIB}"
    assert "autotune_lock.json" not in predicted.files


def test_xla_takes_a_result_of_triton(job: Job) -> None:
    """XLA ignores, without a message, a result that another Triton was tuned with."""
    assert job.known_results is not None
    rows = tuple(
        replace(
            row, config=re.sub(r"block_m: \d+ block_n: \d+", "block_m: 32 block_n: 32", row.config)
        )
        for row in job.known_results.results
        if row.backend == "TRITON"
    )
    squares = replace(job, known_results=replace(job.known_results, results=rows))
    plan = compile_dump(squares, None).dump.plan
    tiles = [
        re.findall(r'"sizes":\[("\d+"(?:,"\d+")*)', instruction.backend_config)
        for instruction in plan.instructions.values()
        if "nested_gemm_fusion" in instruction.backend_config
    ]
    assert len(tiles) >= 3
    assert all('"32","32"' in tile[0] for tile in tiles), tiles


@pytest.mark.slow
def test_results_that_xla_refuses_are_left_to_its_defaults(job: Job) -> None:
    assert job.known_results is not None
    rows = (
        replace(row, config=row.config.replace("block_m: ", "block_m: 7"))
        for row in job.known_results.results
    )
    broken = replace(job, known_results=replace(job.known_results, results=tuple(rows)))
    manifest = compile_dump(broken, None).dump.manifest
    assert manifest.predicted_lock is None
    assert manifest.autotuning.startswith("untuned (XLA refused the predicted tuning")


def test_an_error_that_is_not_of_the_lock_is_raised_after_two_compiles(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Job] = []

    def refuse(job: Job, *_: object) -> CompileRecord:
        tried.append(job)
        if job.known_results is not None:
            raise failed_child.LockRefusedError("with the lock")
        raise CompileError("without it")

    monkeypatch.setattr(child_process, "_run_child", refuse)
    with pytest.raises(CompileError, match="without it"):
        compile_dump(job, None)
    assert [item.known_results is None for item in tried] == [False, True]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_signal_from_outside_does_not_change_the_plan(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills a process where memory is short: XLA has not refused the lock."""
    monkeypatch.setenv("ENDED_ONCE", f"{tmp_path}:{int(number)}")
    monkeypatch.chdir(STEPS)
    (job,) = jobs_of(["broken:ended_once"], CompileSettings(tuning=Tuned.AUTO, use_cache=False))
    with pytest.raises(EndedBySignalError, match=f"was ended by {number.name}"):
        compile_dump(job, None)
    assert compile_dump(job, None).dump.manifest.predicted_lock is not None


ABSL = "F1123 10:11:12.345678 1234 triton.cc:5] Check failed: tiles.ok()"
TSL = "2026-11-23 10:11:12.345678: F external/xla/triton.cc:5] Non-OK-status: tiles"


@pytest.mark.parametrize(
    ("log", "code", "is_refusal"),
    [
        (ABSL, -signal.SIGABRT, True),
        (TSL, -signal.SIGABRT, True),
        ("E1123 1 2 xtile.cc:576] LLVM Fatal Error while compiling Triton kernel", 1, True),
        ("LLVM ERROR: operation destroyed but still has uses", -signal.SIGABRT, True),
        (ABSL, -signal.SIGKILL, False),
        (ABSL, -signal.SIGSEGV, False),
        ("terminate called after throwing an instance of 'std::bad_alloc'", -6, False),
        ("Failed to allocate", -signal.SIGABRT, False),
        ("", -signal.SIGABRT, False),
        ("", 3, False),
    ],
)
def test_what_shows_that_xla_refused_a_lock(
    job: Job, tmp_path: Path, log: str, code: int, is_refusal: bool
) -> None:
    job = replace(job, scratch=tmp_path)
    job.log_path.write_text(f"{log}\n")
    error = failed_child.crash(job, code)
    assert isinstance(error, failed_child.LockRefusedError) is is_refusal
    unlocked = failed_child.crash(replace(job, known_results=None), code)
    assert not isinstance(unlocked, failed_child.LockRefusedError)


@pytest.mark.parametrize(("status", "is_refusal"), [(9, False), (11, False), (65280, True)])
def test_a_program_of_xla_that_a_signal_ended_is_no_refusal(
    job: Job, status: int, is_refusal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(f"INTERNAL: ptxas exited with non-zero error code {status}, output: ")

    @contextmanager
    def answering(_: Path, __: str, answer: Callable[[bytes], None]) -> Iterator[list[bool]]:
        answer(b"")
        yield [True]

    lock = SimpleNamespace(chosen={"key": None}, defaults={}, basis={}, other_choice=0.0)
    monkeypatch.setattr(compile_program._Compile, "compiled", refuse)
    monkeypatch.setattr(compile_program._Compile, "module_before_passes", lambda _: ("", b""))
    monkeypatch.setattr(compile_program, "answering", answering)
    monkeypatch.setattr(compile_program, "predict_lock", lambda *_: lock)
    for name in ("fingerprint_text", "tuned_instructions", "write_results"):
        monkeypatch.setattr(compile_program, name, lambda *_: None)
    one = compile_program._Compile(job, SimpleNamespace(options={}), [])  # type: ignore[arg-type]
    error = compile_program.PredictedLockError if is_refusal else RuntimeError
    with pytest.raises(error, match="ptxas") as raised:
        one.with_predicted_lock()
    assert raised.type is error


def test_a_golden_is_of_the_untuned_plan(tmp_path: Path) -> None:
    compiled: list[bool] = []
    plans = PlansOfTest(
        file=Path(__file__),
        test="test_it",
        root=tmp_path,
        target="h200",
        cache=tmp_path / "cache",
        goldens=Goldens(tmp_path / "goldens", tmp_path, True, "pytest", lambda path, changes: None),
        on_plan=compiled.append,
        on_note=lambda note: None,
    )
    plan = plans(jax.numpy.dot, *DOT)
    assert plan.dump.manifest.predicted_lock is not None
    assert plan.matches_golden()
    (golden,) = (tmp_path / "goldens").glob("*/*")
    assert golden.name == f"h200-auto-jax{JAXLIB}"
    assert read_manifest(golden).predicted_lock is None
    assert compiled == [True, True]


def test_it_is_the_default_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan = xlapipe.plan(jax.numpy.dot, *DOT)
    assert repr(plan).startswith("<plan of dot on h200, predicted tuning: ")
    untuned = xlapipe.plan(jax.numpy.dot, *DOT, tuning="none")
    assert repr(untuned).startswith("<plan of dot on h200, untuned: ")
    # Nothing of this step is predicted.
    assert repr(xlapipe.plan(jax.numpy.tanh, DOT[0])).startswith("<plan of tanh on h200, untuned: ")


@pytest.mark.skipif(
    not JAXLIB.startswith("0.11."), reason="later ones leave the reshape outside of the product"
)
def test_a_product_with_no_block_of_triton_that_xla_compiles_is_cublaslts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA refuses every tile of Triton for rows that are made of 32 × 20."""

    def project(heads: jax.Array, weights: jax.Array) -> jax.Array:
        return heads.transpose(0, 3, 1, 2).reshape(32 * 20, 64) @ weights

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    heads = jax.ShapeDtypeStruct((32, 4, 16, 20), "bfloat16")
    plan = xlapipe.plan(project, heads, jax.ShapeDtypeStruct((64, 64), "bfloat16"))
    assert repr(plan).startswith("<plan of project on h200, predicted tuning: ")
    assert plan.temp_bytes >= WORKSPACE_BYTES


@pytest.mark.parametrize(
    ("step", "is_predicted"),
    [
        (lambda x: jax.numpy.tanh(x) + x.sum(0), False),
        (jax.numpy.sort, False),
        (lambda x: x @ x, True),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y @ y, x), True),
        (lambda x: jax.numpy.convolve(x[0], x[1]), True),
        (jax.numpy.linalg.cholesky, True),
        (lambda x: jax.lax.linalg.triangular_solve(x, x), True),
        (lambda x: jax.lax.ragged_dot(x, x[None], jax.numpy.array([8])), True),
    ],
)
def test_what_names_no_product_is_not_predicted(step: Any, is_predicted: bool) -> None:
    exported = jax.export.export(jax.jit(step), platforms=("cuda",))
    bytecode = exported(jax.ShapeDtypeStruct((8, 8), "float32")).mlir_module_serialized
    assert compile_program.names_tuned_operations(bytecode) == is_predicted


def test_an_executable_is_not_built_with_a_predicted_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "built")
    assert main(["build", WORKLOAD, "--tuning", "auto", "--out", out]) == 2
    assert "predicted tuning is for plans" in capsys.readouterr().err
