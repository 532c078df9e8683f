"""What XLA's opcodes do with their operands, as far as figures depend on it.

The lists are XLA's: `HloInstruction::IsElementwise`, the instructions for which `ThunkEmitter`
launches nothing, `HloDataflowAnalysis`, and `hlo_query::IsCollectiveCommunicationOp`.
"""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans.copies import find_copies
from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.time.cost import KernelCost, step_cost

ROWS, ROW = "f32[100,8]{1,0}", "f32[1,8]{1,0}"


def kernels(entry: str, *computations: str) -> dict[str, KernelCost]:
    text = "\n".join(
        ("HloModule m, is_scheduled=true\n", *computations, "ENTRY %main (x: f32[8]) -> f32[8] {")
    )
    cost = step_cost(plan_of_text(f"{text}{entry}}}\n"))
    assert cost is not None
    return {kernel.name: kernel for kernel in cost.kernels}


# Lists would take a line for each.
UNARY = (  # noqa: SIM905
    "abs bitcast-convert cbrt ceil convert copy cosine count-leading-zeros erf exponential "
    "exponential-minus-one floor imag is-finite log log-plus-one logistic negate not popcnt real "
    "reduce-precision round-nearest-afz round-nearest-even rsqrt sign sine sqrt tan tanh"
).split()
BINARY = (  # noqa: SIM905
    "add and atan2 compare complex divide maximum minimum multiply or power remainder shift-left "
    "shift-right-arithmetic shift-right-logical subtract xor"
).split()
TERNARY = ["clamp", "select"]


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [
        *((opcode, "%y") for opcode in UNARY),
        *((opcode, "%y, %y") for opcode in BINARY),
        *((opcode, "%y, %y, %y") for opcode in TERNARY),
        # Not elementwise, but each element of the result is one of the operand.
        *((opcode, "%y") for opcode in ("opt-barrier", "reshape", "reverse", "transpose")),
    ],
)
def test_a_row_of_an_elementwise_result_takes_a_row_of_the_operand(
    opcode: str, operands: str
) -> None:
    body = f"""%body (y: f32[100,8]) -> f32[1,8] {{
  %y = {ROWS} parameter(0)
  %e = {ROWS} {opcode}({operands})
  ROOT %s = {ROW} slice(%e), slice={{[0:1], [0:8]}}
}}
"""
    entry = f"""
  %x = {ROWS} parameter(0)
  ROOT %f = {ROW} fusion(%x), kind=kLoop, calls=%body
"""
    assert kernels(entry, body)["f"].read_bytes == operands.count("%y") * 32


@pytest.mark.parametrize("opcode", ["cholesky", "fft", "sort", "reduce-window", "triangular-solve"])
def test_a_row_of_another_result_may_take_all_of_the_operand(opcode: str) -> None:
    body = f"""%body (y: f32[100,8]) -> f32[1,8] {{
  %y = {ROWS} parameter(0)
  %e = {ROWS} {opcode}(%y)
  ROOT %s = {ROW} slice(%e), slice={{[0:1], [0:8]}}
}}
"""
    entry = f"""
  %x = {ROWS} parameter(0)
  ROOT %f = {ROW} fusion(%x), kind=kLoop, calls=%body
"""
    assert kernels(entry, body)["f"].read_bytes == 3200


@pytest.mark.parametrize(
    ("extending", "read_bytes"),
    [
        ("%e = f32[100,8]{1,0} broadcast(%y), dimensions={1}", 32),
        ("%e = f32[100,8]{1,0} pad(%y, %zero), padding=0_99x0_0", 32),
        ("%e = f32[100,8]{1,0} concatenate(%y, %y), dimensions={0}", 32),
    ],
)
def test_what_a_larger_result_repeats_is_read_once(extending: str, read_bytes: int) -> None:
    body = f"""%body (y: f32[8]) -> f32[8] {{
  %y = f32[8]{{0}} parameter(0)
  %zero = f32[] constant(0)
  {extending}
  ROOT %s = f32[100,8]{{1,0}} negate(%e)
}}
"""
    entry = """
  %x = f32[8]{0} parameter(0)
  ROOT %f = f32[100,8]{1,0} fusion(%x), kind=kLoop, calls=%body
"""
    assert kernels(entry, body)["f"].read_bytes == read_bytes


FORWARDING = (  # noqa: SIM905
    "add-dependency bitcast domain opt-barrier all-gather-done all-reduce-done async-update "
    "collective-permute-done copy-done recv-done send-done"
).split()


@pytest.mark.parametrize("opcode", FORWARDING)
def test_what_forwards_its_operand_launches_no_kernel_and_does_not_read(opcode: str) -> None:
    entry = f"""
  %x = f32[8]{{0}} parameter(0)
  %start = f32[8]{{0}} negate(%x)
  %r = f32[8]{{0}} {opcode}(%start)
  ROOT %n = f32[8]{{0}} negate(%r)
"""
    assert sorted(kernels(entry)) == ["n", "start"]
    module = plan_of_text(
        f"HloModule m, is_scheduled=true\n\nENTRY %main (x: f32[8]) -> f32[8] {{{entry}}}\n"
    ).module
    assert module is not None
    computation, start = next(
        (computation, instruction)
        for computation, instruction in module.instructions()
        if instruction.name == "start"
    )
    path = {"all-gather-done": (1,), "collective-permute-done": (1,), "copy-done": (0,)}
    value = Value(computation, start, path.get(opcode, ()))
    readers = dataflow_of(module).readers(value)
    assert [reader.instruction.name for reader in readers] == ["n"]


@pytest.mark.parametrize(
    "line",
    [
        "%r = token[] after-all()",
        "%r = f32[8]{0} constant({...})",
        "%r = f32[8]{0} parameter(1)",
        "%r = (f32[8]{0}, f32[8]{0}) tuple(%x, %x)",
        "%r = f32[8]{0} get-tuple-element(%t), index=0",
        '%r = f32[8]{0} custom-call(), custom_call_target="AllocateBuffer"',
    ],
)
def test_what_is_given_launches_no_kernel(line: str) -> None:
    entry = f"""
  %x = f32[8]{{0}} parameter(0)
  %t = (f32[8]{{0}}, f32[8]{{0}}) parameter(2)
  ROOT {line}
"""
    assert sorted(kernels(entry)) == []


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("all-gather", "all-gather"),
        ("all-gather-start", "all-gather"),
        ("all-reduce", "all-reduce"),
        ("all-reduce-start", "all-reduce"),
        ("all-to-all", "all-to-all"),
        ("collective-broadcast", "collective-broadcast"),
        ("collective-permute", "collective-permute"),
        ("collective-permute-start", "collective-permute"),
        ("ragged-all-to-all", "ragged-all-to-all"),
        ("reduce-scatter", "reduce-scatter"),
    ],
)
def test_collectives_and_their_starts(opcode: str, kind: str) -> None:
    plan = plan_of_text(f"""HloModule m, is_scheduled=true

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %c = f32[8]{{0}} {opcode}(%x), replica_groups={{{{0,1}}}}
  ROOT %n = f32[8]{{0}} negate(%x)
}}
""")
    (collective,) = plan.collectives or ()
    assert (collective.kind, collective.instruction) == (kind, "c")


@pytest.mark.parametrize(
    "moving",
    [
        "concatenate(%x, %x), dimensions={0}",
        "dynamic-slice(%x, %i), dynamic_slice_sizes={8}",
        "reverse(%x), dimensions={0}",
        "slice(%x), slice={[0:8]}",
        "transpose(%x), dimensions={0}",
        "dynamic-update-slice(%x, %x, %i)",
        "scatter(%x, %i, %x), to_apply=%body",
        "copy(%x)",
    ],
)
def test_moves_to_other_memory_are_copies(moving: str) -> None:
    text = f"""HloModule m, is_scheduled=true

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %i = s32[] parameter(1)
  ROOT %c = f32[8]{{0}} {moving}
}}
"""
    assert [copy.value for copy in find_copies(plan_of_text(text, {"x": 0, "c": 1}))] == ["c"]


@pytest.mark.parametrize(
    ("product", "flops"),
    [
        ("dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 4 * 8 * 16),
        ("scaled-dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 4 * 8 * 16),
    ],
)
def test_products_have_operations(product: str, flops: int) -> None:
    entry = f"""
  %a = f32[4,16]{{1,0}} parameter(0)
  %b = f32[16,8]{{1,0}} parameter(1)
  ROOT %d = f32[4,8]{{1,0}} {product}
"""
    assert kernels(entry)["d"].flops == {"f32": flops}
