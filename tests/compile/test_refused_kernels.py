"""An error about a Pallas kernel names the kernel, its line, and what to do."""

import pytest

from tests.folders import STEPS
from xlapipe.cli import main

pytestmark = pytest.mark.jax


def refusal(name: str, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    patch.chdir(STEPS)
    assert main(["check", f"kernel_steps:{name}", "--tuning", "none"]) == 2
    return capfd.readouterr().err


def line_of(text: str) -> str:
    lines = (STEPS / "kernel_steps.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"kernel_steps.py:{number}"


@pytest.mark.parametrize("name", ["whole_k", "in_a_loop_on_two_devices"])
def test_a_kernel_with_too_much_shared_memory_is_named(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal(name, capfd, monkeypatch)
    place = STEPS / line_of("return pl.pallas_call(")
    assert f"the Pallas kernel product_128 at {place}: " in error
    assert "requested 262144, available: 232448" in error
    assert error.count("Pallas kernel") == 1 and "product_32" not in error
    assert "fix: give the kernel smaller blocks (BlockSpec)" in error


def test_a_kernel_that_jax_cannot_lower_has_the_line_of_its_body(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal("unknown_primitive", capfd, monkeypatch)
    assert "Unimplemented primitive in Pallas Triton lowering: sort" in error
    assert f"at {STEPS / line_of('jnp.sort(')} in sorting: out[...] = jnp.sort(a[...])" in error


def test_kernels_are_listed_where_llvm_ends_the_process(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal("three_warps", capfd, monkeypatch)
    assert "LLVM Fatal Error while compiling Triton kernel" in error
    line = line_of("return odd_warps(x)")
    assert f"the step's Pallas kernels: odd_warps at {STEPS / line}; fix: " in error
