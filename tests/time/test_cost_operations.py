"""Costs: operations of products, loops, and what is unknown."""

import pytest

# One byte takes a microsecond, and so does one operation.
from tests.time.cost_of_text import ADD, LOOP, cost_of, kernel, loop_entry, module


def dot(shapes: str, attributes: str = "") -> str:
    first, second, result = shapes.split()
    return f"""
  %a = {first}{{1,0}} parameter(0)
  %b = {second}{{1,0}} parameter(1)
  ROOT %d = {result}{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\
{attributes}
"""


@pytest.mark.parametrize(
    ("shapes", "algorithm", "flops"),
    [
        # A multiply-add of complex numbers is four of real ones.
        ("c64[2,16] c64[16,3] c64[2,3]", "", {"c64": 8 * 2 * 3 * 16}),
        ("f64[2,16] f64[16,3] f64[2,3]", "", {"f64": 2 * 2 * 3 * 16}),
        ("f32[2,16] f32[16,3] f32[2,3]", "dot_f32_f32_f32", {"vector": 2 * 2 * 3 * 16}),
        ("f32[2,16] f32[16,3] f32[2,3]", "dot_tf32_tf32_f32", {"tf32": 2 * 2 * 3 * 16}),
        ("f32[2,16] f32[16,3] f32[2,3]", "dot_f16_f16_f32", {"f16": 2 * 2 * 3 * 16}),
        ("f64[2,16] f64[16,3] f64[2,3]", "dot_f64_f64_f64", {"f64": 2 * 2 * 3 * 16}),
        ("f8e5m2[2,16] f8e5m2[16,3] f32[2,3]", "dot_any_f8_any_f8_f32", {"f8e5m2": 192}),
    ],
)
def test_operations_of_a_product_by_type(
    shapes: str, algorithm: str, flops: dict[str, int]
) -> None:
    attributes = f", algorithm={algorithm}" if algorithm else ""
    assert kernel(cost_of(module(dot(shapes, attributes))), "d").flops == flops


def test_a_product_that_became_a_reduction_runs_outside_the_tensor_cores() -> None:
    name = 'metadata={op_name="jit(f)/dot_general"}'
    entry = f"""
  %a = f32[8,100]{{1,0}} parameter(0)
  %m = f32[8,100]{{1,0}} multiply(%a, %a), {name}
  %zero = f32[] constant(0)
  ROOT %r = f32[8]{{0}} reduce(%m, %zero), dimensions={{1}}, to_apply=%add, {name}
"""
    row = kernel(cost_of(module(entry, ADD)), "r")
    assert row.flops == {"vector": 2 * 8 * 100}
    assert row.compute_seconds == pytest.approx(1600e-6)


@pytest.mark.parametrize(
    ("target", "mask", "flops"),
    [
        # Scores and their product with the values, of 4 heads, 8 rows, 16 columns and 32 elements.
        ("__cudnn$fmhaSoftmax", "NO_MASK", 2 * 2 * 4 * 8 * 16 * 32),
        ("__cudnn$fmhaSoftmax", "CAUSAL", 2 * 4 * 8 * 16 * 32),
        # Both again, and the gradients of query, key and value.
        ("__cudnn$fmhaSoftmaxBackward", "NO_MASK", 2 * 5 * 4 * 8 * 16 * 32),
    ],
)
def test_attention_has_two_products_forward_and_five_backward(
    target: str, mask: str, flops: int
) -> None:
    config = (
        '{"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":'
        f'["1","4","8","16"]}},"mask_type":"{mask}"}}}}'
    )
    entry = f"""
  %q = bf16[1,8,4,32]{{3,2,1,0}} parameter(0)
  %k = bf16[1,16,4,32]{{3,2,1,0}} parameter(1)
  ROOT %c = (bf16[1,8,4,32]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%q, %k), \
custom_call_target="{target}", backend_config={config}
"""
    assert kernel(cost_of(module(entry)), "c").flops == {"bf16": flops}
    entry = entry.replace(f", backend_config={config}", "")
    assert kernel(cost_of(module(entry)), "c").flops is None


@pytest.mark.parametrize(
    ("labels", "shapes"),
    [
        ("b01f_01io->b01f", ("[2,10,10,4]{3,2,1,0}", "[3,3,4,6]{3,2,1,0}", "[2,8,8,6]{3,2,1,0}")),
        ("bf01_oi01->bf01", ("[2,4,10,10]{3,2,1,0}", "[6,4,3,3]{3,2,1,0}", "[2,6,8,8]{3,2,1,0}")),
    ],
)
@pytest.mark.parametrize(
    ("target", "operands", "result"),
    [
        ("Forward", "image kernel", "output"),
        ("BackwardInput", "output kernel", "image"),
        ("BackwardFilter", "image output", "kernel"),
    ],
)
def test_gradients_of_a_convolution_have_its_operations(
    target: str, operands: str, result: str, labels: str, shapes: tuple[str, str, str]
) -> None:
    named = dict(zip(("image", "kernel", "output"), shapes, strict=True))
    first, second = (f"f32{named[name]}" for name in operands.split())
    entry = f"""
  %x = {first} parameter(0)
  %y = {second} parameter(1)
  ROOT %c = (f32{named[result]}, u8[0]{{0}}) custom-call(%x, %y), window={{size=3x3}}, \
dim_labels={labels}, custom_call_target="__cudnn$conv{target}"
"""
    assert kernel(cost_of(module(entry)), "c").flops == {"f32": 2 * (2 * 8 * 8 * 6) * (3 * 3 * 4)}


def test_a_wrapped_kernel_runs_beside_the_others() -> None:
    wrapped = """%wrapped (y: f32[100]) -> f32[100] {
  %y = f32[100]{0} parameter(0)
  ROOT %inner = f32[100]{0} negate(%y), metadata={op_name="jit(f)/neg"}
}
"""
    entry = """
  %a = f32[100]{0} parameter(0)
  %s = ((f32[100]{0}), f32[100]{0}) async-start(%a), calls=%wrapped
  %n = f32[100]{0} negate(%a)
  %d = f32[100]{0} async-done(%s)
  ROOT %t = f32[100]{0} call(%d), to_apply=%called
"""
    called = """%called (z: f32[100]) -> f32[100] {
  %z = f32[100]{0} parameter(0)
  ROOT %e = f32[100]{0} exponential(%z)
}
"""
    cost = cost_of(module(entry, wrapped, called))
    assert [(row.name, row.asynchronous) for row in cost.kernels] == [
        ("s", True),
        ("n", False),
        ("e", False),
    ]
    row = kernel(cost, "s")
    assert (row.kind, row.op_name, row.read_bytes) == ("negate", "jit(f)/neg", 400)
    # Only those that run one after another add up.
    assert cost.traffic_bytes == 2400
    assert cost.floor_seconds == pytest.approx(1600e-6)


def test_a_slice_is_read_from_the_cache_if_all_of_the_array_is_there() -> None:
    """Which part of an array was touched before is unknown."""
    entry = """
  %a = f32[100]{0} parameter(0)
  %b = f32[100]{0} negate(%a)
  %s = f32[10]{0} slice(%b), slice={[0:10]}
  ROOT %r = f32[10]{0} slice(%b), slice={[50:60]}
"""
    memory = {"a": 0, "b": 1, "s": 2, "r": 3}
    for l2_bytes, cached in ((10**6, 40), (400, 40), (300, 40), (0, 0)):
        cost = cost_of(module(entry), memory, l2_bytes)
        assert kernel(cost, "s").cached_bytes == cached, l2_bytes
    # After another kernel has pushed a part of it out.
    pushed = entry.replace("  %s =", "  %p = f32[10]{0} negate(%x)\n  %s =").replace(
        "  %b =", "  %x = f32[10]{0} parameter(1)\n  %b ="
    )
    memory |= {"x": 4, "p": 5}
    assert kernel(cost_of(module(pushed), memory, 480), "s").cached_bytes == 40
    assert kernel(cost_of(module(pushed), memory, 479), "s").cached_bytes == 0


def test_a_product_in_a_loop_counts_in_every_trip() -> None:
    body = LOOP.replace(
        "%y = f32[100]{0} negate(%x)",
        "%y = f32[100]{0} dot(%x, %x), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={}",
    )
    known = ', backend_config={"known_trip_count":{"n":"7"}}'
    row = kernel(cost_of(module(loop_entry(known), body)), "y")
    assert row.flops == {"f32": 7 * 2 * 100}


def test_operations_without_dimensions_are_unknown() -> None:
    entry = """
  %a = bf16[4,16]{1,0} parameter(0)
  %b = bf16[2,16,8]{2,1,0} parameter(1)
  %g = s32[2]{0} parameter(2)
  ROOT %d = bf16[4,8]{1,0} ragged-dot(%a, %b, %g)
"""
    cost = cost_of(module(entry))
    assert kernel(cost, "d").flops is None
    assert kernel(cost, "d").compute_seconds == 0
    assert cost.floor_seconds is not None
