"""Counting calls of Pallas kernels, in hand-written instructions and in a golden with a loop."""

from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.hlo_objects import instruction
from xlapipe.devices.platforms.nvidia import MOSAIC_CALL, TRITON_CALL
from xlapipe.dump.dump import open_dump
from xlapipe.expect import KernelCount
from xlapipe.plans.hlo import Instruction


def call(config: str, target: str = TRITON_CALL) -> Instruction:
    return instruction(
        "pallas_call.3",
        "custom-call",
        "f32[8]{0}",
        custom_call_target=target,
        backend_config=config,
    )


@pytest.mark.parametrize(
    ("expected", "instruction"),
    [
        (
            "norm",
            call('{grid_x = 8 : i32, ir = "ML\\EFR\\22", name = "norm", num_warps = 2 : i32}'),
        ),
        # The kernel's own text may contain anything; its quotes are escaped.
        ("norm", call('{ir = "name = \\22other\\22", name = "norm"}')),
        (None, call('{name = "norm"}', target="__cublas$lt$matmul")),
        (None, call("{grid_x = 8 : i32}")),
        # Bytecode contains the names of the dialect and of the kernel among others.
        (
            "swiglu",
            call(r'{module = "main\00stable_mosaic_gpu\00x\00swiglu_mosaic_gpu\00"}', MOSAIC_CALL),
        ),
        (None, call(r'{module = "main\00stable_mosaic_gpu\00"}', MOSAIC_CALL)),
        (None, instruction("norm", "fusion", "f32[8]{0}", backend_config='{name = "norm"}')),
    ],
)
def test_kernel_name_of_a_custom_call(expected: str | None, instruction: Instruction) -> None:
    assert instruction.kernel_name == expected


def test_calls_in_a_loop_are_counted_and_a_missing_call_is_reported(goldens: Path) -> None:
    program = open_dump(goldens / "qwen3-generate" / f"h200-cublas-jax{GOLDEN_JAXLIB}")
    assert KernelCount("matvec_add", 4).check(program).holds
    finding = KernelCount("matvec_add", 5).check(program)
    (violation,) = finding.violations
    assert violation.expected == "5 calls of kernel matvec_add"
    assert violation.found.startswith("4 (kernels: 2 decode_attention, 4 matvec_add,")
    assert not KernelCount("flash", 1).check(program).holds
    plain = open_dump(goldens / "qwen3-decode" / f"h200-cublas-jax{GOLDEN_JAXLIB}")
    assert KernelCount("matvec_add", 4).check(plain).violations[0].found == "0 (kernels: none)"
    assert KernelCount("matvec_add", 0).check(plain).holds
