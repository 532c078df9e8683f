"""XLA's shapes as text."""

import pytest

from xlapipe.plans.shapes import Shape, element_bits, shape_of


@pytest.mark.parametrize(
    ("text", "dims", "order", "attributes"),
    [
        ("f32[]", (), None, ""),
        ("bf16[8,128]{1,0}", (8, 128), (1, 0), ""),
        ("f8e4m3fn[3]{0:T(256)}", (3,), (0,), "T(256)"),
        ("s32[2,4]{0,1:T(8,128)(2,1)S(1)}", (2, 4), (0, 1), "T(8,128)(2,1)S(1)"),
        ("f32[<=8,2]{1,0}", (8, 2), (1, 0), ""),
        ("f32[?,2]", (0, 2), None, ""),
    ],
)
def test_arrays(
    text: str, dims: tuple[int, ...], order: tuple[int, ...] | None, attributes: str
) -> None:
    shape = shape_of(text)
    assert (shape.dims, shape.order, shape.attributes) == (dims, order, attributes)
    assert shape.is_dynamic == ("<" in text or "?" in text)
    assert not shape.is_tuple
    assert shape.arrays == (shape,)
    assert shape.without_layout == text.partition("{")[0]


@pytest.mark.parametrize(
    ("text", "size_bytes", "elements"),
    [
        ("pred[3]", 3, 3),
        ("s4[3]{0}", 2, 3),
        ("c64[2,2]", 32, 4),
        ("token[]", 0, 1),
        ("f32[0,4]", 0, 0),
        ("(f32[2]{0}, (s8[3]{0}, bf16[]))", 13, 6),
        ("()", 0, 0),
        ("((), f32[])", 4, 1),
        # Shapes without a size: dynamic, a type without bits, in part, and not a shape at all.
        ("f32[<=8]", None, 0),
        ("f32[?]", None, 0),
        ("opaque[]", None, 0),
        ("(f32[2], opaque[])", None, 0),
        ("(f32[2], f32)", None, 0),
        ("f32", None, 0),
        ("", None, 0),
    ],
)
def test_bytes_and_elements(text: str, size_bytes: int | None, elements: int) -> None:
    assert (shape_of(text).size_bytes, shape_of(text).elements) == (size_bytes, elements)


def test_tuples_and_references_to_buffers() -> None:
    shape = shape_of("(f32[2,4]{1,0}, (s8[3]{0:S(5)}, pred[]))")
    assert shape.is_tuple
    assert [array.text for array in shape.arrays] == ["f32[2,4]{1,0}", "s8[3]{0:S(5)}", "pred[]"]
    assert shape.without_layout == "(f32[2,4], (s8[3], pred[]))"
    assert shape.at((1, 0)).memory_space == 5
    # The innermost tuple that exists on the way.
    assert shape.at((1, 2)) == shape.at((1,))
    assert shape.at((2,)) == shape
    assert shape.at((0, 0)) == shape.at((0,))
    reference = shape_of("b(f32[2,4]{1,0})")
    assert not reference.is_tuple
    assert reference.size_bytes == 32
    assert reference.without_layout == "b(f32[2,4])"


@pytest.mark.parametrize(
    "text",
    [
        "f32[2",
        "f32[2]{0",
        "(f32[2]",
        "(f32[2], s8[3)]",
        "f32[2,x]",
        "f32[=8]",
        f"f32[{'9' * 20}]",
        "[2]",
    ],
)
def test_other_text_has_no_arrays(text: str) -> None:
    shape = shape_of(text)
    assert (shape.arrays, shape.size_bytes, shape.without_layout) == ((), None, text)


def test_tuples_are_read_to_a_depth_that_no_program_has() -> None:
    def nested(depth: int) -> Shape:
        return shape_of("(" * depth + "f32[]" + ")" * depth)

    assert nested(101).size_bytes == 4
    assert nested(102).size_bytes is None


def test_equal_texts_are_equal_shapes() -> None:
    assert Shape("f32[2]") == Shape("f32[2]")
    assert Shape("f32[2]") != Shape("f32[3]")
    assert shape_of("f32[2]") != "f32[2]"


@pytest.mark.parametrize(
    ("element", "bits"), [("bf16", 16), ("pred", 8), ("token", 0), ("u4", 4), ("f8e5m2", 8)]
)
def test_bits_of_an_element(element: str, bits: int) -> None:
    assert element_bits(element) == bits
    assert element_bits("opaque") is None
