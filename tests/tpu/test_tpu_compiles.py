"""Compiles for TPUs with libtpu, without a TPU: `make test-tpu`. They skip without libtpu."""

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from models.tpu_tiles import tpu_bytes
from tests.tpu.live import LIBTPU, ROOT, failures, job_of, needs_libtpu, own
from xlapipe.compile.pipeline import CompiledDump, build, compile_dump, make_dump, make_dumps
from xlapipe.compile.reused_compiles import COMPILED_AT, take_note
from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
from xlapipe.dump.readers import read_path
from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.plans.donation import donations
from xlapipe.plans.loops import find_loops
from xlapipe.plans.memory_spaces import MemorySpace

pytestmark = needs_libtpu


@pytest.mark.parametrize("target", list(tpu_catalogue()))
def test_a_step_for_each_target(target: str, tmp_path: Path) -> None:
    made = make_dump(job_of(own("donated"), target), tmp_path)
    plan, manifest = made.dump.plan, made.dump.manifest
    assert failures(made) == []
    assert (manifest.platform, manifest.versions["libtpu"]) == ("tpu", LIBTPU)
    assert made.dump.path.name == f"{target}-auto-jax{version('jaxlib')}-libtpu{LIBTPU}"
    assert plan.totals.aliased_bytes == 24 * 1024 * 2
    assert manifest.memory_analysis["argument_bytes"] == plan.totals.parameter_bytes
    assert set(plan.spaces) >= {MemorySpace.HBM, MemorySpace.HOST}


def test_text_and_protobuf_give_the_same_plan(tmp_path: Path) -> None:
    dump = make_dump(job_of(own("donated")), tmp_path / "dumps").dump
    texts = tmp_path / "texts"
    shutil.copytree(dump.path, texts, ignore=shutil.ignore_patterns("*.pb*"))
    assert read_path(texts) == dump.plan


def test_an_unchanged_program_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLAPIPE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    take_note()
    first, again = (compile_dump(job_of(own("donated")), None) for _ in range(2))
    assert [when is None for when in COMPILED_AT] == [True, False]
    assert again.files == first.files
    take_note()


def test_two_processes_in_two_folders_write_the_same_files(tmp_path: Path) -> None:
    folders = []
    for name in ("one", "another/and_deeper"):
        folder = tmp_path / name
        (folder / "tests").mkdir(parents=True)
        shutil.copytree(ROOT / "tests" / "tpu", folder / "tests" / "tpu")
        folders.append(folder)
    job = job_of(own("tpu_kernel"))
    dumps = [make_dump(job, folder / "out", folder=folder).dump for folder in folders]
    assert dumps[0].manifest == dumps[1].manifest
    assert dumps[0].manifest.files


def test_four_compiles_at_once(tmp_path: Path) -> None:
    jobs = [job_of(own("donated"), target) for target in ("v4", "v5e", "v5p", "v6e")]
    outcomes: list[CompiledDump | XlapipeError] = []
    make_dumps(jobs, tmp_path, at_once=4, on_done=lambda job, outcome: outcomes.append(outcome))
    assert [type(outcome) for outcome in outcomes] == [CompiledDump] * 4


def test_qwen3_decode_updates_its_cache_in_place(tmp_path: Path) -> None:
    made = make_dump(job_of("qwen3-decode"), tmp_path)
    assert failures(made) == []
    assert len(made.dump.plan.gemms) == 13
    assert [row.holds for row in donations(made.dump)] == [True] * 4
    assert any(row.moves for row in donations(made.dump))


@pytest.mark.slow
@pytest.mark.parametrize(("target", "topology"), [("v5e", "2x2"), ("v6e", "2x2"), ("v6e", "4x4")])
def test_the_training_step_meets_its_expectations(
    target: str, topology: str, tmp_path: Path
) -> None:
    made = make_dump(job_of("fsdp-mlp", target, topology), tmp_path)
    assert failures(made) == []
    assert [row.holds for row in donations(made.dump)] == [True] * 13


@pytest.mark.parametrize("workload", ["qwen3-step-donated", "qwen3-prefill"])
def test_models_meet_their_expectations(workload: str, tmp_path: Path) -> None:
    assert failures(make_dump(job_of(workload), tmp_path)) == []


def test_collectives_over_a_slice(tmp_path: Path) -> None:
    made = make_dump(job_of(own("sharded"), topology="2x2"), tmp_path)
    assert made.dump.manifest.device == "v6e 2x2"
    (gather,) = made.dump.plan.collectives or ()
    assert (gather.kind, gather.output_bytes, gather.group_size) == (
        "all-gather",
        1024 * 512 * 2,
        4,
    )
    assert [leaf.spec for leaf in made.dump.manifest.outputs] == [("d",)]


@pytest.mark.parametrize("target", list(tpu_catalogue()))
def test_a_slice_of_each_target(target: str, tmp_path: Path) -> None:
    """On a TPU7x, the sparse cores compute the sum."""
    grid = "x".join(("2", "2", "1")[: tpu_catalogue()[target].grid_dimensions])
    dump = make_dump(job_of(own("scattered"), target, grid), tmp_path).dump
    (scatter,) = (row for row in dump.plan.collectives or () if row.kind != "collective-permute")
    devices = 8 if target == "tpu7x" else 4
    assert (scatter.kind, scatter.group_size) == ("reduce-scatter", devices)
    assert scatter.operand_bytes == 8192 * 1024 * 2
    totals, analysis = dump.plan.totals, dump.manifest.memory_analysis
    assert analysis["argument_bytes"] == totals.parameter_bytes == 8192 * 1024 * 2
    assert analysis["output_bytes"] == totals.live_out_bytes == 8192 * 1024 * 2 // devices


def test_a_group_over_two_dimensions_of_the_grid_sums_whole_arrays(tmp_path: Path) -> None:
    """XLA scatters sums over 2x8 chips, a ring, and not over 4x4."""
    for grid, kind in (("2x8", "reduce-scatter"), ("4x4", "all-reduce")):
        dump = make_dump(job_of(own("scattered"), topology=grid), tmp_path).dump
        kinds = {row.kind for row in dump.plan.collectives or ()} - {"collective-permute"}
        assert kinds == {kind}


@pytest.mark.parametrize("target", list(tpu_catalogue()))
def test_the_closed_form_of_padding(target: str, tmp_path: Path) -> None:
    dump = make_dump(job_of(own("odd_shapes"), target), tmp_path).dump
    itemsizes = {"float32": 4, "bfloat16": 2, "int32": 4}
    expected = [tpu_bytes(leaf.shape, itemsizes[leaf.dtype]) for leaf in dump.manifest.arguments]
    parameters = {
        allocation.parameter_number: allocation.size_bytes
        for allocation in dump.plan.allocations
        if allocation.parameter_number is not None
    }
    assert [parameters[number] for number in range(len(expected))] == expected


def test_collectives_in_loops_count_for_every_trip(tmp_path: Path) -> None:
    plan = make_dump(job_of(own("scanned"), topology="2x2"), tmp_path).dump.plan
    assert plan.module is not None
    assert sorted(loop.trips or 0 for loop in find_loops(plan.module)) == [5, 7]
    (sum_,) = plan.collectives or ()
    assert (sum_.kind, sum_.executions) == ("all-reduce", 5 * 7)
    assert sum_.of_step(sum_.output_bytes) == 35 * 256 * 512 * 4


@pytest.mark.parametrize("chips", [1, 4])
def test_collectives_between_slices(chips: int, tmp_path: Path) -> None:
    """A sum over all devices is scattered in each slice, summed between slices, and gathered."""
    whole_bytes = 1024 * 512 * 2
    grid = "1x1" if chips == 1 else "2x2"
    made = make_dump(job_of(own("two_slices"), topology=f"{grid}-2slices"), tmp_path)
    assert made.dump.path.name.startswith(f"v6e-{grid}-2slices-auto")
    collectives = made.dump.plan.collectives or ()
    (between,) = (row for row in collectives if row.between_slices)
    assert (between.kind, between.output_bytes) == ("all-reduce", whole_bytes // chips)
    assert between.replica_groups == tuple((100_000 + n, 200_000 + n) for n in range(chips))
    within = [(row.kind, row.output_bytes) for row in collectives if not row.between_slices]
    sizes = [("reduce-scatter", whole_bytes // chips), ("all-gather", whole_bytes)]
    assert within == (sizes if chips > 1 else [])


def test_the_memory_of_the_host_is_separate(tmp_path: Path) -> None:
    """1000 × 1000 float32 are stored as 1000 × 1024, on the host too."""
    dump = make_dump(job_of(own("on_host")), tmp_path).dump
    state_bytes = 1000 * 1024 * 4
    host = dump.plan.spaces[MemorySpace.HOST]
    assert (host.total_allocation_bytes, host.aliased_bytes) == (state_bytes, state_bytes)
    assert dump.manifest.memory_analysis["host_argument_bytes"] == host.parameter_bytes
    assert dump.manifest.memory_analysis["host_alias_bytes"] == host.aliased_bytes
    assert dump.plan.totals.parameter_bytes == state_bytes


def test_a_pallas_kernel_has_its_name(tmp_path: Path) -> None:
    plan = make_dump(job_of(own("tpu_kernel")), tmp_path).dump.plan
    names = [item.kernel_name for item in plan.instructions.values() if item.kernel_name]
    assert names == ["scale_kernel"]


def test_a_kernel_for_gpus_is_refused_with_its_line(tmp_path: Path) -> None:
    lines = (ROOT / "tests/tpu/steps.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "compiler_params=" in text)
    message = (
        rf"Pallas kernel at .*tests/tpu/steps\.py:{line} that does not compile for Google's TPUs"
    )
    with pytest.raises(WorkloadError, match=message):
        make_dump(job_of(own("gpu_kernel")), tmp_path)


def test_a_mesh_over_part_of_a_slice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"2 devices are 2 chips.*fix: pass --topology"):
        make_dump(job_of(own("over_two")), tmp_path)
    with pytest.raises(WorkloadError, match=r"mesh .* has 2 devices, topology 2x2 has 4"):
        make_dump(job_of(own("over_two"), topology="2x2"), tmp_path)


def test_no_executable_is_built(tmp_path: Path) -> None:
    with pytest.raises(XlapipeError, match="executables are built for NVIDIA GPUs only"):
        build(job_of(own("donated")), tmp_path / "built")
