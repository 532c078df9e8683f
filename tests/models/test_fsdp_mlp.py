"""Plans of the sharded MLP on many devices, and its expectations on programs that break them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from models.fsdp_mlp.sizes import MLPSizes
from models.fsdp_mlp.workloads import fsdp_mlp, fsdp_mlp_reference
from tests.folders import STEPS
from tests.steps.broken_programs import compile_dumps, each_expectation_fails_on_one
from xlapipe import Workload
from xlapipe.cli import main
from xlapipe.errors import XlapipeError
from xlapipe.expect import check_all

pytestmark = pytest.mark.jax

MODULE = "models.fsdp_mlp.workloads"
# The good workload, and the names of its broken programs.
BROKEN: dict[str, tuple[Callable[[], Workload], tuple[str, ...]]] = {
    "training": (fsdp_mlp, ("smaller", "kernels_kept")),
    "reference": (fsdp_mlp_reference, ("more_collectives", "undefined_copies")),
}


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["8x8", "1x8"])
def test_expectations_hold_on_many_devices(
    topology: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dump,) = compile_dumps([f"{MODULE}:fsdp_mlp"], tmp_path, capsys, "--topology", topology)
    assert dump.manifest.topology == topology
    hosts, gpus = map(int, topology.split("x"))
    sizes = MLPSizes(devices=hosts * gpus)
    findings = check_all(dump.expectations, dump)
    assert [str(finding) for finding in findings if not finding.holds] == []
    # Checks the closed forms themselves, with numbers that do not come from MLPSizes.
    totals = dump.plan.totals
    single_device = MLPSizes(devices=1)
    batch_bytes = 2 * 4096 * 8192 * 2
    kernel_and_moment_bytes = 3 * 4 * 8192 * 8192 * 4
    expected_bytes = kernel_and_moment_bytes // sizes.devices + 4 + batch_bytes
    assert totals.parameter_bytes == expected_bytes
    assert sizes.parameter_shard_bytes * sizes.devices == single_device.parameter_shard_bytes
    assert totals.temp_bytes < 800e6


@pytest.mark.parametrize("case", BROKEN)
def test_each_expectation_fails_on_a_program_that_breaks_it(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make, names = BROKEN[case]
    monkeypatch.chdir(STEPS)
    dumps = compile_dumps([f"broken_fsdp:{case}_{name}" for name in names], tmp_path, capsys)
    assert len(dumps) == len(names)
    each_expectation_fails_on_one(make, dumps)


def test_two_rows_give_five_gemms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a single row, XLA turns none of the five dots into a gemm."""
    (dump,) = compile_dumps([f"{MODULE}:fsdp_mlp_reference(batch=2)"], tmp_path, capsys)
    assert [gemm.backend for gemm in dump.plan.gemms] == ["cublaslt"] * 5
    # The root is the combined reduce-scatter, whose results are in different allocations.
    outputs = [dump.plan.output_allocation(index, of=3) for index in range(3)]
    assert len({allocation.index for allocation in outputs if allocation is not None}) == 3
    assert all(finding.holds for finding in check_all(dump.expectations, dump))


def test_one_device_has_no_collectives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = f"{MODULE}:fsdp_mlp(hidden=256, batch=128, devices=1)"
    (dump,) = compile_dumps([small], tmp_path, capsys)
    assert dump.plan.collectives == ()
    assert all(finding.holds for finding in check_all(dump.expectations, dump))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": 0}, "layers=0: expected an integer of 1 or more"),
        ({"devices": 0}, "devices=0: expected an integer of 1 or more"),
        ({"hidden": True}, "hidden=True: expected an integer of 1 or more"),
        (
            {"devices": 6},
            r"state\['params'\]\['layers'\]\[0\]\['kernel'\] \[8192, 8192\]: axis 0 \(8192\) "
            "cannot be split over the 6 devices of mesh axis 'fsdp'; fix: choose a multiple of 6 "
            "for hidden, or another number of devices",
        ),
    ],
)
def test_invalid_sizes_are_errors(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(XlapipeError, match=message):
        fsdp_mlp(**arguments)


def test_a_size_of_another_type_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    # In the compiling child, as for users: in tests, a type check refuses the value before.
    assert main(["check", "fsdp-mlp(batch=0.5)"]) == 2
    assert "batch=0.5: expected an integer of 1 or more" in capsys.readouterr().err
