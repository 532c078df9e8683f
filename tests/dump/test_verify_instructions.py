"""Instructions that an opcode cannot have are refused; those that XLA writes are not."""

from dataclasses import replace

import pytest

from tests.conftest import ROOT
from xlapipe.dump.dump import read_file
from xlapipe.dump.readers.hlo_proto import HloProto
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.proto_reader import read_proto
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.errors import PlanMismatchError
from xlapipe.plans import Plan
from xlapipe.plans.verify import verify
from xlapipe.plans.verify_instructions import instruction_mismatches

MODULE = """HloModule small

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}}

%both (p: f32[], q: f32[], r: f32[], s: f32[]) -> (f32[], f32[]) {{
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  %r = f32[] parameter(2)
  %s = f32[] parameter(3)
  ROOT %sums = (f32[], f32[]) tuple(%p, %r)
}}

%negated (z: f32[4,8]) -> f32[4,8] {{
  %z = f32[4,8]{{1,0}} parameter(0)
  ROOT %minus = f32[4,8]{{1,0}} negate(%z)
}}

%less (w: f32[4,8]) -> pred[] {{
  %w = f32[4,8]{{1,0}} parameter(0)
  ROOT %true = pred[] constant(true)
}}

ENTRY %main (a: f32[4,8], b: f32[8,16], n: s32[], c: pred[]) -> f32[] {{
  %a = f32[4,8]{{1,0}} parameter(0)
  %b = f32[8,16]{{1,0}} parameter(1)
  %n = s32[] parameter(2)
  %c = pred[] parameter(3)
  %zero = f32[] constant(0)
  %pair = (f32[4,8]{{1,0}}, s32[]) tuple(%a, %n)
  %tested = {instruction}
  ROOT %last = f32[] copy(%zero)
}}
"""
# Of two arrays each, whose combiner takes two scalars of each.
TWICE = [
    "(f32[4,8]{1,0}, f32[4,8]{1,0}) sort(%a, %a), dimensions={1}, to_apply=",
    "(f32[8]{0}, f32[8]{0}) reduce(%a, %a, %zero, %zero), dimensions={0}, to_apply=",
    "(f32[4,8]{1,0}, f32[4,8]{1,0}) reduce-window(%a, %a, %zero, %zero), window={size=1x1}, "
    "to_apply=",
    "(f32[4,8]{1,0}, f32[4,8]{1,0}) scatter(%a, %a, %n, %a, %a), to_apply=",
]
SOUND = [
    "bf16[4,8]{1,0} copy(%a)",  # as libtpu 0.0.48.1 writes it
    *(f"{text}%both" for text in TWICE),
    "f32[8]{0} gather(%a, %n), offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}",
    "f32[4,8]{1,0} negate(%a)",
    "f32[4,8]{1,0} add(%a, %a)",
    "f32[4,8]{1,0} select(%c, %a, %a)",
    "f32[4,8]{1,0} clamp(%zero, %a, %zero)",
    "f32[8,4]{1,0} transpose(%a), dimensions={1,0}",
    "f32[2,4,8]{2,1,0} broadcast(%a), dimensions={1,2}",
    "f32[8]{0} reduce(%a, %zero), dimensions={0}, to_apply=%add",
    "f32[2,3]{1,0} slice(%a), slice={[1:4:2], [0:3]}",
    "f32[7,9]{1,0} pad(%a, %zero), padding=1_2x0_1",
    "f32[8,8]{1,0} concatenate(%a, %a), dimensions={0}",
    "f32[4,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "f32[1,8]{1,0} dynamic-slice(%a, %n, %n), dynamic_slice_sizes={1,8}",
    "f32[4,8]{1,0} dynamic-update-slice(%a, %a, %n, %n)",
    "f32[4,8]{1,0} sort(%a), dimensions={1}, to_apply=%add",
    "f32[4,8]{1,0} iota(), iota_dimension=1",
    "f32[32]{0} reshape(%a)",
    "f32[4,8]{1,0} fusion(%a), kind=kLoop, calls=%negated",
    "f32[4,8]{1,0} call(%a), to_apply=%negated",
    "f32[4,8]{1,0} while(%a), condition=%less, body=%negated",
    "f32[4,8]{1,0} conditional(%n, %a, %a), branch_computations={%negated, %negated}",
    "f32[4,8]{1,0} get-tuple-element(%pair), index=0",
    'f32[9,9,9]{2,1,0} custom-call(%a, %n), custom_call_target="any"',
    "f32[9]{0} opcode-of-a-later-xla(%a, %n)",
]
BROKEN = [
    *(f"{text}%add" for text in TWICE),
    "f32[4,8]{1,0} negate()",
    "f32[4,8]{1,0} negate(%a, %a)",
    "f32[4,9]{1,0} negate(%a)",
    "f32[4,8]{1,0} add(%a)",
    "f32[4,8]{1,0} add(%a, %b)",
    "f32[4,8]{1,0} negate(%last)",
    "f32[4,8]{1,0} select(%a, %a)",
    "f32[4,8]{1,0} transpose(%a), dimensions={1,0}",
    "f32[8,4]{1,0} transpose(%a), dimensions={1,2}",
    "f32[8,4]{1,0} transpose(%a), dimensions={1,1}",
    "f32[8,4]{1,0} transpose(%a), dimensions={1}",
    "f32[2,4,8]{2,1,0} broadcast(%a), dimensions={0,2}",
    "f32[2,4,8]{2,1,0} broadcast(%a), dimensions={1,3}",
    "f32[2,4,8]{2,1,0} broadcast(%a), dimensions={}",
    "f32[4]{0} reduce(%a, %zero), dimensions={0}, to_apply=%add",
    "f32[8]{0} reduce(%a, %zero), dimensions={2}, to_apply=%add",
    "f32[8]{0} reduce(%a), dimensions={0}, to_apply=%add",
    "f32[8]{0} reduce(%a, %zero), dimensions={0}, to_apply=%negated",
    "f32[8]{0} reduce(%a, %zero), dimensions={0}",
    "f32[2,3]{1,0} slice(%a), slice={[3:5], [0:3]}",
    "f32[2,3]{1,0} slice(%a), slice={[0:2]}",
    "f32[2,3]{1,0} slice(%a), slice={}",
    "f32[8]{0} reduce(%a, %zero), dimensions={0,1,2}, to_apply=%add",
    "f32[4,8]{1,0} gather(%a, %n), offset_dims={9}, collapsed_slice_dims={0,4}",
    "f32[4,8]{1,0} reduce-window(%a, %zero), window={size=0x99999}, to_apply=%add",
    "f32[4,8]{1,0} dynamic-slice(%zero)",
    "f32[4,8]{1,0} concatenate()",
    "(f32[4,8]{1,0}, s32[]) negate(%pair)",
    "f32[2,3]{1,0} slice(%a), slice={[0:2:0], [0:3]}",
    "f32[7,9]{1,0} pad(%a, %zero), padding=1_2",
    "f32[7,9]{1,0} pad(%a), padding=1_2x0_1",
    "f32[7,9]{1,0} pad(%a, %zero), padding=999999999999_2x0_1",
    "f32[8,9]{1,0} concatenate(%a, %a), dimensions={0}",
    "f32[7,8]{1,0} concatenate(%a, %a), dimensions={0}",
    "f32[4,16]{1,0} dot(%a), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "f32[4,16]{1,0} dot(%a, %b), lhs_contracting_dims={2}, rhs_contracting_dims={0}",
    "f32[5,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "f32[1,8]{1,0} dynamic-slice(%a, %n), dynamic_slice_sizes={1,8}",
    "f32[1,9]{1,0} dynamic-slice(%a, %n, %n), dynamic_slice_sizes={1,9}",
    "f32[4,8]{1,0} dynamic-update-slice(%a, %b, %n, %n)",
    "f32[4,8]{1,0} dynamic-update-slice(%a)",
    "f32[4,8]{1,0} gather(%a), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}",
    "f32[4,8]{1,0} gather(%a, %n), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={5}",
    "f32[4,8]{1,0} scatter(%a, %n), to_apply=%add",
    "f32[4,8]{1,0} sort(%a), dimensions={2}, to_apply=%add",
    "f32[4,8]{1,0} sort(%a), dimensions={1}, to_apply=%negated",
    "f32[4,8]{1,0} iota(), iota_dimension=2",
    "f32[4,8]{1,0} iota(%a), iota_dimension=1",
    "f32[33]{0} reshape(%a)",
    "f32[33]{0} bitcast(%a)",
    "f32[4,8]{0} negate(%a)",
    "f32[9223372036854775807,9223372036854775807]{1,0} iota(), iota_dimension=1",
    "f32[4,8]{1,0} fusion(), kind=kLoop, calls=%negated",
    "f32[4,8]{1,0} fusion(%n), kind=kLoop, calls=%negated",
    "f32[4,8]{1,0} fusion(%a), kind=kLoop",
    "f32[8,4]{1,0} fusion(%a), kind=kLoop, calls=%negated",
    "f32[4,8]{1,0} fusion(%a), kind=kLoop, calls=%main",
    "f32[4,8]{1,0} call(%a, %a), to_apply=%negated",
    "f32[4,8]{1,0} while(%a), condition=%negated, body=%negated",
    "f32[4,8]{1,0} while(%a), condition=%less, body=%less",
    "f32[4,8]{1,0} while(%a, %a), condition=%less, body=%negated",
    "f32[4,8]{1,0} while(%a), body=%negated",
    "f32[4,8]{1,0} conditional(%n, %a), branch_computations={%negated, %negated}",
    "f32[4,8]{1,0} conditional(%a, %a), branch_computations={%negated}",
    "f32[4,8]{1,0} conditional()",
    "f32[4,8]{1,0} get-tuple-element(%pair), index=2",
    "f32[4,8]{1,0} get-tuple-element(%a), index=0",
    "(f32[4,8]{1,0}) tuple(%a, %n)",
    "s32[] parameter(7)",
    "s32[] parameter(2)",
    '(f32[4,8]{1,0}, s32[]) custom-call(%pair#3), custom_call_target="any"',
]


def mismatch(instruction: str) -> tuple[str, str] | None:
    text = MODULE.format(instruction=instruction).replace(
        "ROOT %last = f32[] copy(%zero)",
        # A root, so that a get-tuple-element is read as it is.
        "%last = f32[] copy(%zero)\n  ROOT %used = s32[] custom-call(%tested), "
        'custom_call_target="any"',
    )
    return next(instruction_mismatches(parse_hlo(SourceText("small.txt", text)).module), None)


@pytest.mark.parametrize("instruction", SOUND)
def test_what_xla_writes(instruction: str) -> None:
    assert mismatch(instruction) is None


@pytest.mark.parametrize("instruction", BROKEN)
def test_what_no_opcode_can_have(instruction: str) -> None:
    assert mismatch(instruction) is not None


def test_an_unknown_form_is_a_note_where_few_dumps_were_read() -> None:
    text = MODULE.format(instruction="f32[8,8]{1,0} reverse(%a), dimensions={0}")
    plan = Plan((), module=parse_hlo(SourceText("small.txt", text)).module)
    with pytest.raises(PlanMismatchError, match="that a reverse can have"):
        verify(plan, where="dump")
    (note,) = verify(replace(plan, platform="tpu"), where="dump").notes
    assert "reverse(f32[4,8]{1,0})" in note


def test_a_cycle_of_calls() -> None:
    text = MODULE.format(instruction=SOUND[0]).replace("negate(%z)", "call(%z), to_apply=%negated")
    found = next(instruction_mismatches(parse_hlo(SourceText("small.txt", text)).module), None)
    assert found == ("computations that do not call themselves", "that negated does")


def test_the_proto_is_refused_where_it_is_read() -> None:
    (folder,) = (ROOT / "hlo_dumps/qwen3-step").glob("h200-triton-*")
    proto = HloProto.FromString(read_file(folder, "after_optimizations.hlo.pb"))
    _ = read_proto(proto.SerializeToString(), where="dump")
    instruction = next(
        instruction
        for computation in proto.hlo_module.computations
        for instruction in computation.instructions
        if instruction.opcode == "multiply"
    )
    instruction.opcode = "reduce"
    with pytest.raises(PlanMismatchError, match=r"^dump: expected operands.* that a reduce can"):
        read_proto(proto.SerializeToString(), where="dump")


def test_an_operation_on_sparse_cores_gets_its_operands_by_an_update() -> None:
    """As libtpu 0.0.50.1 writes an all-gather for TPU7x."""
    part, whole = "f32[64]{0:T(128)}", "f32[256]{0:T(128)}"
    text = f"""HloModule m, is_scheduled=true

%async (p: f32[64]) -> f32[256] {{
  %p = {part} parameter(0)
  ROOT %g = {whole} all-gather(%p), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
}}, execution_thread="sparsecore"

ENTRY %main (x: f32[64]) -> f32[256] {{
  %x = {part} parameter(0)
  %start = ((), (), (s32[1]{{0:T(128)S(2)}})) async-start(), calls=%async
  %update = (({part}), {whole}) async-update(%start, %x)
  ROOT %done = {whole} async-done(%update)
}}
"""
    assert (
        next(instruction_mismatches(parse_hlo(SourceText("small.txt", text)).module), None) is None
    )
