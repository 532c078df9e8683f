"""The rules of the canonical form: each removes a difference between machines, and no real change.

The differences are those of programs that were compiled on an H200 and on a machine without a GPU.
"""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.devices.platforms.dump_files import MODULE, SOURCE_LINES
from xlapipe.dump.dump import open_dump, read_file
from xlapipe.dump.normal_form.canonical import canonical_hlo, canonical_plan
from xlapipe.dump.normal_form.plan import (
    NormalForm,
    compare,
    differences,
    normal_form,
    read_normal_form,
)
from xlapipe.dump.readers import read_path
from xlapipe.dump.readers.hlo_proto import HloProto

TEXTS = Path(__file__).with_name("texts")
HLO = (TEXTS / "canonical_hlo.txt").read_text(encoding="utf-8")
PLAN = (TEXTS / "canonical_plan.txt").read_text(encoding="utf-8")
GOLDEN = NormalForm(PLAN, HLO, b"")


def swapped(text: str, first: str, second: str) -> str:
    """The text with two names exchanged where they are whole words."""
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
    assert differences(GOLDEN, NormalForm(plan, hlo, b""), name="f") == []
    other = HLO.replace("constant_30_0", "constant_7_0"), PLAN
    assert differences(GOLDEN, NormalForm(other[1], other[0], b""), name="f") == []


# Values of a loop's instructions.
INNER = """\
0: 96 B, preallocated-temp
  @0 4 B constant_N_clone_1_0 s32[]
  @0 4 B add.N.clone s32[]
  @0 4 B pmax.N.0-fusion s32[]"""


def test_numbers_within_names_do_not_matter() -> None:
    """XLA numbers what it copies, and then the copies: `fusion.12.clone.3`."""
    golden, new = (
        NormalForm(
            PLAN.replace("fusion.9", f"fusion.{number}.clone")
            .replace("copy.28", f"pmax.{number}.0-copy")
            .replace("0: 96 B, preallocated-temp", INNER.replace("N", str(number))),
            HLO.replace("fusion.9", f"fusion.{number}.clone")
            .replace("copy.28", f"pmax.{number}.0-copy")
            .replace("constant_30_0", f"constant_{number}_clone_1_0"),
            b"",
        )
        for number in (9, 12)
    )
    assert differences(golden, new, name="f") == []
    assert compare(golden, new).notes == ("names are numbered differently",)


def renumbered(folder: Path, scratch: Path) -> NormalForm:
    """The normal form of XLA's own files with other numbers in all names."""
    dump, random, new_names = open_dump(folder), Random(1), dict[str, str]()
    names = dump.manifest.files.keys() - {"target_config.txtpb"}
    files = {name: read_file(folder, name) for name in names}
    proto = HloProto.FromString(files.pop(MODULE))
    computations = proto.hlo_module.computations
    named = [
        *computations,
        *(it for computation in computations for it in computation.instructions),
    ]
    for it in named:
        separator, end = ("[._]", "[._]") if it.name.startswith("constant") else (r"\.", r"[.\-]")
        numbers = re.compile(rf"(?<={separator})\d+(?={end}|$)")
        # More digits than XLA's have, so that no two names become one.
        new_names[it.name] = numbers.sub(lambda _: str(random.randrange(10**9)), it.name)
        it.name = new_names[it.name]
    kernels = {kernel_name(old): kernel_name(new) for old, new in new_names.items()}
    for name in files.keys() - {"before_optimizations.txt", SOURCE_LINES}:
        names = kernels if name.startswith("thunk") else new_names
        text = files[name].decode()
        text = re.sub(r"[\w.\-]+", lambda it, names=names: names.get(it[0], it[0]), text)  # type: ignore
        files[name] = text.encode()
    files[MODULE] = proto.SerializeToString()
    for name in files.keys() - {SOURCE_LINES, "plan.txt", "hlo.txt"}:
        (scratch / name).write_bytes(files[name])
    plan = dump.manifest.in_plan(read_path(scratch))
    return normal_form(replace(dump, plan=plan), files)


def kernel_name(instruction: str) -> str:
    return re.sub(r"[.\-]", "_", instruction)


@pytest.mark.parametrize(
    "golden",
    [
        "float8-linear-step/h100_sxm-auto-tuned",
        "fsdp-mlp/h100_sxm-1x2-auto-tuned",  # collectives, asynchronous pairs
        "qwen3-generate/h100_sxm-auto-tuned",  # a loop, Triton's kernels
        "spectral-diffusion-train/h200-cublas",
        pytest.param("qwen3-prefill/h100_sxm-auto-tuned", marks=pytest.mark.slow),
    ],
)
def test_goldens_whose_names_are_numbered_otherwise_are_the_same(
    golden: str, goldens: Path, tmp_path: Path
) -> None:
    folder = goldens / f"{golden}-jax{GOLDEN_JAXLIB}"
    kept, new = read_normal_form(folder), renumbered(folder, tmp_path)
    assert new.hlo != kept.hlo and new.plan != kept.plan
    assert differences(kept, new, name=golden) == []
    assert compare(kept, new).notes == ("names are numbered differently",)


def test_words_of_names_matter() -> None:
    hlo, plan = (text.replace("fusion.9", "loop_fusion.9") for text in (HLO, PLAN))
    assert differences(GOLDEN, NormalForm(plan, hlo, b""), name="f")


def test_a_name_with_another_value_matters() -> None:
    """The numbers are exchanged in the plan alone: the copies have each other's memory."""
    plan = swapped(PLAN, "copy.27", "copy.28")
    assert "[allocations]" in differences(GOLDEN, NormalForm(plan, HLO, b""), name="f")[0]


def test_order_of_fused_instructions_does_not_matter() -> None:
    hlo = swapped(moved(HLO, "%5 = f32[8]{0} power", "%4 = f32[8]{0} minimum"), "%4", "%5")
    assert differences(GOLDEN, NormalForm(PLAN, hlo, b""), name="f") == []


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
    assert differences(GOLDEN, NormalForm(PLAN, HLO.replace(before, after), b""), name="f")


def test_place_of_values_without_a_thunk_does_not_matter() -> None:
    hlo = moved(HLO, "%constant_30_0", "%x.1")
    assert differences(GOLDEN, NormalForm(PLAN, hlo, b""), name="f") == []
    early = moved(HLO, "%1 = s32[] constant(5)", "%0 = (s32[], f32[8]{0}) parameter(0)")
    assert canonical_hlo(early).text != "" and "constant(5)" in canonical_hlo(early).text


def test_order_of_a_schedule_matters() -> None:
    hlo = moved(HLO, "%copy.28", "%copy.27")
    assert differences(GOLDEN, NormalForm(PLAN, hlo, b""), name="f")
    inner = moved(HLO, "%2 = s32[] negate", "%1 = f32[8]{0} negate")
    assert differences(GOLDEN, NormalForm(PLAN, inner, b""), name="f")


def test_order_of_neighbours_that_read_nothing_does_not_matter() -> None:
    hlo = moved(HLO, "%zeros = ", "%zeros.2 = ")
    plan = moved(moved(PLAN, "zeros: kLoop", "zeros.2: kLoop"), "kCustomKernel zeros grid", "kCus")
    assert differences(GOLDEN, NormalForm(plan, hlo, b""), name="f") == []


def test_what_neighbours_compute_matters() -> None:
    hlo = HLO.replace("f32[4]{0} broadcast(%0)", "f32[4]{0} iota()")
    assert differences(GOLDEN, NormalForm(PLAN, hlo, b""), name="f")
    plan = PLAN.replace("threads: [16, 1, 1]", "threads: [32, 1, 1]")
    assert "[thunks]" in differences(GOLDEN, NormalForm(plan, HLO, b""), name="f")[0]


def test_neighbours_do_not_pass_a_kernel_that_reads() -> None:
    plan = moved(PLAN, "kCustomKernel zeros grid", "kCustomKernel negate_7")
    assert "[thunks]" in differences(GOLDEN, NormalForm(plan, HLO, b""), name="f")[0]


def test_numbers_of_kernels_and_of_pairs_do_not_matter() -> None:
    plan = PLAN.replace("negate_7", "negate").replace("async_id=11", "async_id=4")
    assert differences(GOLDEN, NormalForm(plan, HLO, b""), name="f") == []


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
    assert differences(GOLDEN, NormalForm(PLAN.replace(before, after), HLO, b""), name="f")


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
    golden, new = (NormalForm(PLAN, hlo, b"") for hlo in (CUDNN, CUDNN.replace(before, after)))
    assert (differences(golden, new, name="f") == []) is equal


OUTPUTS_HLO = (TEXTS / "outputs_hlo.txt").read_text(encoding="utf-8")
OUTPUTS_PLAN = (TEXTS / "outputs_plan.txt").read_text(encoding="utf-8")
OUTPUTS = NormalForm(OUTPUTS_PLAN, OUTPUTS_HLO, b"")
SHAPES = "f32[8]{0}, f32[8]{0}, pred[8]{0}, f32[8]{0}"
OTHER_SHAPES = "pred[8]{0}, f32[8]{0}, f32[8]{0}, f32[8]{0}"


def other_outputs() -> NormalForm:
    """The same program with the outputs of the fusion in the order 2, 3, 0, 1."""
    order = {"0": "2", "1": "3", "2": "0", "3": "1"}
    hlo = re.sub(r"(?<=loop_fusion#)\d", lambda it: order[it[0]], OUTPUTS_HLO)
    hlo = hlo.replace("tuple(%2, %3, %4, %5)", "tuple(%4, %5, %2, %3)")
    hlo = hlo.replace(f"%loop_fusion = ({SHAPES})", f"%loop_fusion = ({OTHER_SHAPES})")
    hlo = hlo.replace(f"%6 = ({SHAPES})", f"%6 = ({OTHER_SHAPES})")
    hlo = hlo.replace(
        "-> (f32[8], f32[8], pred[8], f32[8])", "-> (pred[8], f32[8], f32[8], f32[8])"
    )
    plan = re.sub(r"(?<=loop_fusion\{)\d", lambda it: order[it[0]], OUTPUTS_PLAN)
    plan = plan.replace(f"({SHAPES})", f"({OTHER_SHAPES})")
    # XLA numbers the allocations of the outputs in their order.
    plan = plan.replace("loop_fusion{2} f", "swapped").replace(
        "loop_fusion{3} f", "loop_fusion{2} f"
    )
    plan = plan.replace("swapped", "loop_fusion{3} f")
    return NormalForm(plan, hlo, b"")


def test_order_of_a_fusions_outputs_does_not_matter() -> None:
    other = other_outputs()
    assert other.hlo.count("#0") == other.hlo.count("#2") == 1
    assert other.plan != OUTPUTS.plan
    assert differences(OUTPUTS, other, name="f") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tuple(%4, %5, %2, %3)", "tuple(%4, %5, %3, %2)"),  # readers get another value
        ("negate(%loop_fusion#1)", "negate(%loop_fusion#2)"),
        ("direction=LT", "direction=GT"),
        ("add(%2, %1)", "add(%1, %2)"),
        ("power(%0, %1)", "power(%1, %0)"),
        ("minimum(%0, %1)", "maximum(%0, %1)"),
    ],
)
def test_a_real_change_of_an_output_matters(before: str, after: str) -> None:
    other = other_outputs()
    assert before in other.hlo
    changed = NormalForm(other.plan, other.hlo.replace(before, after), b"")
    assert differences(OUTPUTS, changed, name="f")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@0 32 B loop_fusion{1} f32", "@0 32 B loop_fusion{3} f32"),  # temp and result exchanged
        ("loop_fusion: kLoop (pred", "loop_fusion: kInput (pred"),
        ("2: 8 B", "2: 16 B"),
        ("4: 64 B, preallocated-temp", "4: 64 B, maybe-live-out"),
    ],
)
def test_a_real_change_of_an_outputs_memory_matters(before: str, after: str) -> None:
    other = other_outputs()
    assert before in other.plan
    changed = NormalForm(other.plan.replace(before, after), other.hlo, b"")
    assert differences(OUTPUTS, changed, name="f")


def test_order_of_outputs_that_are_passed_on_as_a_tuple_matters() -> None:
    whole = (
        "  ROOT %out = (f32[8]{0}, f32[8]{0}, pred[8]{0}, f32[8]{0}) custom-call(%loop_fusion)\n"
    )
    golden, new = (
        NormalForm("", re.sub(r"  ROOT %out.*\n", whole, form.hlo, count=1), b"")
        for form in (OUTPUTS, other_outputs())
    )
    assert differences(golden, new, name="f")


def test_order_of_allocations_of_one_size_and_kind_does_not_matter() -> None:
    first, second = "0: 32 B, maybe-live-out\n", "1: 32 B, maybe-live-out\n"
    values = ["  @0 32 B a f32[8]{0}\n", "  @0 32 B b f32[8]{0}\n"]
    forms = [
        NormalForm(f"[allocations]\n{first}{one}{second}{other}", HLO, b"")
        for one, other in (values, reversed(values))
    ]
    assert differences(*forms, name="f") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("1: 32 B, maybe-live-out", "1: 32 B, constant"),
        ("1: 32 B, maybe-live-out\n  @0", "1: 32 B, maybe-live-out\n  @16"),
        ("1: 32 B, maybe-live-out\n", ""),
        ("1: 32 B", "2: 32 B"),
    ],
)
def test_a_real_change_of_allocations_matters(before: str, after: str) -> None:
    plan = OUTPUTS_PLAN.replace(before, after)
    assert plan != OUTPUTS_PLAN
    assert differences(OUTPUTS, NormalForm(plan, OUTPUTS_HLO, b""), name="f")


def test_order_of_values_at_one_offset_does_not_matter() -> None:
    plan = moved(PLAN, "@0 4 B loop_add", "@0 4 B copy.27")
    assert differences(GOLDEN, NormalForm(plan, HLO, b""), name="f") == []


def test_other_text_is_kept() -> None:
    module = canonical_hlo("not a module")
    assert module.text == "not a module"
    assert canonical_plan("", module) == ""
    assert canonical_plan("a line\n", module) == "a line\n"
