"""Values of constants, which goldens compare within a tolerance.

What runs while a step is imported or traced (NumPy, eager jax) is computed by the CPU, and CPUs
differ in the last digits of exponentials, sines, products and factorisations. Two values of a float
are the same if they differ by at most

- 256 units in the last place of float32, 3e-5 of the value; for float64 256 of float64, and for
  types of 16 bits and less one of theirs;
- or 16 such units of the largest value of the array, for what rounds to zero.

Other types are compared exactly. So are large arrays of floats of 8 bits and less, by their digest.
"""

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from google.protobuf.message import DecodeError

from xlapipe.dump.readers.hlo_proto import HloProto, LiteralProto

# A line, or what follows the name in it.
_CONSTANT = re.compile(
    r"(?m)^(?P<head>(?:  (?:ROOT )?%\S+ = )?(?P<shape>\S+) constant\()(?P<value>.*?)"
    r"(?P<end>\)(?=$|, [\w\-]+=))"
)
# XLA prints arrays of more than ten elements so.
_LARGE = re.compile(r"(?m)^  (?:ROOT )?%(\S+) = \S+ constant\(\{\.\.\.\}\)")
_ELIDED = "{...}"
_COMMENT = re.compile(r"/\*.*?\*/")
_NUMBER = re.compile(r"-?(?:inf|nan|\d[\d.]*(?:e[+\-]?\d+)?)")
_FLOAT = re.compile(r"(?:f|bf|c)\d+")
_SHORT_FLOAT = re.compile(r"f\d+e\d+m(\d+)")
# Bits of the fraction of a float, by XLA's name.
_FRACTION_BITS = {"f64": 52, "c128": 52, "f32": 23, "c64": 23, "f16": 10, "bf16": 7}
_OF_THE_VALUE, _OF_THE_LARGEST = 256, 16


class Constant(NamedTuple):
    """A constant as its text has it, e.g. `f32[2]{0}` and `{1, 2.5}`.

    The value of a large one is a digest once `with_digests` has put it there.
    """

    shape: str
    value: str

    @property
    def element(self) -> str:
        """The type of its elements, by XLA's name."""
        return self.shape.partition("[")[0]

    @property
    def is_float(self) -> bool:
        """Whether it has floats, real or complex."""
        return _FLOAT.match(self.element) is not None


@dataclass(frozen=True)
class ConstantDifference:
    """A constant that two modules have in the same place, with other digits.

    Attributes:
      element: the number of the element that differs most, if it is known.
    """

    golden: Constant
    new: Constant
    is_same: bool
    element: int | None = None
    values: tuple[float, float] = (0, 0)

    def __str__(self) -> str:
        shape = self.new.shape.partition("{")[0]
        if self.element is None:
            return f"{shape}: {self.golden.value:.60} in the golden, {self.new.value:.60} here"
        golden, new = self.values
        return f"{shape}, element {self.element}: {golden:.9g} in the golden, {new:.9g} here"


def split_constants(text: str) -> tuple[str, list[Constant]]:
    """A module's text without the values of constants, and these in its order."""
    constants = [Constant(it["shape"], it["value"]) for it in _CONSTANT.finditer(text)]
    return _CONSTANT.sub(r"\g<head>\g<end>", text), constants


def rounded_constants(text: str) -> str:
    """The text with the first digits of floats only, so that no CPU decides how it is sorted."""

    def rounded(match: re.Match[str]) -> str:
        constant = Constant(match["shape"], match["value"])
        value = _ELIDED if constant.value.startswith("{...") else constant.value
        if constant.is_float:
            value = _NUMBER.sub(lambda number: f"{float(number[0]):.2e}", value)
        return match["head"] + value + match["end"]

    return _CONSTANT.sub(rounded, text)


def with_digests(text: str, proto: bytes) -> tuple[str, dict[str, bytes]]:
    """XLA's text of a module with digests of its large constants, and their values by digest."""
    names = set(_LARGE.findall(text))
    literals = {
        instruction.name: instruction.literal
        for computation in _module_of(proto).hlo_module.computations
        for instruction in computation.instructions
        if instruction.name in names and instruction.opcode == "constant"
    }
    digests = {name: sha256(literal).hexdigest()[:16] for name, literal in literals.items()}

    def with_digest(match: re.Match[str]) -> str:
        digest = digests.get(match[1])
        return match[0] if digest is None else match[0].replace(_ELIDED, f"{{... {digest}}}")

    values = {digest: literals[name] for name, digest in digests.items()}
    return _LARGE.sub(with_digest, text), values


def constants_that_differ(
    golden: Sequence[Constant],
    new: Sequence[Constant],
    literals: Mapping[str, bytes],
) -> Iterator[ConstantDifference]:
    """The constants that differ between two lists of one length, be it in the last digit."""
    for one, other in zip(golden, new, strict=True):
        # Where a value is not known, XLA's text is all that there is.
        if one != other and _ELIDED not in (one.value, other.value):
            yield _compared(one, other, literals)


def _module_of(proto: bytes) -> HloProto:
    try:
        return HloProto.FromString(proto)
    except DecodeError:
        return HloProto()


def _compared(golden: Constant, new: Constant, literals: Mapping[str, bytes]) -> ConstantDifference:
    first, second = (_numbers(constant, literals) for constant in (golden, new))
    if not first or not second or len(first) != len(second):
        return ConstantDifference(golden, new, is_same=False)
    element = max(range(len(first)), key=lambda index: _distance(first[index], second[index]))
    values = first[element], second[element]
    short = _SHORT_FLOAT.match(golden.element)
    bits = int(short[1]) if short is not None else _FRACTION_BITS.get(golden.element, 23)
    is_same = golden.is_float and _are_same(first, second, bits)
    return ConstantDifference(golden, new, is_same, element, values)


def _are_same(golden: Sequence[float], new: Sequence[float], fraction_bits: int) -> bool:
    unit = 2.0 ** -(52 if fraction_bits == 52 else 23)
    tolerance = max(_OF_THE_VALUE * unit, 2.0**-fraction_bits)
    largest = max((abs(value) for value in golden if math.isfinite(value)), default=0)
    return all(
        _distance(a, b)
        <= tolerance * (abs(a) if math.isfinite(a) else 0) + _OF_THE_LARGEST * unit * largest
        for a, b in zip(golden, new, strict=True)
    )


def _distance(a: float, b: float) -> float:
    """How far two values are apart; 0 between values that are not numbers."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf


def _numbers(constant: Constant, literals: Mapping[str, bytes]) -> Sequence[float] | None:
    """The elements of a constant; None for a large one of a type that is not read."""
    if not constant.value.startswith("{... "):
        return list(map(float, _NUMBER.findall(_COMMENT.sub("", constant.value))))
    if constant.element not in _FRACTION_BITS:
        return None
    literal = LiteralProto.FromString(literals[constant.value[5:-1]])
    values: Sequence[float] | bytes = getattr(literal, f"{constant.element}s")
    if not isinstance(values, bytes):
        return values
    count = len(values) // 2
    if constant.element == "f16":
        return struct.unpack(f"<{count}e", values)
    # A bfloat16 is the upper half of a float32.
    words = (b"\0\0" + values[at : at + 2] for at in range(0, 2 * count, 2))
    return struct.unpack(f"<{count}f", b"".join(words))
