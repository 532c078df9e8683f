"""The fixture `xlapipe_plan`, called as the plugin calls it, with a separate cache."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

from tests.folders import STEPS
from tests.steps import broken
from xlapipe import Workload
from xlapipe.api.plan_arguments import job_of
from xlapipe.api.step_plan import StepPlan
from xlapipe.api.testing.goldens import Goldens
from xlapipe.api.testing.session import PlansOfTest, PlanUnderTest, explanations
from xlapipe.compile import child_process
from xlapipe.compile.compile_cache import digest_of
from xlapipe.compile.lowering.in_process import lower_in_test
from xlapipe.compile.lowering.leaves import same_buffers
from xlapipe.compile.messages import LoweredProgram
from xlapipe.compile.pipeline import make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.devices.targets.topology import Topology
from xlapipe.dump.manifest import MANIFEST
from xlapipe.errors import DumpError, XlapipeError
from xlapipe.expect import NoCopyAbove, ParameterBytes, TempAtMost
from xlapipe.plans.donation import DonationOutcome
from xlapipe.registry import WorkloadReference

pytestmark = pytest.mark.jax

TARGET = target_named("h200")


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def calls() -> list[Any]:
    """What the callbacks receive: True for a compiled plan, names of written goldens."""
    return []


@pytest.fixture
def plans(cache_folder: Path, tmp_path: Path, calls: list[Any]) -> PlansOfTest:
    return plans_of(tmp_path, cache_folder, calls)


def plans_of(root: Path, folder: Path, calls: list[Any], *, update: bool = False) -> PlansOfTest:
    return PlansOfTest(
        file=STEPS / "test_file.py",
        test="test_it[a b]",
        root=STEPS,
        target="h200",
        cache=folder,
        goldens=Goldens(root / "hlo_dumps", root, update, "pytest --xlapipe-update", _tell(calls)),
        on_plan=calls.append,
        on_note=calls.append,
    )


def _tell(calls: list[Any]) -> Callable[[str, list[str]], None]:
    return lambda path, what: calls.append((path, what))


@pytest.fixture
def good(plans: PlansOfTest) -> PlanUnderTest:
    return plans(broken.good())


NOT_DONATED = replace(broken.good(), donate_argnums=())


@pytest.fixture
def lost(plans: PlansOfTest) -> PlanUnderTest:
    return plans(NOT_DONATED)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Pallas' backends
def test_lowering_here_equals_lowering_in_the_child() -> None:
    """Module, names and locations are byte-identical."""
    names = ["good", "sharded", "pallas"]
    done = subprocess.run(
        [sys.executable, str(STEPS / "lowered_elsewhere.py"), *names],
        capture_output=True,
        text=True,
        check=True,
    )
    programs = [lower_in_test(getattr(broken, name)(), TARGET.config_text) for name in names]
    digests = [digest_of(program=replace(it, expectations=())) for it in programs]
    assert digests == done.stdout.split()


def test_the_plan_is_the_workloads(good: PlanUnderTest, tmp_path: Path) -> None:
    reference = WorkloadReference("good", "broken:good", folder=STEPS)
    job = replace(
        job_of(
            broken.good(),
            target="h200",
            gemm="auto",
            topology=None,
            tuning=None,
            timeout=None,
        ),
        reference=reference,
    )
    made = make_dump(job, tmp_path, folder=STEPS)
    names = sorted(path.name for path in made.dump.path.iterdir())
    assert names == sorted(path.name for path in good.dump.path.iterdir())
    for name in names:
        assert (good.dump.path / name).read_bytes() == (made.dump.path / name).read_bytes(), name


def test_settings_of_the_test_apply_to_the_step() -> None:
    """Lowering on another thread must keep a `with jax.default_matmul_precision(…)`."""
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    workload = Workload(name="dot", fn=jnp.dot, args=(x, x))
    plain = lower_in_test(workload, TARGET.config_text)
    with jax.default_matmul_precision("highest"):
        highest = lower_in_test(workload, TARGET.config_text)
    assert "HIGHEST" in text_of(highest)
    assert "HIGHEST" not in text_of(plain)


@pytest.mark.parametrize(("topology", "hosts"), [(None, 2), (Topology.parse("4x4"), 4)])
def test_a_step_is_lowered_for_the_hosts_that_its_mesh_is_on(
    topology: Topology | None, hosts: int
) -> None:
    """As in the child: a mesh of 16 GPUs is on two hosts of 8, unless a topology is given."""
    workload = Workload(
        name="hosts",
        fn=lambda x: x * jax.process_count(),
        args=(jax.ShapeDtypeStruct((16,), jnp.float32),),
        mesh={"d": 16},
        in_specs=(jax.sharding.PartitionSpec("d"),),
    )
    lowered = lower_in_test(workload, TARGET.config_text, topology=topology)
    assert f"dense<{hosts}.0" in text_of(lowered)


def text_of(program: LoweredProgram) -> str:
    with mlir.make_ir_context():
        return str(ir.Module.parse(program.stablehlo))


def test_the_location_of_the_call_is_not_in_the_module() -> None:
    programs = [lower_in_test(broken.good(), TARGET.config_text)]
    programs.append(lower_in_test(broken.good(), TARGET.config_text))
    assert programs[0] == programs[1]
    for word in (b"test_plan_under_test", b"pytest", b"pluggy", b"threading"):
        assert word not in programs[0].stablehlo


def test_answers(good: PlanUnderTest, lost: PlanUnderTest) -> None:
    assert good.aliases("cache") and good.donated("cache")
    assert good.check(NoCopyAbove(10)) and good.check()
    assert [row.outcome for row in good.donations] == [DonationOutcome.ALIASED]
    assert good.total_allocation_bytes == good.totals.total_allocation_bytes
    assert good.temp_bytes == good.totals.temp_bytes
    assert good.gemms() == good.gemms("cublas") == ()
    assert good.copies() == () and not good.tuned
    assert good.collectives() == good.collectives("all-gather") == ()
    assert repr(good) == "<plan of good for h200, untuned>"
    answer = lost.aliases("cache")
    assert not answer
    assert repr(answer) == "<not Aliased(name='cache')>"
    assert "it is not donated; out[0]['k'] has a separate allocation" in str(answer)
    assert "add the argument 'cache' to donate_argnums" in str(answer)
    both = lost.check(NoCopyAbove(10), TempAtMost(2**30))
    assert repr(both) == "<1 of 2 do not hold: NoCopyAbove(limit_bytes=10)>"
    assert [copy.copied_bytes for copy in lost.copies(above_bytes=10)] == [broken.CACHE_BYTES]


def test_a_false_answer_explains_the_assertion_that_contains_it(
    plans: PlansOfTest, lost: PlanUnderTest
) -> None:
    answer, other = lost.aliases("cache"), lost.check(NoCopyAbove(10))
    message = f"assert {answer!r}\n +  where …"
    assert explanations(plans.answers, message) == [str(answer)]
    assert explanations(plans.answers, "assert 1 == 2") == []
    assert explanations(plans.answers, "") == [str(other)]  # assertions are not rewritten


def test_a_failed_comparison_of_totals_lists_the_largest_values(
    plans: PlansOfTest, lost: PlanUnderTest
) -> None:
    assert lost.temp_bytes >= 0
    (text,) = explanations(plans.answers, f"assert 5 < 4\n +  where 5 = {lost!r}.temp_bytes")
    assert text.startswith("the largest values at the peak")
    assert "broken.py:" in text


def test_a_local_function_with_one_array_in_two_leaves(plans: PlansOfTest) -> None:
    factor = 3
    x = jnp.zeros((64, 1024))

    def step(cache: dict[str, Any], rate: jax.Array) -> dict[str, jax.Array]:
        return {"k": cache["k"] * factor + rate, "v": cache["v"] - rate}

    plan = plans(step, {"k": x, "v": x}, np.float32(1), donate="cache")
    assert plan.dump.manifest.workload.startswith("test_file-test_it-a-b")
    assert [leaf.path for leaf in plan.program.arguments] == ["cache['k']", "cache['v']", "rate"]
    assert [row.outcome for row in plan.donations] == [DonationOutcome.SAME_BUFFER] * 2
    assert "cache['v'] is the same array" in str(plan.aliases("cache['k']"))


def test_a_jitted_step_keeps_its_donation() -> None:
    workload = broken.good()
    jitted = jax.jit(workload.fn, donate_argnums=0)
    own = replace(workload, fn=jitted, donate_argnums=())
    lowered, lowered_own = (lower_in_test(item, TARGET.config_text) for item in (workload, own))
    assert [leaf.donated for leaf in lowered_own.arguments] == [True, False]
    assert lowered_own == lowered


def test_leaves_that_share_a_buffer_are_found() -> None:
    x, y, n = jnp.zeros((4,)), jnp.ones((4,)), np.zeros((4,))
    key = jax.random.key(0)
    tree = {"x": x, "n": n, "empty": jnp.zeros((0,)), "key": key}
    again = {"y": y, "x": x, "n": n, "empty": jnp.zeros((0,)), "key": key}
    shared = same_buffers(Workload(name="w", fn=lambda a, b: (a, b), args=(tree, again)))
    assert shared["b['x']"] == "a['x']" and shared["a['x']"] == "b['x']"
    assert {path.partition("[")[2] for path in shared} == {"'x']", "'key']"}


def test_a_typed_key_is_an_argument(plans: PlansOfTest) -> None:
    workload = Workload(
        name="noise",
        fn=lambda key, x: x + jax.random.normal(key, x.shape),
        args=(jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((8,), np.float64)),
    )
    key, x = lower_in_test(workload, TARGET.config_text).arguments
    assert (key.dtype, key.size_bytes) == ("key<fry>", 8)
    assert (x.dtype, x.size_bytes) == ("float32", 32)


X = jax.ShapeDtypeStruct((4,), jnp.float32)


def call_with(args: tuple[Any, ...], **fields: Any) -> Any:
    """A function that calls the fixture with these arguments."""
    return lambda plans: plans(*args, **fields)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (call_with((3,)), "expected a function with its arguments, a Workload"),
        (call_with((broken.good(), X)), "leave out args"),
        (call_with((broken.good(),), donate=0, mesh={"x": 1}), "leave out donate, mesh"),
        (call_with((jnp.sin, X), donate="nothing"), "no parameter of that name"),
        (call_with((jnp.sin, X), donate=3), "donate_argnums names argument 3"),
        (lambda _: Workload(name="w", fn=jnp.sin, args=(X,), static_argnums=-1), "argument -1"),
        (call_with((jnp.sin, X), options={"no": 1}), "xla_*"),
        (call_with((jnp.sin, X), target="h20"), "unknown target 'h20'"),
        (
            call_with((jnp.sin, X), target="nowhere.txtpb"),
            "nowhere.txtpb: expected a file or directory, found none",
        ),
        (call_with((jnp.sin, X), target="attached"), "device capture"),
        (call_with((jnp.sin, X), gemm="fast"), "expected one of auto, cublas, triton"),
        (call_with((jnp.sin, X), timeout=-1), "above 0"),
        (call_with((jnp.sin, X), tuning="nowhere.json"), "found none"),
        (call_with((jnp.sin, "text")), "functools.partial"),
        (call_with((jax.jit(jnp.sin), X), donate=0), "jitted already"),
        (call_with((jnp.sin, X), name="a b"), "workload name 'a b'"),
        (call_with((jnp.sin, X), topology="8"), "expected HOSTSxGPUS"),
        (call_with((broken.over(),), topology="1x8"), "mesh (d=2) has 2 devices"),
    ],
)
def test_refused_before_compiling(
    call: Any, expected: str, plans: PlansOfTest, calls: list[Any]
) -> None:
    with pytest.raises(XlapipeError) as caught:
        call(plans)
    assert expected in str(caught.value)
    assert caught.value.__cause__ is None
    assert calls == []


def test_collectives(plans: PlansOfTest) -> None:
    plan = plans(broken.sharded(), topology="2x1")
    (reduced,) = plan.collectives("all-reduce")
    assert plan.collectives() == (reduced,)
    assert (reduced.group_size, reduced.crosses_hosts(gpus_per_host=1)) == (2, True)


def test_exceptions_of_the_step_are_not_caught(plans: PlansOfTest) -> None:
    with pytest.raises(TypeError, match=r"incompatible shapes|contracting"):
        plans(broken.does_not_lower())


def test_invalid_questions_are_refused(plans: PlansOfTest, good: PlanUnderTest) -> None:
    with pytest.raises(XlapipeError, match="unknown gemm backend 'magma'"):
        good.gemms("magma")
    with pytest.raises(XlapipeError, match="unknown kind of collective 'gather'; known: all-g"):
        good.collectives("gather")
    bare = StepPlan(good.opened)
    with pytest.raises(XlapipeError, match="no expectations to check"):
        bare.check()


def no_compile(*_: Any) -> Any:
    raise AssertionError("compiled again")


def test_an_unchanged_program_is_not_compiled_again(
    plans: PlansOfTest, good: PlanUnderTest, monkeypatch: pytest.MonkeyPatch, calls: list[Any]
) -> None:
    monkeypatch.setattr(child_process, "_wait_for_child", no_compile)
    del calls[:]
    again = plans(replace(broken.good(), expectations=(ParameterBytes(1),)))
    assert calls == [False]
    assert again.dump.plan == good.dump.plan
    # Expectations are not part of the program, and come from the present workload.
    assert not again.check()
    assert again.dump.expectations == (ParameterBytes(1),)


def test_a_missing_golden_names_the_command_that_writes_it(good: PlanUnderTest) -> None:
    answer = good.matches_golden()
    assert not answer
    assert "there is no golden hlo_dumps/good/h200-auto-jax" in str(answer)
    assert "pytest --xlapipe-update" in str(answer)


@pytest.fixture
def golden(good: PlanUnderTest, cache_folder: Path, tmp_path: Path, calls: list[Any]) -> Path:
    """A golden written with --xlapipe-update."""
    del calls[:]
    assert plans_of(tmp_path, cache_folder, calls, update=True)(broken.good()).matches_golden()
    (manifest,) = tmp_path.glob(f"hlo_dumps/good/*/{MANIFEST}")
    assert calls == [False, (str(manifest.parent.relative_to(tmp_path)), ["new"])]
    return manifest.parent


def test_a_golden_is_matched_and_left_alone(
    golden: Path, good: PlanUnderTest, cache_folder: Path, tmp_path: Path, calls: list[Any]
) -> None:
    assert good.matches_golden()
    # Moved source lines do not change the plan: an update leaves the golden as it is.
    (golden / "after_optimizations.txt").write_text("with other line numbers")
    del calls[:]
    assert plans_of(tmp_path, cache_folder, calls, update=True)(broken.good()).matches_golden()
    assert calls == [False]
    assert (golden / "after_optimizations.txt").read_text() == "with other line numbers"


def test_a_different_plan_is_described_in_sentences_first(
    golden: Path, plans: PlansOfTest, cache_folder: Path, tmp_path: Path, calls: list[Any]
) -> None:
    answer = plans(NOT_DONATED).matches_golden()
    assert not answer
    lines = str(answer).splitlines()
    assert lines[1] == "  cache['k'] is no longer donated"
    assert any("131,072 B" in line for line in lines[2:6])
    text = next(n for n, line in enumerate(lines) if line == "--- golden plan.txt")
    assert text > lines.index("  cache['k'] is no longer donated")
    assert lines[-1] == "if the change is intended, update the golden: pytest --xlapipe-update"
    del calls[:]
    assert plans_of(tmp_path, cache_folder, calls, update=True)(NOT_DONATED).matches_golden()
    (_, (path, what)) = calls
    assert path.startswith("hlo_dumps/good/") and "cache['k'] is no longer donated" in what


def test_two_plans_of_a_test_do_not_share_a_golden(plans: PlansOfTest, golden: Path) -> None:
    assert plans(broken.good()).matches_golden()
    assert plans(broken.good()).matches_golden()
    with pytest.raises(XlapipeError, match=r"two plans would share the golden .* name="):
        plans(NOT_DONATED).matches_golden()


def test_a_golden_of_a_newer_schema_is_refused(golden: Path, good: PlanUnderTest) -> None:
    path = golden / MANIFEST
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(DumpError, match=r"schema version 99.*newer xlapipe"):
        good.matches_golden()
