"""Read shapes of the proto, through XLA's text form: `bf16[8,128]{1,0:S(1)}`."""

from google.protobuf.message import DecodeError

from xlapipe.dump.readers.hlo_proto import ShapeProto
from xlapipe.dump.readers.source_text import (
    DUMP_AGAIN,
    DUMP_AGAIN_OR_REPORT,
    refuse,
)
from xlapipe.errors import DumpError
from xlapipe.plans.shapes import Shape, shape_of

_TUPLE = 13
_BUFFER = 34
# xla.PrimitiveType, in lower case as HLO prints it.
_ELEMENTS = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 14: "opaque", 15: "c64", 16: "bf16", 17: "token",
    18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4",
    30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
_LEVELS = {0: "D", 1: "C", 2: "S", 3: "H"}
_UNBOUNDED = -(2**63)
_COMBINED_TILE = -1


class Shapes:
    """Shapes, cached by wire form: a module repeats few shapes many times.

    Args:
      where: the file, for error messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._shapes: dict[bytes, Shape] = {}

    def shape(self, wire: bytes) -> Shape:
        shape = self._shapes.get(wire)
        if shape is None:
            shape = self._shapes[wire] = shape_of(_text(self._parse(wire), self._where))
        return shape

    def part(self, wire: bytes, index: tuple[int, ...], name: str) -> Shape:
        """The element at `index` of the shape of instruction `name`."""
        part = self.shape(wire)
        for step in index:
            if not 0 <= step < len(part.parts):
                refuse(
                    self._where,
                    f"a shape index within {name}, whose shape is {self.shape(wire)}",
                    f"{list(index)}",
                    DUMP_AGAIN,
                )
            part = part.parts[step]
        return part

    def _parse(self, wire: bytes) -> ShapeProto:
        try:
            return ShapeProto.FromString(wire)
        except DecodeError as error:
            raise DumpError(
                f"{self._where}: expected a shape, found other bytes ({error}); fix: {DUMP_AGAIN}"
            ) from None


def _text(shape: ShapeProto, where: str) -> str:
    if shape.element_type == _TUPLE:
        return "(" + ", ".join(_text(part, where) for part in shape.tuple_shapes) + ")"
    if shape.element_type == _BUFFER and len(shape.tuple_shapes) == 1:
        return f"b({_text(shape.tuple_shapes[0], where)})"
    element = _element(shape.element_type, where)
    dynamic = shape.is_dynamic_dimension
    dimensions = shape.dimensions
    if any(dynamic):
        sizes = [
            str(size) if not (position < len(dynamic) and dynamic[position])
            else "?" if size == _UNBOUNDED else f"<={size}"
            for position, size in enumerate(dimensions)
        ]  # fmt: skip
    else:
        sizes = [str(size) for size in dimensions]
    layout = _layout(shape, where) if shape.HasField("layout") else ""
    if layout == "{}" and not dimensions:
        layout = ""
    return f"{element}[{','.join(sizes)}]{layout}"


def _layout(shape: ShapeProto, where: str) -> str:
    layout = shape.layout
    order = ",".join(map(str, layout.minor_to_major))
    attributes = ""
    if layout.dim_level_types and any(layout.dim_level_types):
        attributes += (
            "D(" + ",".join(_LEVELS.get(level, "?") for level in layout.dim_level_types) + ")"
        )
    if layout.tiles:
        attributes += "T" + "".join(
            "(" + ",".join("*" if d == _COMBINED_TILE else str(d) for d in tile.dimensions) + ")"
            for tile in layout.tiles
        )
    if layout.tail_padding_alignment_in_elements not in (0, 1):
        attributes += f"L({layout.tail_padding_alignment_in_elements})"
    if layout.index_primitive_type:
        attributes += f"#({_element(layout.index_primitive_type, where)})"
    if layout.pointer_primitive_type:
        attributes += f"*({_element(layout.pointer_primitive_type, where)})"
    if layout.element_size_in_bits:
        attributes += f"E({layout.element_size_in_bits})"
    if layout.memory_space:
        attributes += f"S({layout.memory_space})"
    if layout.split_configs:
        attributes += "SC" + "".join(
            f"({split.dimension}:{','.join(map(str, split.split_indices))})"
            for split in layout.split_configs
        )
    if layout.HasField("physical_shape"):
        attributes += f"P({_text(layout.physical_shape, where)})"
    if layout.dynamic_shape_metadata_prefix_bytes:
        attributes += f"M({layout.dynamic_shape_metadata_prefix_bytes})"
    return f"{{{order}:{attributes}}}" if attributes else f"{{{order}}}"


def _element(number: int, where: str) -> str:
    element = _ELEMENTS.get(number)
    if element is None:
        refuse(
            where, "an element type that xlapipe knows", f"number {number}", DUMP_AGAIN_OR_REPORT
        )
    return element
