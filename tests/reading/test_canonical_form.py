"""The rules of the canonical form: each removes a difference between machines, and no real change.

The differences are those of programs that were compiled on an H200 and on a machine without a GPU.
"""

import re

import pytest

from xlapipe.dumps.canonical_form import canonical_hlo, canonical_plan
from xlapipe.dumps.normal_plan import NormalForm, differences

HLO = """\
HloModule jit_f, is_scheduled=true
ENTRY (f32[8], f32[8]) -> (f32[8], f32[8]) {
  %x.1 = f32[8]{0} parameter(0)
  %y.1 = f32[8]{0} parameter(1)
  %zeros.2 = f32[4]{0} fusion(), kind=kLoop, calls=computation_1
  %zeros = f32[16]{0} fusion(), kind=kLoop, calls=computation_2
  %constant_30_0 = s32[] constant(0)
  %copy.27 = s32[] copy(%constant_30_0)
  %copy.28 = f32[8]{0} copy(%x.1)
  %loop = (s32[], f32[8]{0}) tuple(%copy.27, %copy.28)
  %while.12 = (s32[], f32[8]{0}) while(%loop), condition=computation_3, body=computation_4
  %fusion.9 = f32[8]{0} fusion(%while.12#1, %y.1, %zeros.2, %zeros), kind=kLoop, calls=computation_5
  ROOT %out = (f32[8]{0}, f32[8]{0}) tuple(%fusion.9, %copy.28)
}
computation_1 () -> f32[4] {
  %0 = f32[] constant(0)
  ROOT %1 = f32[4]{0} broadcast(%0), dimensions={}
}
computation_2 () -> f32[16] {
  %0 = f32[] constant(0)
  ROOT %1 = f32[16]{0} broadcast(%0), dimensions={}
}
computation_3 ((s32[], f32[8])) -> pred[] {
  %0 = (s32[], f32[8]{0}) parameter(0)
  %1 = s32[] constant(5)
  ROOT %2 = pred[] fusion(%0, %1), kind=kLoop, calls=computation_6
}
computation_4 ((s32[], f32[8])) -> (s32[], f32[8]) {
  %0 = (s32[], f32[8]{0}) parameter(0)
  %1 = f32[8]{0} negate(%0#1)
  %2 = s32[] negate(%0#0)
  ROOT %3 = (s32[], f32[8]{0}) tuple(%2, %1)
}
computation_5 (f32[8], f32[8], f32[4], f32[16]) -> f32[8] {
  %0 = f32[8]{0} parameter(0)
  %1 = f32[8]{0} parameter(1)
  %2 = f32[4]{0} parameter(2)
  %3 = f32[16]{0} parameter(3)
  %4 = f32[8]{0} minimum(%0, %1)
  %5 = f32[8]{0} power(%0, %1)
  ROOT %6 = f32[8]{0} subtract(%4, %5)
}
computation_6 ((s32[], f32[8]), s32[]) -> pred[] {
  %0 = (s32[], f32[8]{0}) parameter(0)
  %1 = s32[] parameter(1)
  ROOT %2 = pred[] compare(%0#0, %1), direction=LT
}
"""
PLAN = """\
xlapipe plan 1
workload: f

[allocations]
0: 96 B, preallocated-temp
  @0 4 B copy.27 s32[]
  @0 4 B loop_add s32[]
  @32 32 B copy.28 f32[8]{0}
  @64 16 B zeros.2 f32[4]{0}

[fusions]
zeros.2: kLoop f32[4]{0} ()
zeros: kLoop f32[16]{0} ()
fusion.9: kLoop f32[8]{0} (while.12, y.1, zeros.2, zeros)

[thunks]
kCustomKernel zeros_2 grid: [1, 1, 1] threads: [4, 1, 1]
kCustomKernel zeros grid: [1, 1, 1] threads: [16, 1, 1]
kAsyncStart stream=computation_stream[0], async_id=11
kCopy kCopy
kAsyncDone async_id=11
kWhile
  kCustomKernel negate_7 grid: [1, 1, 1] threads: [8, 1, 1]
  kCustomKernel negate_9 grid: [1, 1, 1] threads: [1, 1, 1]
  kCustomKernel negate_7 grid: [1, 1, 1] threads: [8, 1, 1]
"""
GOLDEN = NormalForm(PLAN, HLO, "")


def swapped(text: str, first: str, second: str) -> str:
    """The text with two names exchanged, wherever they are words."""
    either = re.compile(rf"(?<![\w.])(?:{re.escape(first)}|{re.escape(second)})(?![\w.])")
    assert len(set(either.findall(text))) == 2, (first, second)
    return either.sub(lambda match: second if match[0] == first else first, text)


def moved(text: str, start: str, before: str) -> str:
    """The text with the line that starts with `start` before the one that starts with `before`."""
    lines = text.splitlines(keepends=True)
    line = next(it for it in lines if it.strip().startswith(start))
    lines.remove(line)
    lines.insert(next(i for i, it in enumerate(lines) if it.strip().startswith(before)), line)
    assert "".join(lines) != text
    return "".join(lines)


def test_numbers_of_names_do_not_matter() -> None:
    hlo, plan = (swapped(text, "copy.27", "copy.28") for text in (HLO, PLAN))
    assert differences(GOLDEN, NormalForm(plan, hlo, ""), name="f") == []
    other = HLO.replace("constant_30_0", "constant_7_0"), PLAN
    assert differences(GOLDEN, NormalForm(other[1], other[0], ""), name="f") == []


def test_words_of_names_matter() -> None:
    hlo, plan = (text.replace("fusion.9", "loop_fusion.9") for text in (HLO, PLAN))
    assert differences(GOLDEN, NormalForm(plan, hlo, ""), name="f")


def test_a_name_with_another_value_matters() -> None:
    """The numbers are exchanged in the plan alone: the copies have each other's memory."""
    plan = swapped(PLAN, "copy.27", "copy.28")
    assert "[allocations]" in differences(GOLDEN, NormalForm(plan, HLO, ""), name="f")[0]


def test_order_of_fused_instructions_does_not_matter() -> None:
    hlo = swapped(moved(HLO, "%5 = f32[8]{0} power", "%4 = f32[8]{0} minimum"), "%4", "%5")
    assert differences(GOLDEN, NormalForm(PLAN, hlo, ""), name="f") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("subtract(%4, %5)", "subtract(%5, %4)"),
        ("minimum(%0, %1)", "minimum(%1, %0)"),
        ("power(%0, %1)", "power(%0, %0)"),
        ("power(%0, %1)", "minimum(%0, %1)"),
        ("direction=LT", "direction=GT"),
        ("tuple(%copy.27, %copy.28)", "tuple(%copy.28, %copy.27)"),
        ("s32[] constant(5)", "s32[] constant(6)"),
        ("body=computation_4", "body=computation_3"),
        ("f32[16]{0} broadcast(%0)", "f32[16]{0:T(8)} broadcast(%0)"),
        ("%while.12#1", "%while.12#0"),
    ],
)
def test_a_real_change_of_an_instruction_matters(before: str, after: str) -> None:
    assert before in HLO
    assert differences(GOLDEN, NormalForm(PLAN, HLO.replace(before, after), ""), name="f")


def test_place_of_values_without_a_thunk_does_not_matter() -> None:
    hlo = moved(HLO, "%constant_30_0", "%x.1")
    assert differences(GOLDEN, NormalForm(PLAN, hlo, ""), name="f") == []
    early = moved(HLO, "%1 = s32[] constant(5)", "%0 = (s32[], f32[8]{0}) parameter(0)")
    assert canonical_hlo(early).text != "" and "constant(5)" in canonical_hlo(early).text


def test_order_of_a_schedule_matters() -> None:
    hlo = moved(HLO, "%copy.28", "%copy.27")
    assert differences(GOLDEN, NormalForm(PLAN, hlo, ""), name="f")
    inner = moved(HLO, "%2 = s32[] negate", "%1 = f32[8]{0} negate")
    assert differences(GOLDEN, NormalForm(PLAN, inner, ""), name="f")


def test_order_of_neighbours_that_read_nothing_does_not_matter() -> None:
    hlo = moved(HLO, "%zeros = ", "%zeros.2 = ")
    plan = moved(moved(PLAN, "zeros: kLoop", "zeros.2: kLoop"), "kCustomKernel zeros grid", "kCus")
    assert differences(GOLDEN, NormalForm(plan, hlo, ""), name="f") == []


def test_what_neighbours_compute_matters() -> None:
    hlo = HLO.replace("f32[4]{0} broadcast(%0)", "f32[4]{0} iota()")
    assert differences(GOLDEN, NormalForm(PLAN, hlo, ""), name="f")
    plan = PLAN.replace("threads: [16, 1, 1]", "threads: [32, 1, 1]")
    assert "[thunks]" in differences(GOLDEN, NormalForm(plan, HLO, ""), name="f")[0]


def test_neighbours_do_not_pass_a_kernel_that_reads() -> None:
    plan = moved(PLAN, "kCustomKernel zeros grid", "kCustomKernel negate_7")
    assert "[thunks]" in differences(GOLDEN, NormalForm(plan, HLO, ""), name="f")[0]


def test_numbers_of_kernels_and_of_pairs_do_not_matter() -> None:
    plan = PLAN.replace("negate_7", "negate").replace("async_id=11", "async_id=4")
    assert differences(GOLDEN, NormalForm(plan, HLO, ""), name="f") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("negate_9", "negate_7"),  # a kernel that is used again
        ("negate_9", "add_9"),
        ("kAsyncDone async_id=11", "kAsyncDone async_id=12"),
        ("kCopy kCopy\n", ""),
        ("@64 16 B", "@80 16 B"),
        ("0: 96 B", "0: 97 B"),
    ],
)
def test_a_real_change_of_a_plan_matters(before: str, after: str) -> None:
    assert before in PLAN
    assert differences(GOLDEN, NormalForm(PLAN.replace(before, after), HLO, ""), name="f")


CUDNN = HLO.replace(
    "%copy.28 = f32[8]{0} copy(%x.1)",
    '%copy.28 = f32[8]{0} custom-call(%x.1), custom_call_target="__cudnn$fmhaSoftmaxBackward", '
    'backend_config={"dropout_rate":0,"fmha_scale":0.125,"force_deterministic":false,"seed":"7"}',
)


@pytest.mark.parametrize(
    ("before", "after", "equal"),
    [
        ('"force_deterministic":false,', "", True),
        ('"seed":"7"', '"seed":7,"tiles":[],"device_type":"DEVICE_TYPE_INVALID"', True),
        ('"seed":"7"', '"seed":"8"', False),
        ('"seed":"7"', '"seed":"7","is_causal_mask":true', False),
        ('"dropout_rate":0,', '"dropout_rate":0.0,', True),
        ('"force_deterministic":false', '"force_deterministic":true', False),
        ('"dropout_rate":0,', '"dropout_rate":0.5,', False),
        ('"fmha_scale":0.125', '"fmha_scale":0.25', False),
    ],
)
def test_spelling_of_cudnns_configuration(before: str, after: str, equal: bool) -> None:
    assert before in CUDNN
    golden, new = (NormalForm(PLAN, hlo, "") for hlo in (CUDNN, CUDNN.replace(before, after)))
    assert (differences(golden, new, name="f") == []) is equal


def test_order_of_values_at_one_offset_does_not_matter() -> None:
    plan = moved(PLAN, "@0 4 B loop_add", "@0 4 B copy.27")
    assert differences(GOLDEN, NormalForm(plan, HLO, ""), name="f") == []


def test_other_text_is_kept() -> None:
    module = canonical_hlo("not a module")
    assert module.text == "not a module"
    assert canonical_plan("", module) == ""
    assert canonical_plan("a line\n", module) == "a line\n"
