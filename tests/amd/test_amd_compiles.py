"""Compiles for AMD GPUs with jax's plugin for ROCm, without ROCm: `make test-amd`."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.amd.record import RECORD, job_of, outcome
from tests.conftest import ROOT
from xlapipe.cli import main
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import CompiledDump, make_dump
from xlapipe.devices.targets.catalogue import catalogue
from xlapipe.errors import WorkloadError
from xlapipe.expect import check_all
from xlapipe.plans.missing_memory import MissingKind
from xlapipe.registry import find_workload

try:
    PLUGIN: str | None = version("jax-rocm7-plugin")
except PackageNotFoundError:
    PLUGIN = None

pytestmark = pytest.mark.skipif(PLUGIN is None, reason="no plugin for ROCm: make test-amd")
ROWS = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
# Products, an FFT and a scan; collectives; Pallas; a solver; a whole model.
FIVE = ("fsdp-mlp", "qwen3-step", "spectral-diffusion", "torch-mlp", "torch-resnet18")


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def made(
    name: str, out: Path, target: str = "mi300x", gemm: str = "auto", topology: str | None = None
) -> CompiledDump:
    settings = CompileSettings(target=target, policies=(gemm,), topology=topology)
    (job,) = jobs_of([name if "-" in name else f"tests.amd.steps:{name}"], settings)
    return make_dump(job, out)


@pytest.mark.parametrize("name", FIVE)
def test_five_programs_are_as_recorded(name: str) -> None:
    (row,) = [row for row in ROWS if row["program"] == name]
    assert {"kind": row["kind"], "program": name, **outcome(job_of(find_workload(name)))} == row


@pytest.mark.parametrize("target", [row.name for row in catalogue() if row.platform == "rocm"])
def test_a_product_by_hipblaslt_has_the_workspace_of_its_architecture(
    target: str, tmp_path: Path
) -> None:
    dump = made("product", tmp_path, target, gemm="cublas").dump
    assert dump.plan.platform == dump.manifest.platform == "rocm"
    assert [gemm.backend for gemm in dump.plan.gemms] == ["hipblaslt"]
    workspace = {"mi2": 4_194_304, "mi3": 79_691_776}[target[:3]]
    if target in ("mi350x", "mi355x"):
        workspace = 67_108_864
    calls = [item for item in dump.plan.instructions.values() if item.custom_call_target]
    assert [array.text for call in calls for array in call.shape.arrays][1:] == [
        f"s8[{workspace}]{{0}}"
    ]
    assert dump.manifest.xla_patches == ("stand-ins",)
    assert not dump.manifest.tuned


def test_a_convolution_is_labelled_as_not_the_devices_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = made("convolution", tmp_path)
    kinds = {item.kind for item in written.dump.plan.missing_memory}
    assert kinds == {MissingKind.CONVOLUTION}
    assert main(["show", str(written.dump.path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "2 convolutions by XLA's own kernel, not the device's choice" in text
    assert "predicted" not in text


@pytest.mark.parametrize(
    ("name", "target"), [("sums", "__gpu$xla.gpu.triton"), ("cholesky", "hipsolver_potrf_ffi")]
)
def test_pallas_by_triton_and_solvers_compile(name: str, target: str, tmp_path: Path) -> None:
    module = made(name, tmp_path).dump.plan.module
    assert module is not None
    assert target in {item.custom_call_target for _, item in module.instructions()}


def test_a_kernel_of_mosaic_gpu_is_refused_with_its_line(tmp_path: Path) -> None:
    match = r"Pallas kernel at .*tests/amd/steps\.py:\d+ that does not compile for AMD's GPUs"
    with pytest.raises(WorkloadError, match=match):
        made("mosaic", tmp_path)


def test_the_state_is_sharded_over_two_hosts_of_eight(tmp_path: Path) -> None:
    dump = made("fsdp-mlp", tmp_path, topology="2x8").dump
    findings = check_all(dump.expectations, dump)
    assert len(findings) == 17
    assert all(finding.holds for finding in findings)


def test_a_plan_is_compared_with_that_of_an_nvidia_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made("qwen3-step", tmp_path, gemm="cublas").dump.path
    nvidia = next((ROOT / "hlo_dumps" / "qwen3-step").glob("h200-cublas-*"))
    assert main(["diff", str(nvidia), str(path)]) in (0, 1)
    assert "went from cublaslt to hipblaslt" in capsys.readouterr().out
