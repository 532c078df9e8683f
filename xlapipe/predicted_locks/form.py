"""What makes two tuned instructions alike: their form, and the sizes of what they compute."""

import hashlib
import re
from dataclasses import dataclass
from math import log2, prod

_SIZES = re.compile(r"\[([\d,:]*)\]")
_NUMBER = re.compile(r"\d+")
# Strides in the backend configs of library calls.
_QUOTED = re.compile(r'"\d{2,}"')
_DOT = re.compile(r" dot\((\w+)\[([\d,]*)\]\S* \w+, (\w+)\[([\d,]*)\]\S* \w+\)(.*)", re.ASCII)
_DIMENSIONS = re.compile(r"(lhs|rhs)_(batch|contracting)_dims=\{([\d,]*)\}")
_CALL = re.compile(r'custom_call_target="([^"]*)"')
# Octaves by which an instruction counts as further away.
_OTHER_TYPES, _OTHER_LAYOUT, _OTHER_FUSION = 2.0, 1.0, 0.5


@dataclass(frozen=True)
class Form:
    """An instruction as far as its result depends on it.

    Attributes:
      text: a digest of the canonical text with all sizes replaced.
      sizes: the sizes that were replaced, each distinct one once.
      kind: `dot` with element types, or a library call with those of its operands; empty for
        other fusions.
      layout: contracting dimensions of a product.
      dimensions: of a product batch, the larger of m and n, the smaller, and k; of a library call
        all sizes of its operands.
      fused: number of other instructions in the fusion.
    """

    text: str
    sizes: tuple[int, ...]
    kind: str = ""
    layout: str = ""
    dimensions: tuple[int, ...] = ()
    fused: int = 0

    def distance(self, other: "Form") -> float | None:
        """How far the other is, in octaves of sizes; None if nothing can be learned from it."""
        if self.text == other.text:
            return _octaves(self.sizes, other.sizes)
        if not self.kind or len(self.dimensions) != len(other.dimensions):
            return None
        name, other_name = self.kind.partition(" ")[0], other.kind.partition(" ")[0]
        if name != other_name:
            return None
        work = abs(log2(prod(self.dimensions)) - log2(prod(other.dimensions)))
        return (
            _octaves(self.dimensions, other.dimensions)
            + work
            + _OTHER_TYPES * (self.kind != other.kind)
            + _OTHER_LAYOUT * (self.layout != other.layout)
            + _OTHER_FUSION * min(abs(self.fused - other.fused), 2)
        )


def form_of(text: str) -> Form:
    """The form of an instruction.

    Args:
      text: its canonical text.
    """
    places: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        return (
            f"[{_NUMBER.sub(lambda size: f'#{places.setdefault(size[0], len(places))}', match[1])}]"
        )

    shape = _QUOTED.sub('"#"', _SIZES.sub(place, text))
    digest = hashlib.sha256(shape.encode()).hexdigest()[:16]
    sizes = tuple(map(int, places))
    dot = _DOT.search(text)
    if dot is not None:
        return _product(digest, sizes, dot, fused=text.count(" = ") - 3)
    call = _CALL.search(text.split("\n", 1)[0])
    if call is not None:
        operands = text[text.index("custom-call(") : call.start()]
        types = ",".join(re.findall(r"(\w+)\[", operands))
        dimensions = tuple(
            max(int(size), 1)
            for shape in _SIZES.findall(operands)
            for size in _NUMBER.findall(shape)
        )
        return Form(digest, sizes, f"{call[1]} {types}", "", dimensions)
    return Form(digest, sizes)


def _product(digest: str, sizes: tuple[int, ...], dot: re.Match[str], *, fused: int) -> Form:
    named = {(side, kind): text for side, kind, text in _DIMENSIONS.findall(dot[5])}
    shapes = {
        side: list(map(int, _NUMBER.findall(dot[at]))) for side, at in (("lhs", 2), ("rhs", 4))
    }

    def size(side: str, kind: str) -> int:
        return prod(shapes[side][int(at)] for at in _NUMBER.findall(named.get((side, kind), "")))

    batch, k = size("lhs", "batch"), size("lhs", "contracting")
    m = prod(shapes["lhs"]) // max(batch * k, 1)
    n = prod(shapes["rhs"]) // max(batch * k, 1)
    layout = ";".join(named.get((side, "contracting"), "") for side in ("lhs", "rhs"))
    dimensions = tuple(max(value, 1) for value in (batch, max(m, n), min(m, n), k))
    return Form(digest, sizes, f"dot {dot[1]},{dot[3]}", layout, dimensions, fused)


def _octaves(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    pairs = zip(one, other, strict=True)
    return sum(abs(log2(max(a, 1) / max(b, 1))) for a, b in pairs)
