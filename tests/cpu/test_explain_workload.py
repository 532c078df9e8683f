"""`xlapipe explain --workload`: the changes that it compiles, and what they save."""

import json
from pathlib import Path

import jax
import pytest

from xlapipe.cli import main
from xlapipe.compiling.make_jobs import CompileOptions, jobs_of
from xlapipe.compiling.remedies import changes_of, donatable_arguments
from xlapipe.dumps.opened import open_path
from xlapipe.errors import WorkloadError
from xlapipe.lowering.changed_workload import changed_workload
from xlapipe.registry import WorkloadReference

FOLDER = Path(__file__).parent
REFERENCE = WorkloadReference("hungry", "hungry_step:hungry", folder=FOLDER)


def changed(**change: object) -> str:
    """The traced program of the changed step."""
    workload = changed_workload(reference=REFERENCE.to_json(), **change)  # type: ignore[arg-type]
    return str(jax.make_jaxpr(workload.fn)(*workload.args))


def test_a_differentiated_function_is_rematerialised() -> None:
    assert "remat" not in changed()
    assert "nothing_saveable" in changed(checkpoint="nothing_saveable")
    assert "policy=" in changed(checkpoint="dots_saveable")
    assert "f32<host>[4096,64]" in changed(checkpoint="offload")
    assert "remat" not in changed()  # jax.value_and_grad is as before


def test_a_size_is_halved() -> None:
    assert "f32[2048,64]" in changed(halve="batch")
    with pytest.raises(WorkloadError, match="expected an integer rows of 2 or more"):
        changed(halve="rows")


def test_names_are_donated() -> None:
    workload = changed_workload(reference=REFERENCE.to_json(), donate=("params",))
    assert workload.donated_names == ("params",)


def test_only_arguments_that_fit_an_output_are_donated(goldens: Path) -> None:
    program = open_path(goldens / "spectral-diffusion/h200-cublas-jax0.11.2").program
    assert donatable_arguments(program) == ("x",)
    donated = open_path(goldens / "qwen3-step-donated/h200-cublas-jax0.11.2").program
    assert donatable_arguments(donated) == ()


def test_the_changes_of_a_program(goldens: Path) -> None:
    program = open_path(goldens / "spectral-diffusion/h200-cublas-jax0.11.2").program
    (job,) = jobs_of(["spectral-diffusion(batch=4)"], CompileOptions())
    texts = [change.text for change in changes_of(program, job)]
    assert texts[0] == "donate x (donate_argnames=('x',))"
    assert "batch=2" in texts


@pytest.mark.exhaustive
def test_remedies_save_what_their_compile_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5.00MiB. "
        "[executable_name='jit_step']\n"
    )
    monkeypatch.chdir(FOLDER)
    assert main(["explain", str(log), "--workload", "hungry_step:hungry", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["plan"]["allocation"]["size_bytes"] == 5 * 2**20
    first, second = printed["remedies"][:2]
    assert first["change"] == "half batch"
    assert second["change"].startswith("donate params")
    assert second["bytes"] == 3 * 64 * 64 * 4  # XLA reuses memory of the fourth weight anyway
