"""Which instructions are matrix products, and what computes them, on small programs."""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans.gemms import Gemm, requested_dots

A, B, C = "f32[4,16]{1,0}", "f32[16,8]{1,0}", "f32[4,8]{1,0}"
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
DOT_NAME = 'metadata={op_name="jit(step)/up/dot_general"}'
NESTED = """backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}"""


def text_of(entry: str, *computations: str) -> str:
    return "\n".join(
        (
            "HloModule m, is_scheduled=true\n",
            *computations,
            "ENTRY %main (a: f32[4,16], b: f32[16,8]) -> f32[4,8] {",
            f"  %a = {A} parameter(0)",
            f"  %b = {B} parameter(1)",
            f"{entry.strip(chr(10))}",
            "}\n",
        )
    )


def gemms(entry: str, *computations: str) -> tuple[Gemm, ...]:
    return plan_of_text(text_of(entry, *computations)).gemms


def rows(entry: str, *computations: str) -> list[tuple[str, str]]:
    return [(gemm.instruction, str(gemm.backend)) for gemm in gemms(entry, *computations)]


@pytest.mark.parametrize(
    ("target", "backend"),
    [
        ("__cublas$gemm", "cublas"),
        ("__cublas$lt$matmul", "cublaslt"),
        ("__cublas$lt$matmul$f8", "cublaslt_f8"),
        ("__cudnn$fmhaSoftmax", "cudnn"),
        ("xla_python_gpu_callback", None),
    ],
)
def test_calls_of_libraries_by_target(target: str, backend: str | None) -> None:
    entry = f'  ROOT %g = {C} custom-call(%a, %b), custom_call_target="{target}"'
    assert rows(entry) == ([("g", backend)] if backend else [])


def test_a_call_inside_of_a_fusion_is_the_fusions_product() -> None:
    """XLA wraps cuBLAS calls on slices of a stack of weights into one thunk."""
    body = f"""%body (x: f32[4,16], y: f32[16,8]) -> f32[4,8] {{
  %x = {A} parameter(0)
  %y = {B} parameter(1)
  ROOT %call = {C} custom-call(%x, %y), custom_call_target="__cublas$gemm"
}}
"""
    (gemm,) = gemms(f"  ROOT %f = {C} fusion(%a, %b), kind=kCustom, calls=%body", body)
    assert (gemm.instruction, str(gemm.backend)) == ("f", "cublas")
    assert [shape.text for shape in gemm.shapes] == [A, B, C]


def dot_body(opcode: str = "dot") -> str:
    return f"""%body (x: f32[4,16], y: f32[16,8]) -> f32[4,8] {{
  %x = {A} parameter(0)
  %y = {B} parameter(1)
  ROOT %d = {C} {opcode}(%x, %y), {DIMS}
}}
"""


@pytest.mark.parametrize("opcode", ["dot", "scaled-dot"])
@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("__triton_gemm", "triton"),
        ("__triton_nested_gemm_fusion", "triton"),
        ("__cudnn$fusion", "cudnn"),
        ("__custom_fusion", "other"),
    ],
)
def test_products_in_fusions_by_the_kind_of_their_backend(
    opcode: str, kind: str, backend: str
) -> None:
    config = f'backend_config={{"fusion_backend_config":{{"kind":"{kind}"}}}}'
    entry = f"  ROOT %f = {C} fusion(%a, %b), kind=kCustom, calls=%body, {config}"
    assert rows(entry, dot_body(opcode)) == [("f", backend)]


def test_a_product_in_a_fusion_inside_of_a_fusion() -> None:
    outer = f"""%outer (p: f32[4,16], q: f32[16,8]) -> f32[4,8] {{
  %p = {A} parameter(0)
  %q = {B} parameter(1)
  ROOT %inner = {C} fusion(%p, %q), kind=kCustom, calls=%body
}}
"""
    entry = f"  ROOT %f = {C} fusion(%a, %b), kind=kCustom, calls=%outer, {NESTED}"
    assert rows(entry, dot_body(), outer) == [("f", "triton")]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("__triton_gemm", [("f", "triton")]), ("__triton", []), ("", [])],
)
def test_without_bodies_the_kind_alone_names_a_product(
    kind: str, expected: list[tuple[str, str]]
) -> None:
    """A dump with only the buffer assignment has no computations but the entry."""
    config = f', backend_config={{"fusion_backend_config":{{"kind":"{kind}"}}}}' if kind else ""
    assert rows(f"  ROOT %f = {C} fusion(%a, %b), kind=kCustom, calls=%gone{config}") == expected


@pytest.mark.parametrize(
    ("primitive", "backend"), [("dot_general", "reduce"), ("ragged_dot_general", "reduce")]
)
def test_a_product_that_xla_rewrote_to_a_reduction(primitive: str, backend: str) -> None:
    name = f'metadata={{op_name="jit(step)/up/{primitive}"}}'
    add = """%add (s: f32[], t: f32[]) -> f32[] {
  %s = f32[] parameter(0)
  %t = f32[] parameter(1)
  ROOT %sum = f32[] add(%s, %t)
}
"""
    entry = f"""
  %m = {A} multiply(%a, %a), {name}
  %zero = f32[] constant(0)
  ROOT %r = f32[4]{{0}} reduce(%m, %zero), dimensions={{1}}, to_apply=%add, {name}
"""
    assert rows(entry, add) == [("r", backend)]
    assert rows(entry.replace(primitive, "reduce_sum"), add) == []


def test_a_product_of_groups_in_a_fusion() -> None:
    entry = f"  ROOT %f = {C} fusion(%a, %b, %g), kind=kCustom, calls=%body"
    body = f"""%body (p: f32[4,8], q: f32[8,32], n: s32[1]) -> f32[4,32] {{
  %p = {A} parameter(0)
  %q = {B} parameter(1)
  %n = s32[1]{{0}} parameter(2)
  ROOT %d = {C} ragged-dot(%p, %q, %n), {DIMS}
}}
"""
    sizes = "  %g = s32[1]{0} constant({4})\n"
    assert rows(sizes + entry, body) == [("f", "other")]


def test_a_product_that_nothing_has_rewritten() -> None:
    entry = f"  ROOT %d = {C} dot(%a, %b), {DIMS}, {DOT_NAME}"
    (gemm,) = gemms(entry)
    assert (gemm.instruction, str(gemm.backend)) == ("d", "other")
    assert gemm.op_name == "jit(step)/up/dot_general"
    module = plan_of_text(text_of(entry)).module
    assert module is not None
    assert [instruction.name for instruction in requested_dots(module)] == ["d"]


def test_the_name_of_a_product_may_be_that_of_its_reader() -> None:
    """XLA drops the op_name of a matrix-vector product, and keeps that of the bitcast after it."""
    call = f'{C} custom-call(%a, %b), custom_call_target="__cublas$gemm"'
    entry = f"  %g = {call}\n  ROOT %r = f32[32]{{0}} bitcast(%g), {DOT_NAME}"
    (gemm,) = gemms(entry)
    assert gemm.op_name == "jit(step)/up/dot_general"
    (gemm,) = gemms(entry.replace("bitcast", "negate"))
    assert gemm.op_name is None


@pytest.mark.parametrize(
    ("precision", "fast"),
    [
        ('{"operand_precision":["DEFAULT","DEFAULT"],"algorithm":"ALG_UNSET"}', True),
        ('{"operand_precision":["DEFAULT","DEFAULT"]}', True),
        ('{"operand_precision":["DEFAULT","HIGHEST"],"algorithm":"ALG_UNSET"}', False),
        (
            '{"operand_precision":["HIGHEST"],"algorithm":"ALG_DOT_ANY_F8_ANY_F8_F32_FAST_ACCUM"}',
            True,
        ),
        ('{"operand_precision":["DEFAULT"],"algorithm":"ALG_DOT_ANY_F8_ANY_F8_F32"}', False),
    ],
)
def test_fast_accumulation_of_float8(precision: str, fast: bool) -> None:
    config = f'backend_config={{"gemm_backend_config":{{"precision_config":{precision}}}}}'
    call = f'{C} custom-call(%a, %b), custom_call_target="__cublas$lt$matmul$f8"'
    (gemm,) = gemms(f"  ROOT %g = {call}, {config}")
    assert gemm.fast_accumulation is fast
    (unknown,) = gemms(f"  ROOT %g = {call}")
    assert unknown.fast_accumulation is None
