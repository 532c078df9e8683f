"""Calls of libraries that a fusion makes on slices of its operands."""

from pathlib import Path

import pytest

from tests.shared.small_hlo import plan_of_text
from tests.time.small_work import work_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.cost import step_cost
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.kernel_time import time_of

# As XLA writes it: the workspace of cuBLAS is the last result of the call and of the fusion.
NUMBERS = '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'
CALL = f'{{"gemm_backend_config":{{"dot_dimension_numbers":{NUMBERS}}}}}'
FUSION = '{"fusion_backend_config":{"kind":"__custom_fusion"}}'
RESULTS = "(f32[64,64]{1,0}, s8[33554432]{0})"
TEXTS = Path(__file__).with_name("texts")
TEXT = (TEXTS / "library_call_hlo.txt").read_text(encoding="utf-8")
for _name, _text in (
    ("RESULTS", RESULTS),
    ("CALL", f"backend_config={CALL}"),
    ("FUSION", f"backend_config={FUSION}"),
):
    TEXT = TEXT.replace(_name, _text)


def test_its_workspace_does_not_count_and_its_product_does() -> None:
    cost = step_cost(plan_of_text(TEXT), device_of_target("h200"))
    assert cost is not None
    (kernel,) = cost.kernels
    matrix = 4 * 64 * 64
    assert kernel.read_bytes == 2 * matrix + 4  # a slice, the other matrix, and the number
    assert kernel.written_bytes == matrix
    assert kernel.flops == {"f32": 2 * 64**3}


def test_it_is_predicted_as_the_library_call() -> None:
    work = work_of_text(TEXT)
    assert work.kind == "cublas f32"
    assert work.written_bytes == 4 * 64 * 64


@pytest.mark.parametrize(("matrices", "rows", "rounds"), [(64, 24, 1), (528, 24, 2), (528, 16, 1)])
def test_eigenvalues_of_many_matrices_are_computed_in_rounds(
    matrices: int, rows: int, rounds: int
) -> None:
    """An H200's 132 multiprocessors hold two matrices each of 17 to 32 rows, eight smaller ones."""
    shape = f"f32[{matrices},{rows},{rows}]{{2,1,0}}"
    target = 'custom_call_target="cusolver_syevd_ffi"'
    text = f"""HloModule small, is_scheduled=true
ENTRY main {{
  given = {shape} parameter(0)
  ROOT f = ({shape}, f32[{matrices},{rows}]{{1,0}}) custom-call(given), {target}
}}
"""
    work = work_of_text(text)
    assert work.kind == "cusolver_syevd_ffi of many f32"
    assert work.operations == rounds * 1e9


@pytest.mark.parametrize(
    ("head", "target", "milliseconds"),
    [
        # As an H200 took it: scores, of which there are as many, are the bottleneck of short heads.
        (16, "Softmax", 0.319),
        (32, "Softmax", 0.326),
        (16, "ScaleBiasSoftmax", 0.575),
        (32, "ScaleBiasSoftmax", 0.581),
        (64, "ScaleBiasSoftmax", 0.594),
    ],
)
def test_attention_with_short_heads_takes_as_long_as_its_scores(
    head: int, target: str, milliseconds: float
) -> None:
    config = (
        '{"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":'
        '["128","4","1024","1024"]},"mask_type":"NO_MASK"}}'
    )
    kind = f"bf16[128,1024,4,{head}]{{3,2,1,0}}"
    work = work_of_text(f"""HloModule small, is_scheduled=true
ENTRY main {{
  q = {kind} parameter(0)
  k = {kind} parameter(1)
  v = {kind} parameter(2)
  bias = bf16[1,4,1024,1024]{{3,2,1,0}} parameter(3)
  ROOT f = ({kind}, u8[0]{{0}}) custom-call(q, k, v, bias), \
custom_call_target="__cudnn$fmha{target}", backend_config={config}
}}
""")
    calibration = shipped_calibration("h200")
    assert calibration is not None
    seconds = time_of(work, 0, False, calibration).seconds
    assert 1e3 * seconds == pytest.approx(milliseconds, rel=0.15)


@pytest.mark.parametrize(
    ("labels", "kernel"),
    [("bf01_oi01->bf01", "[96,64,3,3]{3,2,1,0}"), ("b01f_o01i->b01f", "[96,3,3,64]{3,2,1,0}")],
)
def test_images_as_wide_as_they_have_channels_take_as_long_in_both_orders(
    labels: str, kernel: str
) -> None:
    image = "[8,64,96,96]" if labels.startswith("bf") else "[8,96,96,64]"
    work = work_of_text(f"""HloModule small, is_scheduled=true
ENTRY main {{
  x = f32{image}{{3,2,1,0}} parameter(0)
  y = f32{kernel} parameter(1)
  ROOT f = (f32[8,96,96,96]{{3,2,1,0}}, u8[0]{{0}}) custom-call(x, y), \
window={{size=3x3 pad=1_1x1_1}}, dim_labels={labels}, \
custom_call_target="__cudnn$convForward"
}}
""")
    assert work.blocks * work.block_flops == pytest.approx(sum(work.flops.values()), rel=0.4)
