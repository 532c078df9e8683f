"""Calls of libraries that a fusion makes on slices of its operands."""

import pytest

from tests.shared.small_hlo import plan_of_text
from tests.time.small_work import work_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.cost import step_cost

# As XLA writes it: the workspace of cuBLAS is the last result of the call and of the fusion.
NUMBERS = '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'
CALL = f'{{"gemm_backend_config":{{"dot_dimension_numbers":{NUMBERS}}}}}'
FUSION = '{"fusion_backend_config":{"kind":"__custom_fusion"}}'
RESULTS = "(f32[64,64]{1,0}, s8[33554432]{0})"
TEXT = """HloModule small, is_scheduled=true
sliced {
  all = f32[96,64,64]{2,1,0} parameter(0)
  number = s32[] parameter(1)
  zero = s32[] constant(0)
  other = f32[64,64]{1,0} parameter(2)
  slice = f32[1,64,64]{2,1,0} dynamic-slice(all, number, zero, zero), dynamic_slice_sizes={1,64,64}
  one = f32[64,64]{1,0} bitcast(slice)
  ROOT call = RESULTS custom-call(one, other), custom_call_target="__cublas$lt$matmul", CALL
}
ENTRY main {
  all = f32[96,64,64]{2,1,0} parameter(0)
  number = s32[] parameter(1)
  other = f32[64,64]{1,0} parameter(2)
  ROOT f = RESULTS fusion(all, number, other), kind=kCustom, calls=sliced, FUSION
}
"""
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


QR = """HloModule small, is_scheduled=true
sliced {
  all = f32[97,24576]{1,0} parameter(0)
  slice = f32[96,24576]{1,0} slice(all), slice={[0:96], [0:24576]}
  one = f32[24576,96]{0,1} bitcast(slice)
  ROOT call = (f32[24576,96]{0,1}, f32[96]{0}) custom-call(one), \
custom_call_target="cusolver_geqrf_ffi"
}
ENTRY main {
  all = f32[97,24576]{1,0} parameter(0)
  ROOT f = (f32[24576,96]{0,1}, f32[96]{0}) fusion(all), kind=kCustom, calls=sliced, FUSION
}
""".replace("FUSION", f"backend_config={FUSION}")


def test_a_factorisation_of_a_slice_is_predicted_as_one_of_an_array() -> None:
    work = work_of_text(QR)
    assert work.kind == "cusolver_geqrf_ffi f32"
    alone = """HloModule small, is_scheduled=true
ENTRY main {
  one = f32[96,24576]{1,0} parameter(0)
  ROOT f = (f32[96,24576]{1,0}, f32[96]{0}) custom-call(one), \
custom_call_target="cusolver_geqrf_ffi"
}
"""
    assert work.point == work_of_text(alone).point


@pytest.mark.parametrize(
    ("systems", "columns", "solves"), [("", 1, 1), ("", 64, 64), ("512,", 1, 1), ("512,", 8, 4096)]
)
def test_columns_of_a_system_with_three_diagonals_are_solved_one_after_another(
    systems: str, columns: int, solves: int
) -> None:
    diagonal, right = f"f32[{systems}256]", f"f32[{systems}256,{columns}]"
    text = f"""HloModule small, is_scheduled=true
ENTRY main {{
  a = {diagonal} parameter(0)
  b = {diagonal} parameter(1)
  c = {diagonal} parameter(2)
  d = {right} parameter(3)
  ROOT f = {right} custom-call(a, b, c, d), custom_call_target="cusparse_gtsv2_ffi"
}}
"""
    # An H100 took 6.8 µs for each.
    seconds = work_of_text(text).operations / 29e12
    assert seconds == pytest.approx(solves * 6.8e-6, rel=0.05)
