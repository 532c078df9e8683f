"""The same wrapper code as torch 2.0 to 2.13 spell it: each spelling gives the same plan."""

from pathlib import Path

import pytest

from tests.inductor.test_wrapper import plan_of

# relu(x @ w): buf0 [4, 16] and buf1 in its place, 256 B. x [4, 8], w [8, 16].
TEXTS = Path(__file__).with_name("texts")
CODE = (TEXTS / "spellings_code.txt").read_text(encoding="utf-8")
ALLOCATION = "empty_strided_cuda((4, 16), (16, 1), torch.float32)"
RUN = "triton_poi_fused_relu_0.run(buf1, 64, stream=stream0)"
MM = "extern_kernels.mm(arg1_1, reinterpret_tensor(arg0_1, (8, 16), (16, 1), 0), out=buf0)"
SPELLINGS = (
    ("import torch\n", "import torch\n"),
    (ALLOCATION, "empty_strided((4, 16), (16, 1), device='cuda', dtype=torch.float32)"),
    (ALLOCATION, "torch.empty_strided((4, 16), (16, 1), device='cuda', dtype=torch.float32)"),
    (ALLOCATION, "empty_strided([4, 16], [16, 1], dtype=torch.float32, device=device('cuda:0'))"),
    (RUN, "triton_poi_fused_relu_0.run(buf1, 64, grid=grid(64), stream=stream0)"),
    (RUN, "triton_poi_fused_relu_0.run(buf1, 64, 1, 1, stream=stream0)"),
    (RUN, "triton_poi_fused_relu_0.run(buf1, 64, grid=lambda meta: (64, 1, 1), stream=stream0)"),
    ("reinterpret_tensor(arg0_1", "as_strided(arg0_1"),
    ("reinterpret_tensor(arg0_1", "torch._C._dynamo.guards._reinterpret_tensor(arg0_1"),
    (MM, "aten.mm.out(arg1_1, as_strided(arg0_1, (8, 16), (16, 1)), out=buf0)"),
    ("with torch.cuda._DeviceGuard(0):", "with torch.cuda.device(0):"),
    ("stream0 = get_raw_stream(0)", "stream0 = get_cuda_stream(0)"),
    ("stream0 = get_raw_stream(0)", "raw_stream0 = stream0 = get_raw_stream(0)"),
    ("torch.cuda.set_device(0)", "torch.cuda.set_device(0) # no-op to ensure context"),
    ("; del buf0  # reuse", ";  # reuse"),
    ("arg0_1, arg1_1 = args", "(arg0_1, arg1_1, ) = args"),
    ("arg0_1, arg1_1 = args", "[arg0_1, arg1_1] = args"),
    ("    return (buf1, )", "    return [buf1]"),
    ("    return (buf1, )", "    assert_alignment(buf1, 16, 'aten.relu')\n    return (buf1, )"),
    ("(4, 8), (8, 1))\n", "(4, 8), (8, 1), 'input')\n"),
    ("def call(args):", "@torch.no_grad()\ndef call(args):"),
)


@pytest.mark.parametrize(("usual", "other"), SPELLINGS)
def test_every_spelling_gives_the_same_plan(tmp_path: Path, usual: str, other: str) -> None:
    assert usual in CODE
    code = CODE.replace(usual, other, 1).replace(
        "aten = ", "get_cuda_stream = as_strided = grid = assert_alignment = None\naten = ", 1
    )
    plan = plan_of(tmp_path, code)
    totals = plan.totals
    assert totals.own_peak_bytes == totals.output_bytes == totals.end_bytes == 256
    assert totals.argument_bytes == 8 * 16 * 4 + 4 * 8 * 4
    assert totals.unknown_allocations == 0
    assert [gemm.shapes[-1].text for gemm in plan.gemms] == ["f32[4, 16]"]
    assert len(plan.kernels) == 2
    assert plan.notes == ()
