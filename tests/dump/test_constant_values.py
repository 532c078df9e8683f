"""Goldens compare the values of constants within a tolerance."""

import struct
from collections.abc import Mapping

import pytest

from xlapipe.devices.platforms.dump_files import MODULE
from xlapipe.dump.normal_form.canonical import canonical_hlo
from xlapipe.dump.normal_form.hlo import normal_hlo
from xlapipe.dump.normal_form.plan import NormalForm, compare, differences
from xlapipe.dump.readers.hlo_proto import HloProto

HLO = """\
HloModule jit_step, is_scheduled=true

ENTRY %main (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0)
  %constant_1_0 = SHAPE constant(VALUE), metadata={op_name="jit(step)/mul"}
  ROOT %multiply.1 = f32[4]{0} custom-call(%x.1, %constant_1_0), custom_call_target="f"
}
"""


def form(shape: str, value: str, literal: bytes = b"") -> NormalForm:
    """A module with one constant.

    Args:
      literal: its LiteralProto, where the text has no value.
    """
    text = HLO.replace("SHAPE", shape).replace("VALUE", value)
    proto = HloProto()
    instruction = proto.hlo_module.computations.add().instructions.add()
    instruction.name, instruction.opcode, instruction.literal = "constant_1_0", "constant", literal
    files: Mapping[str, bytes] = {
        "after_optimizations.txt": text.encode(),
        MODULE: proto.SerializeToString(),
    }
    return NormalForm("", normal_hlo(text), text.encode(), files.__getitem__)


@pytest.mark.parametrize(
    ("shape", "golden", "new", "is_same"),
    [
        ("f32[]", "1.19392252", "1.19392264", True),
        ("f32[]", "1.19392252", "1.1940", False),
        ("f32[2]{0}", "{1, 0.5}", "{1, 0.50001}", True),
        ("f32[2]{0}", "{1, 0.5}", "{1, 0.5001}", False),
        ("f32[2]{0}", "{1e-08, 1}", "{-3e-08, 1}", True),  # what rounds to zero
        ("f32[2]{0}", "{1e-08, 0.001}", "{-3e-08, 0.001}", False),
        ("f32[1,2]{1,0}", "{ { inf, nan } }", "{ { inf, nan } }", True),
        ("f32[2]{0}", "{inf, nan}", "{-inf, nan}", False),
        ("f32[2]{0}", "{inf, nan}", "{3e+38, nan}", False),
        ("f64[]", "0.1", "0.10000000000000002", True),
        ("f64[]", "0.1", "0.1000000001", False),
        ("bf16[]", "1", "1.0078", True),
        ("bf16[]", "1", "1.02", False),
        ("f8e4m3fn[]", "1", "1.125", True),
        ("f8e4m3fn[]", "1", "1.25", False),
        ("c64[]", "(1, 2)", "(1, 2.00001)", True),
        ("c64[]", "(1, 2)", "(1, 3)", False),
        ("s32[2]{0}", "{100000, 5}", "{100001, 5}", False),
        ("pred[]", "true", "false", False),
    ],
)
def test_small_constants(shape: str, golden: str, new: str, is_same: bool) -> None:
    lines = differences(form(shape, golden), form(shape, new), name="step")
    assert (lines == []) is is_same
    if golden != new and is_same:
        notes = compare(form(shape, golden), form(shape, new)).notes
        place = "constants that this machine's CPU computed"
        assert notes == (f"{place} differ in the last digits",)


@pytest.mark.parametrize(
    ("element", "field", "form_of_element"),
    [("f32", 8, "f"), ("f64", 9, "d"), ("bf16", 13, "bf"), ("f16", 11, "e")],
)
def test_large_constants(element: str, field: int, form_of_element: str) -> None:
    """XLA's text leaves out the values of more than ten elements."""

    def large(last: float) -> NormalForm:
        values = [*(0.1 * index for index in range(15)), last]
        if form_of_element == "bf":
            data = b"".join(struct.pack("<f", value)[2:] for value in values)
        else:
            data = struct.pack(f"<16{form_of_element}", *values)
        literal = bytes([field << 3 | 2, len(data) & 127 | 128, len(data) >> 7]) + data
        return form(f"{element}[16]{{0}}", "{...}", literal)

    golden = large(50)
    assert differences(golden, large(50), name="step") == []
    lines = differences(golden, large(60), name="step")
    assert "constants that " in lines[0] and "jax or flax" not in lines[0]
    assert f"constant {element}[16], element 15: 50 in the golden, 60 here" in lines[1]
    if form_of_element in ("f", "d"):
        assert differences(golden, large(50 * (1 + 1e-14)), name="step") == []


def test_large_constants_of_another_type_are_compared_by_digest() -> None:
    golden, same, other = (
        form("f8e5m2[16]{0}", "{...}", b"\x9a\x01\x10" + bytes([*range(15), last]))
        for last in (7, 7, 8)
    )
    assert differences(golden, same, name="step") == []
    assert " in the golden, " in differences(golden, other, name="step")[1]


def test_a_change_of_the_program_is_not_called_one_of_constants() -> None:
    golden, new = form("f32[2]{0}", "{1, 2}"), form("f32[3]{0}", "{1, 2, 3}")
    assert "lowering: the program" in differences(golden, new, name="step")[0]


def test_digits_of_a_cpu_do_not_order_the_outputs_of_a_fusion() -> None:
    """Outputs are ordered by a digest of what computes them."""
    orders = set()
    for last in range(20):
        text = f"""\
HloModule jit_f, is_scheduled=true
ENTRY (f32[8]) -> (f32[8], f32[8]) {{
  %x.1 = f32[8]{{0}} parameter(0)
  %both = (f32[8]{{0}}, f32[8]{{0}}) fusion(%x.1), kind=kLoop, calls=computation_1
  ROOT %out = (f32[8]{{0}}, f32[8]{{0}}) tuple(%both#0, %both#1)
}}
computation_1 (f32[8]) -> (f32[8], f32[8]) {{
  %0 = f32[8]{{0}} parameter(0)
  %1 = f32[8]{{0}} constant({{0.1234567{last:02}}})
  %2 = f32[8]{{0}} constant({{0.7654321{last:02}}})
  %3 = f32[8]{{0}} multiply(%0, %1)
  %4 = f32[8]{{0}} multiply(%0, %2)
  ROOT %5 = (f32[8]{{0}}, f32[8]{{0}}) tuple(%3, %4)
}}
"""
        orders.add(str(canonical_hlo(text).orders))
    assert len(orders) == 1
