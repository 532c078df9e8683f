"""Conditions, loops, subgraphs and functions in wrapper code, in the forms that torch writes."""

import re
from pathlib import Path

import pytest

from tests.inductor.test_wrapper import plan_of
from tests.inductor.written import HEAD, IR_2_6, IR_FUSED
from xlapipe.errors import DumpError
from xlapipe.inductor.reader import read_inductor

ROWS = 32 * 64 * 4

TEXTS = Path(__file__).with_name("texts")
WHILE = (TEXTS / "while_loop_code.txt").read_text(encoding="utf-8")


def wrapper(body: str) -> str:
    """A module whose `call` takes x [32, 64] and runs `body`."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    return (
        HEAD.format(aot_id="0_inference")
        + "def call(args):\n    arg0_1, = args\n    args.clear()\n"
        + "    assert_size_stride(arg0_1, (32, 64), (64, 1))\n"
        + lines
        + """
def get_args():
    from torch._dynamo.testing import rand_strided
    arg0_1 = rand_strided((32, 64), (64, 1), device='cuda:0', dtype=torch.float32)
    return [arg0_1]
"""
    )


def test_a_loop_holds_what_the_pass_before_left(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, WHILE)
    # On the second pass: the state, [32, 32], and the new state; the counter, and the condition.
    assert plan.totals.own_peak_bytes == ROWS + 32 * 32 * 4 + ROWS + 8 + 1
    assert plan.totals.end_bytes == ROWS + 8
    assert [kernel.name for kernel in plan.kernels] == ["extern_kernels.mm"] * 2
    assert any("kernels of a loop count once" in note for note in plan.notes)


def test_of_a_condition_the_larger_branch_counts(tmp_path: Path) -> None:
    body = """
buf0 = [None] * 1
if arg0_1.item():
    true_buf0 = empty_strided_cuda((100, ), (1, ), torch.float32)
    buf0[0] = true_buf0
    del true_buf0
else:
    false_buf0 = empty_strided_cuda((100, ), (1, ), torch.float32)
    false_buf1 = empty_strided_cuda((900, ), (1, ), torch.float32)
    del false_buf1
    buf0[0] = false_buf0
    del false_buf0
buf1 = buf0[0]
del buf0
return (buf1, )
"""
    plan = plan_of(tmp_path, wrapper(body))
    assert plan.totals.own_peak_bytes == 4_000
    assert plan.totals.end_bytes == plan.totals.output_bytes == 400
    swapped = body.replace("(100, )", "(?)").replace("(900, )", "(100, )").replace("(?)", "(900, )")
    assert plan_of(tmp_path, wrapper(swapped)).totals.own_peak_bytes == 4_000


def test_an_assertion_is_not_a_condition(tmp_path: Path) -> None:
    body = """
u0 = arg0_1.size(0)
if not (u0 >= 0):
    raise RuntimeError('u0 >= 0')
buf0 = empty_strided_cuda((u0, 2), (2, 1), torch.int64)
return (buf0, )
"""
    plan = plan_of(tmp_path, wrapper(body))
    assert plan.notes == ()
    assert plan.totals.own_peak_bytes == 32 * 2 * 8


def test_a_subgraph_returns_into_a_list(tmp_path: Path) -> None:
    code = wrapper(
        """
buf0 = [None] * 2
repeated_args = [arg0_1]
del arg0_1
(buf0[0], buf0[1],) = repeated_subgraph0(repeated_args)
del repeated_args
buf1 = buf0[0]
buf2 = buf0[1]
del buf0
del buf2
return (buf1, )
"""
    ).replace(
        "def call(",
        """\
def repeated_subgraph0(args):
    arg0, = args
    args.clear()
    buf0 = empty_strided_cuda((100, ), (1, ), torch.float32)
    buf1 = empty_strided_cuda((200, ), (1, ), torch.float32)
    return (buf0, buf1, )

def call(""",
        1,
    )
    plan = plan_of(tmp_path, code)
    assert plan.totals.own_peak_bytes == 1_200
    assert plan.totals.end_bytes == 400


@pytest.mark.parametrize(
    ("statement", "unknown"),
    [
        ("buf0 = torch.zeros(64, device='cuda')", 1),
        ("buf0 = my_library.compute(arg0_1)", 1),
        ("buf0 = arg0_1.contiguous()", 1),
        ("buf0 = copy_if_misaligned(arg0_1)", 0),
        ("torch.cuda.nvtx.range_push('graph 0')", 0),
        ("stream1 = torch.cuda.Stream(); stream1.wait_stream(torch.cuda.current_stream())", 0),
        ("assert_alignment(arg0_1, 16, 'input')", 0),
        ("run_intermediate_hooks('mm', arg0_1)", 0),
    ],
)
def test_what_an_unknown_function_allocates_is_unknown(
    tmp_path: Path, statement: str, unknown: int
) -> None:
    names = "my_library = copy_if_misaligned = run_intermediate_hooks = assert_alignment = None"
    code = wrapper(f"{statement}\nreturn (arg0_1, )").replace("aten = ", f"{names}\naten = ", 1)
    assert plan_of(tmp_path, code).totals.unknown_allocations == unknown


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("buf0, buf1 = [arg0_1]", "2 values to unpack"),
        ("buf9[3] = arg0_1", "an item of a list"),
    ],
)
def test_what_is_not_read_is_refused_with_its_line(
    tmp_path: Path, statement: str, expected: str
) -> None:
    with pytest.raises(DumpError, match=rf"output_code\.py:\d+: expected {expected}.*fix: "):
        plan_of(tmp_path, wrapper(statement + "\nreturn (arg0_1, )"))


def test_symmetric_memory_and_tracked_buffers_are_allocations(tmp_path: Path) -> None:
    code = wrapper(
        """
buf0 = empty_strided_p2p((100, ), (1, ), torch.float32, torch.device('cuda:0'), group_name='0')
buf1 = tracked_empty_strided((50, ), (1, ), dtype=torch.float32, device='cuda', name='buf1')
return (buf0, )
"""
    ).replace("aten = ", "empty_strided_p2p = tracked_empty_strided = None\naten = ", 1)
    assert plan_of(tmp_path, code).totals.own_peak_bytes == 600


CPP = (TEXTS / "cpp_code.txt").read_text(encoding="utf-8")


def test_a_cpp_wrapper_is_refused_or_read_from_its_ir(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"output_code\.py:1: expected wrapper code in Python"):
        plan_of(tmp_path, CPP)
    (tmp_path / "ir_post_fusion.txt").write_text(IR_FUSED)
    plan = plan_of(tmp_path, CPP)
    assert not plan.exact
    assert plan.totals.own_peak_bytes == 576


def test_a_result_has_the_size_that_is_asserted_of_its_next_name(tmp_path: Path) -> None:
    body = """
buf0 = torch.ops.aten._scaled_mm.default(arg0_1, arg0_1, out_dtype=torch.bfloat16)
buf1 = buf0
assert_size_stride(buf1, (32, 32), (32, 1), 'torch.ops.aten._scaled_mm.default')
del buf0
return (buf1, )
"""
    plan = plan_of(tmp_path, wrapper(body))
    assert plan.totals.output_bytes == 32 * 32 * 2
    assert plan.unknown[0].result_bytes == 32 * 32 * 2


def test_ir_of_a_subgraph_alone_hides_the_graph_that_calls_it(tmp_path: Path) -> None:
    text = re.sub(r"\b(op|buf)(\d)", r"body_graph_0_\1\2", IR_2_6)
    (tmp_path / "ir_post_fusion.txt").write_text(text)
    (plan,) = read_inductor(tmp_path / "ir_post_fusion.txt").plans
    (unknown,) = plan.unknown
    assert unknown.name == "body_graph_0"
    assert plan.totals.own_peak_bytes == 384
