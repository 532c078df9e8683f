"""Similarity of two products or of two library calls."""

import re
from dataclasses import dataclass
from math import log2, prod

_NUMBER = re.compile(r"\d+")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_DOT = re.compile(r" dot\((\w+)\[([\d,]*)\]\S* \w+, (\w+)\[([\d,]*)\]\S* \w+\)(.*)", re.ASCII)
_DIMENSIONS = re.compile(r"(lhs|rhs)_(batch|contracting)_dims=\{([\d,]*)\}")
_CALL = re.compile(r'custom-call\((?P<operands>.*)\), (?P<layout>.*)custom_call_target="([^"]*)"')
# Octaves added to the distance for other element types, for another layout, and where only one of
# both has other instructions in its fusion, which cuBLASLt would run as kernels of their own.
_OTHER_TYPES, _OTHER_LAYOUT, _OTHER_FUSION = 2.0, 1.0, 4.0
# An octave of work counts as this number of octaves of a size.
_WORK = 1.0


@dataclass(frozen=True)
class Form:
    """A product or a library call, by the properties that its result depends on.

    Attributes:
      kind: `dot` or the name of a library call, and the element types of the operands.
      layout: contracting dimensions of a product, the window of a convolution; empty if unknown.
      dimensions: of a product batch, the larger of m and n, the smaller, and k; of a library call
        all sizes of its operands.
      fused: number of other instructions in the fusion.
    """

    kind: str
    layout: str
    dimensions: tuple[int, ...]
    fused: int = 0

    @property
    def is_product(self) -> bool:
        """Whether it is a product, not a library call."""
        return self.kind.startswith("dot ")

    def distance(self, other: "Form") -> float | None:
        """Distance to another form, in octaves of sizes; None if they are not comparable."""
        same_call = self.kind.partition(" ")[0] == other.kind.partition(" ")[0]
        both_floats = ("s8" in self.kind) == ("s8" in other.kind)
        if not (same_call and both_floats) or len(self.dimensions) != len(other.dimensions):
            return None
        octaves = [log2(a / b) for a, b in zip(self.dimensions, other.dimensions, strict=True)]
        other_layout = self.layout != other.layout and "" not in (self.layout, other.layout)
        return (
            sum(map(abs, octaves))
            + _WORK * abs(sum(octaves))
            + _OTHER_TYPES * (self.kind != other.kind)
            + _OTHER_LAYOUT * other_layout
            + _OTHER_FUSION * ((self.fused > 0) != (other.fused > 0))
        )


def form_of(text: str) -> Form | None:
    """The form of an instruction; None if it is neither a product nor a library call."""
    dot = _DOT.search(text)
    if dot is not None:
        return _product(dot, fused=text.count(" = ") - 3)
    call = _CALL.search(text.split("\n", 1)[0])
    if call is None:
        return None
    shapes = _SHAPE.findall(call["operands"])
    kind = f"{call[3]} {','.join(element for element, _ in shapes)}"
    sizes = (int(size) for _, dims in shapes for size in _NUMBER.findall(dims))
    return Form(kind, call["layout"].rstrip(", "), tuple(max(size, 1) for size in sizes))


def dot_sizes(text: str) -> tuple[int, int, int]:
    """m, n and k of a product; zeros if there is none."""
    dot = _DOT.search(text)
    return _sizes(dot)[1:] if dot is not None else (0, 0, 0)


def dot_operands(text: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """Element type and number of elements of both operands of a text with a product."""
    dot = _DOT.search(text)
    assert dot is not None
    left, right = (prod(map(int, _NUMBER.findall(dot[at]))) for at in (2, 4))
    return (dot[1], left), (dot[3], right)


def _product(dot: re.Match[str], *, fused: int) -> Form:
    named = _named_dimensions(dot)
    batch, m, n, k = _sizes(dot)
    layout = ";".join(named.get((side, "contracting"), "") for side in ("lhs", "rhs"))
    dimensions = tuple(max(value, 1) for value in (batch, max(m, n), min(m, n), k))
    return Form(f"dot {dot[1]},{dot[3]}", layout, dimensions, fused)


def _sizes(dot: re.Match[str]) -> tuple[int, int, int, int]:
    """Batch, m, n and k."""
    named = _named_dimensions(dot)
    shapes = {
        side: [int(size) for size in _NUMBER.findall(dot[at])]
        for side, at in (("lhs", 2), ("rhs", 4))
    }

    def size(side: str, kind: str) -> int:
        return prod(shapes[side][int(at)] for at in _NUMBER.findall(named.get((side, kind), "")))

    batch, k = size("lhs", "batch"), size("lhs", "contracting")
    m, n = (prod(shapes[side]) // max(batch * k, 1) for side in ("lhs", "rhs"))
    return batch, m, n, k


def _named_dimensions(dot: re.Match[str]) -> dict[tuple[str, str], str]:
    return {(side, kind): text for side, kind, text in _DIMENSIONS.findall(dot[5])}
