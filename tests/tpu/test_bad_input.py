"""Bad input for TPUs: one error that states what to do, and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tpu.live import ROOT, job_of, needs_libtpu, own
from xlapipe.cli import main
from xlapipe.compile.pipeline import make_dump
from xlapipe.dump.dump import open_dump

pytestmark = needs_libtpu

# Without ALLOW_MULTIPLE_LIBTPU_LOAD libtpu locks its file until the process ends.
HOLDS_THE_LOCK = """
import os, sys
os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")
os.environ.pop("ALLOW_MULTIPLE_LIBTPU_LOAD", None)
from jax.experimental import topologies
topologies.get_topology_desc(
    platform="tpu", topology_name="v6e:1x1", chips_per_host_bounds=[1, 1, 1]
)
print("ready", flush=True)
sys.stdin.read()
"""


def line_of(text: str) -> int:
    """The number of the first line of `steps.py` that contains a text."""
    lines = (ROOT / "tests/tpu/steps.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("workload", "topology", "expected"),
    [
        ("donated", "1x2", ["the chips do not fill hosts of 2x2 chips", "fix: use multiples"]),
        ("donated", "2x2", ["it has no mesh, so it uses 1 device, topology 2x2 has 4"]),
        ("over_two", None, ["2 devices are 2 chips", "fix: pass --topology"]),
        ("over_two", "2x2", ["mesh (d=2) has 2 devices, topology 2x2 has 4"]),
        (
            "gpu_kernel",
            None,
            [
                "calls a Pallas kernel at",
                "steps.py:<line>",
                "compile for Google's TPUs",
                "fix: call",
            ],
        ),
        ("large_kernel", None, ["does not fit", "space=vmem", "scale_kernel"]),
    ],
)
def test_one_error_and_exit_code_2(
    workload: str,
    topology: str | None,
    expected: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--topology", topology] if topology is not None else []
    arguments = ["dump", own(workload), "--target", "v6e", *options, "--out", str(tmp_path)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("error:") == 1
    assert "Traceback" not in error
    for part in expected:
        assert part.replace("<line>", str(line_of("compiler_params="))) in error


def test_a_kernel_that_is_too_large_for_vmem_gives_its_plan(tmp_path: Path) -> None:
    assert main(["dump", own("large_kernel"), "--target", "v6e", "--out", str(tmp_path)]) == 2
    (path,) = (tmp_path / "large-kernel").iterdir()
    dump = open_dump(path)
    assert dump.manifest.refused is not None
    assert dump.plan.totals.parameter_bytes == 65536 * 1024 * 4


def test_another_process_may_hold_the_lock_of_libtpu(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS_THE_LOCK]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        second = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert second.returncode != 0
        assert "libtpu multi-process lockfile" in second.stderr
        assert make_dump(job_of(own("donated")), tmp_path).dump.plan.aliases
        holder.kill()


def test_a_plan_cannot_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_dump(job_of(own("donated")), tmp_path).dump.path
    assert main(["run", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("error:") == 1
    assert "holds a plan for v6e, and executables are built for NVIDIA GPUs only" in error
