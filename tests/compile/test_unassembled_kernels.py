"""Kernels of compiles for a plan alone are not assembled."""

import subprocess
from pathlib import Path

import pytest

from xlapipe.compile.compile_program import without_assembler
from xlapipe.devices.environment.machine import Machine

pytestmark = pytest.mark.jax


def test_ptxas_writes_empty_files_and_answers_questions_about_itself(tmp_path: Path) -> None:
    options = without_assembler(tmp_path / "cuda", "folder", "module_0002.jit_step")
    assert options["folder"] == str(tmp_path / "cuda")
    assert Path(options["xla_gpu_ptx_file"]).name == "module_0002.jit_step.ptx"
    assert list(without_assembler(tmp_path / "cuda", "folder")) == ["folder"]
    script = tmp_path / "cuda" / "bin" / "ptxas"
    real = Machine.local().cuda_tool("ptxas")
    versions = [subprocess.check_output([str(tool), "--version"]) for tool in (script, real)]
    assert versions[0] == versions[1]
    kernel, output = tmp_path / "not PTX", tmp_path / "kernel.cubin"
    subprocess.run([script, kernel, "-o", output, "-arch=sm_90a"], check=True)
    assert output.read_bytes() == b""
    assert any((tmp_path / "cuda" / "nvvm" / "libdevice").glob("libdevice*.bc"))
