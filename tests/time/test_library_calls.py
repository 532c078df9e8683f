"""Calls of libraries that a fusion makes on slices of its operands."""

from pathlib import Path

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
