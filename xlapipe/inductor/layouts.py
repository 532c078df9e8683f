"""Tensors as torch describes them: element type, sizes, strides, device."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from xlapipe.inductor.expressions import Dimension, dimensions

Number = TypeVar("Number", int, float)
ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float4_e2m1fn_x2", "quint8", "qint8", "bits8"), 1),
    **dict.fromkeys(("bfloat16", "float16", "half", "int16", "uint16", "short"), 2),
    **dict.fromkeys(("float32", "float", "int32", "uint32", "int", "complex32"), 4),
    **dict.fromkeys(("float64", "double", "int64", "uint64", "long", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of one element by torch's name of the dtype."""

# The short names of FX graphs, and those of Triton's pointers.
_LONG_NAMES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
    "fp16": "float16", "fp32": "float32", "fp64": "float64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "b8": "bool", "i1": "bool", "c64": "complex64", "c128": "complex128",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0fnu": "float8_e8m0fnu",
    "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz",
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz", "fp8e5b16": "float8_e5m2fnuz",
}  # fmt: skip
_SHORT_NAMES = {
    "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "bool": "b8",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "complex64": "c64",
}  # fmt: skip


def dtype_name(name: str) -> str:
    """torch's name of a dtype, from any of its spellings.

    >>> dtype_name("bf16"), dtype_name("torch.float32"), dtype_name("fp8e4nv")
    ('bfloat16', 'float32', 'float8_e4m3fn')
    """
    plain = name.removeprefix("torch.")
    return _LONG_NAMES.get(plain, plain)


@dataclass(frozen=True, slots=True)
class Layout:
    """One tensor.

    Attributes:
      dtype: torch's name, e.g. `bfloat16`; None if the dump does not name it.
      shape, strides: in elements; text for an expression whose symbols have no value.
    """

    dtype: str | None
    shape: tuple[Dimension, ...]
    strides: tuple[Dimension, ...]
    device: str = "cuda"

    @property
    def on_device(self) -> bool:
        """Whether its memory is an accelerator's."""
        return not self.device.startswith(("cpu", "meta"))

    @property
    def elements(self) -> int | None:
        """How many elements it has; None if a size is not known."""
        known = [size for size in self.shape if isinstance(size, int)]
        return prod(known) if len(known) == len(self.shape) else None

    @property
    def item_bytes(self) -> int | None:
        return ITEM_BYTES.get(self.dtype) if self.dtype is not None else None

    @property
    def storage_bytes(self) -> int | None:
        """Bytes from its first to its last element; None if a size or the dtype is not known."""
        extent, item = self._extent, self.item_bytes
        return None if extent is None or item is None else extent * item

    @property
    def element_bytes(self) -> int | None:
        """Bytes of its distinct elements: those of a view leave out what is between them."""
        extent, elements, item = self._extent, self.elements, self.item_bytes
        if extent is None or elements is None or item is None:
            return None
        return min(extent, elements) * item

    @property
    def _extent(self) -> int | None:
        last = 0
        for size, stride in zip(self.shape, self.strides, strict=True):
            if not isinstance(size, int) or not isinstance(stride, int):
                return None
            if size == 0:
                return 0
            last += (size - 1) * stride
        return last + 1

    def resolved(self, symbols: Mapping[str, object]) -> "Layout":
        """With values for its symbols."""
        if all(isinstance(size, int) for size in (*self.shape, *self.strides)):
            return self
        return replace(
            self,
            shape=dimensions([str(size) for size in self.shape], symbols),
            strides=dimensions([str(stride) for stride in self.strides], symbols),
        )

    def __str__(self) -> str:
        """As FX graphs print it: `bf16[256, 1024][1024, 1]`."""
        return f"{self.type_text}[{_joined(self.strides)}]"

    @property
    def type_text(self) -> str:
        """Element type and sizes: `bf16[256, 1024]`."""
        dtype = "?" if self.dtype is None else _SHORT_NAMES.get(self.dtype, self.dtype)
        return f"{dtype}[{_joined(self.shape)}]"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a name is bound to: a layout at an offset in a storage.

    Attributes:
      offset_bytes: None if it is not a number.
    """

    storage: int
    layout: Layout | None
    offset_bytes: int | None = 0


def sum_if_known(numbers: Iterable[Number | None]) -> Number | None:
    """The sum; None if one of the numbers is not known."""
    known = list(numbers)
    return None if None in known else sum(filter(None, known))


def contiguous_strides(shape: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """Strides of a tensor without gaps whose last dimension is the innermost.

    >>> contiguous_strides((4, 256, 512))
    (131072, 512, 1)
    """
    strides: list[Dimension] = []
    step: Dimension = 1
    for size in reversed(shape):
        strides.append(step)
        if isinstance(step, int) and isinstance(size, int):
            step *= max(size, 1)
        else:
            step = size if step == 1 else f"({size})*({step})"
    return tuple(reversed(strides))


def _joined(values: Sequence[Dimension]) -> str:
    return ", ".join(map(str, values))
