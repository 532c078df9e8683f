"""HLO shapes: `bf16[8,128]{1,0:T(8,128)S(1)}`, `(f32[], (s8[16]{0}))`.

A layout lists the dimensions from minor to major, and after the colon its parts in this order:
`T(8,128)(2,1)` tiles, `E(4)` bits of an element, `S(1)` memory space, `SC(0:512)` where the array
is split over two cores.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from xlapipe.plans.short_repr import short_repr

_ARRAY = re.compile(
    r"(?P<element>[a-z]\w*)\[(?P<dims>[^\[\]]*)\]"
    r"(?:\{(?P<order>(?:\d{1,3},?)*)(?::(?P<attributes>[^{}]*))?\})?"
)
# At most what 64 bits hold, so that damaged text costs no time.
_DIM = re.compile(r"(?:<=)?\d{1,19}|\?")
_BITS = re.compile(r"[a-z]+(\d+)")
_BITS_OF = {"pred": 8, "token": 0}
_SPACE = re.compile(r"(?<![A-Z])S\((\d+)\)")
_DEEPEST = 100


@dataclass(frozen=True, eq=False)
class Shape:
    """A shape of XLA, parsed by `shape_of`, which returns one object for equal texts.

    Attributes:
      text: as XLA prints it, with layout and without `/*index=N*/`.
      element: XLA's name of the element type, e.g. `bf16`; empty for a tuple, and for text that
        is not a shape.
      dims: dimensions; of a dynamic one its bound, and 0 if it has none.
      order: the dimensions from minor to major; None without a layout.
      attributes: what follows the order in the layout, e.g. `T(8,128)S(1)`.
      parts: shapes of a tuple's elements; of `b(…)`, a reference to a buffer, of what it refers to.
      is_dynamic: whether a dimension has a bound instead of a size.
    """

    __repr__ = short_repr

    text: str
    element: str = ""
    dims: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None
    attributes: str = ""
    parts: tuple["Shape", ...] = ()
    is_dynamic: bool = False

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Shape) and self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_tuple(self) -> bool:
        """Whether it is a tuple; the bytes of its values are a table of pointers."""
        return self.text.startswith("(")

    @cached_property
    def arrays(self) -> tuple["Shape", ...]:
        """Its arrays, tuples flattened."""
        return tuple(self._arrays())

    def _arrays(self) -> Iterator["Shape"]:
        if self.element:
            yield self
        for part in self.parts:
            yield from part.arrays

    @cached_property
    def size_bytes(self) -> int | None:
        """Bytes of all arrays without padding, and without a tuple's table of pointers.

        None for dynamic dimensions, for types without a size and for text that is not a shape.
        """
        if not self.element:
            sizes = [part.size_bytes for part in self.parts]
            known = [size for size in sizes if size is not None]
            return sum(known) if len(known) == len(sizes) and self._is_shape else None
        bits = element_bits(self.element)
        # XLA:GPU packs elements smaller than a byte, two or more to a byte.
        return None if bits is None or self.is_dynamic else (bits * prod(self.dims) + 7) // 8

    @property
    def _is_shape(self) -> bool:
        return bool(self.element or self.parts) or self.text == "()"

    @cached_property
    def elements(self) -> int:
        """Number of elements of all arrays; 0 if `size_bytes` is unknown."""
        if self.size_bytes is None:
            return 0
        return sum(prod(array.dims) for array in self.arrays)

    @cached_property
    def dims_without_ones(self) -> tuple[int, ...]:
        """Dimensions without those of size 1, which a bitcast may add or drop."""
        return tuple(dim for dim in self.dims if dim != 1)

    @cached_property
    def without_layout(self) -> str:
        """Element type and dimensions: `bf16[8,128]`, `(f32[], (s8[16]))`."""
        if self.element:
            return self.text.partition("{")[0]
        opening = self.text.partition("(")[0]
        parts = ", ".join(part.without_layout for part in self.parts)
        return f"{opening}({parts})" if self._is_shape else self.text

    @cached_property
    def memory_space(self) -> int:
        """XLA's number of the memory space, e.g. 5 of `f32[8]{0:S(5)}`; a tuple's first, if any."""
        spaces = (_SPACE.search(array.attributes) for array in self.arrays)
        return next((int(match[1]) for match in spaces if match is not None), 0)

    @property
    def is_tiled(self) -> bool:
        """Whether a layout has tiles, as on TPUs only."""
        return "T(" in self.text

    def at(self, path: tuple[int, ...]) -> "Shape":
        """The shape of an element of a tuple; the innermost tuple that exists on the way to it."""
        shape = self
        for index in path:
            if not shape.is_tuple or index >= len(shape.parts):
                return shape
            shape = shape.parts[index]
        return shape


@lru_cache(maxsize=1 << 16)
def shape_of(text: str) -> Shape:
    """The shape that XLA prints as `text`; other text gives a shape of no arrays.

    >>> shape_of("(bf16[8,128]{1,0}, (pred[3]{0}, f8e4m3fn[]))").size_bytes
    2052
    >>> shape_of("f32[<=8]{0}").size_bytes, shape_of("f32[2,1]{1,0:S(5)}").memory_space
    (None, 5)
    >>> shape_of("(f32[2]{0}, (s8[3]{0}, pred[]))").at((1, 0)).text
    's8[3]{0}'
    """
    return _parse(text, 0)


def element_bits(element: str) -> int | None:
    """Bits of an element type: 16 for `bf16`, 8 for `pred`, 0 for `token`; None if unknown."""
    if element in _BITS_OF:
        return _BITS_OF[element]
    match = _BITS.match(element)
    return int(match[1]) if match is not None else None


def _parse(text: str, depth: int) -> Shape:
    opening = 2 if text.startswith("b(") else 1
    if text.endswith(")") and text[opening - 1 : opening] == "(":
        parts, end = split_bracket(text, opening - 1)
        if depth > _DEEPEST or end != len(text) or not parts:
            return Shape(text)
        texts = filter(None, map(str.strip, parts))
        return Shape(text, parts=tuple(_parse(part, depth + 1) for part in texts))
    match = _ARRAY.fullmatch(text)
    if match is None:
        return Shape(text)
    dims = [dim.strip() for dim in match["dims"].split(",")] if match["dims"] else []
    if not all(map(_DIM.fullmatch, dims)):
        return Shape(text)
    return Shape(
        text,
        match["element"],
        tuple(int(dim.lstrip("<=").replace("?", "0")) for dim in dims),
        None if match["order"] is None else _numbers(match["order"]),
        match["attributes"] or "",
        is_dynamic="<" in match["dims"] or "?" in match["dims"],
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def split_bracket(
    text: str, start: int = 0, separator: str = ",", brackets: tuple[str, str] = ("([{", ")]}")
) -> tuple[list[str], int]:
    """The parts of the bracket that opens at `start`, and the position after it.

    No parts, and the end of the text, for a bracket that is not closed.

    >>> split_bracket("f(a, (b, c))", 1)
    (['a', ' (b, c)'], 12)
    """
    depth, begin = 0, start + 1
    parts: list[str] = []
    for position in range(start, len(text)):
        character = text[position]
        depth += (character in brackets[0]) - (character in brackets[1])
        if depth == 0 or (depth == 1 and character == separator):
            parts.append(text[begin:position])
            begin = position + 1
        if depth == 0:
            return parts, position + 1
    return [], len(text)
